//! `calla synth`: a random checkpoint of any shape of the family.

use crate::args::SynthArgs;
use crate::machine::bytes;
use crate::output;
use anyhow::{Context, bail};
use calla_model::{Config, Shape};
use calla_weights::synth::{self, Options};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::time::Instant;

/// Layers of the published model.
const FULL_LAYERS: usize = 40;

/// Runs the command.
pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<()> {
    if !(0.0..=100.0).contains(&args.skew) {
        bail!("--skew must be from 0 to 100 but is {}", args.skew);
    }
    let options = Options {
        shape: shape(&args.shape)?,
        seed: args.seed,
        mtp: args.mtp,
        skew: args.skew,
        tokenizer: args.tokenizer.clone(),
    };
    // Hidden where standard error is no terminal.
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    )?);
    let start = Instant::now();
    let made = synth::synth(&options, &args.out, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    output::raw(&format!(
        "{}: {} tensors, {} in {} {}, {seconds:.2} s, {:.2} GB/s\n",
        args.out.display(),
        made.tensors,
        bytes(made.bytes),
        made.files,
        if made.files == 1 { "file" } else { "files" },
        made.bytes as f64 / 1e9 / seconds.max(1e-9)
    ))
}

/// `demo`, `full`, `full-N`, or the shape in a config.json.
fn shape(text: &str) -> anyhow::Result<Shape> {
    match text {
        "demo" => return Ok(Shape::demo()),
        "full" => return Ok(Shape::full(FULL_LAYERS)),
        _ => {}
    }
    if let Some(layers) = text.strip_prefix("full-") {
        return match layers.parse() {
            Ok(layers @ 1..=FULL_LAYERS) => Ok(Shape::full(layers)),
            _ => bail!("--shape {text}: the layers must be a number from 1 to {FULL_LAYERS}"),
        };
    }
    let config = fs::read_to_string(text).with_context(|| {
        format!("--shape {text} is none of demo, full and full-N, and cannot be read as a file")
    })?;
    Ok(Config::parse(&config).with_context(|| format!("--shape {text}"))?.shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_names_or_are_files() {
        assert_eq!(shape("demo").unwrap(), Shape::demo());
        assert_eq!(shape("full").unwrap().layers.len(), 40);
        assert_eq!(shape("full-4").unwrap(), Shape::full(4));
        for (text, words) in [
            ("full-0", "from 1 to 40"),
            ("full-x", "from 1 to 40"),
            ("/no/such/config.json", "none of demo, full"),
        ] {
            let message = shape(text).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/config.json");
        assert_eq!(shape(demo).unwrap(), Shape::demo());
    }
}
