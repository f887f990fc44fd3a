//! `calla eval`: teacher-forced comparison with reference logits.

use crate::args::EvalArgs;
use crate::{load, output};
use anyhow::{Context, bail};
use calla_eval::{Options, evaluate, read_goldens};
use std::time::Instant;

/// Runs the command.
pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<()> {
    if !(args.margin >= 0.0 && args.margin.is_finite()) {
        bail!("--margin must be a number from 0 up but is {}", args.margin);
    }
    // Asked before it is opened: to open a pipe would wait for its writer.
    if std::fs::metadata(&args.goldens).is_ok_and(|file| !file.is_file()) {
        bail!("{} is not a regular file", args.goldens.display());
    }
    let goldens = read_goldens(&args.goldens)?;
    let longest = goldens.iter().map(|golden| golden.ids.len()).max().unwrap_or(0);
    let mut loaded = load::load(&args.model, Some(longest))?;
    let start = Instant::now();
    let options = Options { margin: args.margin, ..Options::default() };
    let metrics = evaluate(loaded.runner.as_mut(), &goldens, options)
        .with_context(|| format!("cannot compare with {}", args.goldens.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!("{} positions in {seconds:.2} s on {}", metrics.positions, loaded.device);
    if args.json {
        return output::json(&metrics);
    }
    let mut text = String::new();
    let serde_json::Value::Object(fields) = serde_json::to_value(metrics)? else {
        bail!("metrics are not an object: this is a bug");
    };
    for (name, value) in fields {
        text += &format!("{name:<22}{value}\n");
    }
    output::raw(&text)
}
