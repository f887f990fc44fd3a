//! `calla doctor`: what this machine can do, and whether it does it right.

mod bench;
mod devices;
mod facts;
mod kernels;
mod report;
mod scrub;

use crate::device::{Hardware, System, Wanted};
use crate::doctor_args::DoctorArgs;
use crate::{load, output};
use anyhow::bail;
use report::Report;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The measurements of all devices together, and of a model, take no longer.
const BENCH: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    if args.model.device == Wanted::Reference {
        bail!("--device reference is what others are held to: name another, or none for all");
    }
    let mut tell = |what: &str| output::note(what);
    let mut report = examine(System::new(&args.model)?, args, &mut tell)?;
    if let (Some(_), false) = (&args.model.model, args.no_bench) {
        tell("running the model");
        let loaded = load::load(&args.model, Some(bench::MODEL_CONTEXT));
        report.add_model(loaded.and_then(|mut loaded| {
            let speed = bench::model(loaded.runner.as_mut(), BENCH / 2)?;
            Ok((loaded.device, speed))
        }));
    }
    let report = report.scrubbed();
    if args.json {
        output::json(&report)?;
    } else {
        output::raw(&report.markdown())?;
    }
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("one thing is wrong: {}", report.problems[0]),
        count => bail!("{count} things are wrong, the first: {}", report.problems[0]),
    }
}

/// Looks at the devices that `args` ask for; the model is not touched.
fn examine(
    hardware: Arc<dyn Hardware>,
    args: &DoctorArgs,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<Report> {
    let wanted = args.model.device;
    let listed = match wanted {
        Wanted::Auto => {
            let mut all = vec![Wanted::Cpu, Wanted::Metal, Wanted::Cuda(0)];
            let others = hardware.gpus();
            all.extend(
                others.into_iter().filter(|gpu| !matches!(gpu, Wanted::Metal | Wanted::Cuda(0))),
            );
            all
        }
        named => vec![named],
    };
    let mut report = Report::new(facts::gather(&hardware.host()?));
    // A model takes half of the time.
    let share = if args.model.model.is_some() { BENCH / 2 } else { BENCH };
    let end = Instant::now() + share;
    for device in listed {
        let threads = args.model.threads.map_or(0, usize::from);
        let left = if args.no_bench {
            Duration::ZERO
        } else {
            end.saturating_duration_since(Instant::now()).min(share / 3)
        };
        let examined = match device {
            Wanted::Cpu => devices::cpu(threads, left, tell),
            gpu => devices::gpu(hardware.as_ref(), gpu, left, tell),
        };
        report.add(examined, wanted != Wanted::Auto);
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
