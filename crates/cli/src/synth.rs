//! `calla synth`: a random checkpoint of any shape of the family.

use crate::args::SynthArgs;
use crate::machine::bytes;
use crate::output;
use anyhow::{Context, bail};
use calla_model::{Config, Shape};
use calla_weights::synth::{self, Options};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Layers of the published model.
const FULL_LAYERS: usize = 40;
/// A longer file is no config.json.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

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
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the program where it is.
        flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())?;
        flag::register(signal, stop.clone())?;
    }
    let start = Instant::now();
    let made = synth::synth(&options, &args.out, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    if made.is_err() && stop.load(Ordering::Relaxed) {
        bail!("stopped; what was written into {} is removed", args.out.display());
    }
    let made = made?;
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
    let config = read_config(text).with_context(|| {
        format!("--shape {text} is none of demo, full and full-N, and cannot be read as a file")
    })?;
    Ok(Config::parse(&config).with_context(|| format!("--shape {text}"))?.shape)
}

fn read_config(path: &str) -> anyhow::Result<String> {
    // Asked before it is opened: to open a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        bail!("it is not a regular file");
    }
    let mut config = String::new();
    File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut config)?;
    if config.len() as u64 > CONFIG_BYTES_MAX {
        bail!("it is longer than {CONFIG_BYTES_MAX} bytes");
    }
    Ok(config)
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
            ("/dev/zero", "not a regular file"),
            (env!("CARGO_MANIFEST_DIR"), "not a regular file"),
        ] {
            let message = format!("{:#}", shape(text).unwrap_err());
            assert!(message.contains(words), "{message}");
        }
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/config.json");
        assert_eq!(shape(demo).unwrap(), Shape::demo());
    }
}
