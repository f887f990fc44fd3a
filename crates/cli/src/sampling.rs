//! Sampling parameters from flags, over the checkpoint's own defaults where a command follows them.

use crate::args::SamplingArgs;
use calla_engine::Sampling;
use calla_text::{GenerationDefaults, StopScanner};
use std::time::{SystemTime, UNIX_EPOCH};

/// Refuses flags out of range before anything is loaded.
pub(crate) fn check(args: &SamplingArgs) -> anyhow::Result<()> {
    over(args, Sampling::greedy()).validate().map_err(|error| blame(error, args))?;
    StopScanner::new(&args.stop)?;
    Ok(())
}

/// Greedy, except for what the flags say.
pub(crate) fn from_flags(args: &SamplingArgs) -> anyhow::Result<Sampling> {
    resolve(args, Sampling::greedy())
}

/// What the checkpoint's generation_config.json says, except for what the flags say.
pub(crate) fn from_defaults(
    args: &SamplingArgs,
    defaults: &GenerationDefaults,
) -> anyhow::Result<Sampling> {
    let greedy = Sampling::greedy();
    let sampled = defaults.do_sample == Some(true);
    let base = Sampling {
        temperature: if sampled { defaults.temperature.unwrap_or(1.0) } else { 0.0 },
        top_k: defaults.top_k.map_or(greedy.top_k, |k| k as usize),
        top_p: defaults.top_p.unwrap_or(greedy.top_p),
        min_p: defaults.min_p.unwrap_or(greedy.min_p),
        repetition_penalty: defaults.repetition_penalty.unwrap_or(greedy.repetition_penalty),
        ..greedy
    };
    resolve(args, base)
}

fn resolve(args: &SamplingArgs, base: Sampling) -> anyhow::Result<Sampling> {
    let mut sampling = over(args, base);
    if args.seed.is_none() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        sampling.seed = now.as_nanos() as u64;
    }
    sampling.validate().map_err(|error| blame(error, args))?;
    Ok(sampling)
}

fn over(args: &SamplingArgs, base: Sampling) -> Sampling {
    Sampling {
        temperature: args.temperature.unwrap_or(base.temperature),
        top_k: args.top_k.map_or(base.top_k, |k| k as usize),
        top_p: args.top_p.unwrap_or(base.top_p),
        min_p: args.min_p.unwrap_or(base.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(base.frequency_penalty),
        logit_bias: args.logit_bias.iter().copied().collect(),
        seed: args.seed.unwrap_or(base.seed),
    }
}

/// Names where the value came from: a flag if it was given, else the checkpoint's file.
fn blame(error: calla_engine::SamplingError, args: &SamplingArgs) -> anyhow::Error {
    let calla_engine::SamplingError::Range { name, value, min, max } = error else {
        return error.into();
    };
    let is_given = match name {
        "temperature" => args.temperature.is_some(),
        "top_k" => args.top_k.is_some(),
        "top_p" => args.top_p.is_some(),
        "min_p" => args.min_p.is_some(),
        "repetition_penalty" => args.repetition_penalty.is_some(),
        // Files do not set the others.
        _ => true,
    };
    let flag = format!("--{}", name.replace('_', "-"));
    if is_given {
        anyhow::anyhow!("{flag} must be from {min} to {max} but is {value}")
    } else {
        anyhow::anyhow!(
            "generation_config.json of the checkpoint: {name} must be from {min} to {max} but is \
             {value}; {flag} overrides it"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn flags(list: &[&str]) -> SamplingArgs {
        let cli = Cli::try_parse_from([&["calla", "chat"], list].concat()).unwrap();
        let Command::Chat(args) = cli.command else { panic!("not chat") };
        args.sampling
    }

    #[test]
    fn flags_win_over_the_checkpoint_and_the_checkpoint_over_greedy() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            ..GenerationDefaults::default()
        };
        let sampling = from_defaults(&flags(&["--top-k", "5", "--seed", "9"]), &defaults).unwrap();
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.6, 5, 9));
        let greedy = GenerationDefaults { do_sample: Some(false), ..defaults };
        assert_eq!(from_defaults(&flags(&[]), &greedy).unwrap().temperature, 0.0);
        let warm = from_defaults(&flags(&["--temperature", "0.5"]), &greedy).unwrap();
        assert_eq!((warm.temperature, warm.top_k), (0.5, 20));
        assert_eq!(from_flags(&flags(&[])).unwrap().temperature, 0.0);
    }

    #[test]
    fn a_wrong_value_of_the_checkpoint_is_not_blamed_on_a_flag() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(1000.0),
            ..GenerationDefaults::default()
        };
        let message = from_defaults(&flags(&[]), &defaults).unwrap_err().to_string();
        assert!(message.starts_with("generation_config.json"), "{message}");
        assert!(message.contains("temperature must be from 0 to 100 but is 1000"), "{message}");
        let message =
            from_defaults(&flags(&["--temperature", "101"]), &defaults).unwrap_err().to_string();
        assert!(message.starts_with("--temperature"), "{message}");
        assert!(from_defaults(&flags(&["--temperature", "1"]), &defaults).is_ok());
    }

    #[test]
    fn values_out_of_range_name_the_flag_and_the_bounds() {
        for (list, words) in [
            (["--temperature", "-1"], "--temperature must be from 0 to 100 but is -1"),
            (["--temperature", "NaN"], "--temperature must be"),
            (["--top-p", "1.5"], "--top-p must be from 0 to 1 but is 1.5"),
            (["--repetition-penalty", "0"], "--repetition-penalty must be"),
            (["--stop", ""], "stop strings"),
        ] {
            let message = check(&flags(&list)).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
