//! `calla bench`: prefill and decode in fresh processes, next to what the device can reach at most.

mod arm;
mod floor;
mod job;
mod limits;
mod manifest;
mod plot;
mod process;
mod report;

pub(crate) use arm::run as run_job;
pub(crate) use floor::read_rate;

use crate::bench_args::BenchArgs;
use crate::discover;
use crate::output;
use anyhow::{Context, bail};
use calla_model::Config;
use calla_model::format::AffineFormat;
use calla_weights::Checkpoint;
use job::{Ablation, Arm, Job, Kind, Measured, Reply, Survey};
use limits::Floors;
use manifest::{ArmRecord, Manifest};
use plot::Drawing;
use process::Processes;
use report::{AblationRow, ConcurrentRow, Report, Row, Skipped};
use std::path::{Path, PathBuf};

/// Lengths where none are given, on a GPU.
const CONTEXTS_GPU: [usize; 10] =
    [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// The same on a processor, which needs minutes for what follows.
const CONTEXTS_CPU: [usize; 4] = [256, 512, 1024, 2048];
/// The longest context at which several sequences and switches are measured.
const CONTEXT_OF_OTHERS: usize = 4096;

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let (dir, config) = discover::first_that_loads(args.model.model.as_deref(), |candidate, _| {
        Ok((candidate.dir.clone(), Checkpoint::open_config(&candidate.dir)?))
    })?;
    let device = args.model.device.to_string();
    let mut processes = Processes::new(dir, device, args.model.threads)?;
    let steps = args.steps as usize;
    let least = args.contexts.iter().min().map_or(CONTEXTS_CPU[0], |&n| n as usize);

    output::note("measuring what the device can do");
    let (reply, load) = processes.run(&Job::Survey { context: least + steps + 1 })?;
    if let Some(words) = load.words() {
        output::note(&format!("note: {words}; floors may be too low"));
    }
    let survey = match reply {
        Reply::Survey(survey) => survey,
        Reply::Refused(reason) => bail!("{reason}"),
        Reply::Measured(_) => bail!("a bench process did another job: this is a bug"),
    };
    processes.device.clone_from(&survey.device);
    let target = args.out.as_deref().map(|folder| Files::new(folder, args, &survey)).transpose()?;

    let plan = Plan::new(args, &config, kind(&survey.device));
    let mut bench = Bench { processes, plan: &plan, repeat: args.repeat.into(), records: vec![] };
    let figures = bench.measure()?;
    let records = std::mem::take(&mut bench.records);
    let rates = survey.rates.clone();
    let is_usual = config.quantization.default.is_none_or(|format| format == AffineFormat::Q4_64);
    let floors = if is_usual {
        Some(Floors::new(config.shape.clone(), survey.element_bytes, rates)?)
    } else {
        output::note("no floors: weights are not in the format that bytes are counted for");
        None
    };
    let manifest = Manifest { survey: &survey, shape: &config.shape, args, plan: &plan, records };
    let report = report(&plan, figures, floors.as_ref(), manifest.json()?)?;
    if let Some(files) = &target {
        files.write(&report, &survey.device_name)?;
    }
    if args.json { output::json(&report.json()) } else { output::styled(&report.markdown()) }
}

fn kind(device: &str) -> Kind {
    match device {
        "cpu" => Kind::Cpu,
        "metal" => Kind::Metal,
        "reference" => Kind::Reference,
        _ => Kind::Cuda,
    }
}

/// The arms, and what cannot be one.
struct Plan {
    contexts: Vec<usize>,
    arms: Vec<Arm>,
    /// Switches that the device has not, and why.
    unavailable: Vec<AblationRow>,
    skipped: Vec<Skipped>,
}

impl Plan {
    fn new(args: &BenchArgs, config: &Config, kind: Kind) -> Self {
        let steps = args.steps as usize;
        let longest = config.shape.max_positions;
        let mut contexts: Vec<usize> = args.contexts.iter().map(|&n| n as usize).collect();
        if contexts.is_empty() {
            let all: &[usize] = match kind {
                Kind::Cuda | Kind::Metal => &CONTEXTS_GPU,
                Kind::Cpu | Kind::Reference => &CONTEXTS_CPU,
            };
            contexts = all.to_vec();
        }
        contexts.sort_unstable();
        contexts.dedup();
        let arm = |context, sequences, ablation| Arm {
            context,
            steps,
            sequences,
            seed: args.seed,
            ablation,
        };
        let mut arms: Vec<Arm> = contexts.iter().map(|&context| arm(context, 1, None)).collect();
        let of_others = contexts.iter().rev().find(|&&n| n <= CONTEXT_OF_OTHERS);
        let of_others = of_others.or(contexts.first()).copied().unwrap_or(1);
        let mut concurrent: Vec<usize> = args.concurrent.iter().map(|&n| n as usize).collect();
        concurrent.sort_unstable();
        concurrent.dedup();
        // One sequence is among the others already.
        arms.extend(
            concurrent.iter().filter(|&&n| n > 1).map(|&sequences| arm(of_others, sequences, None)),
        );
        let mut unavailable = vec![];
        for ablation in if args.ablate { &Ablation::ALL[..] } else { &[] } {
            match ablation.unavailable(kind, config.shape.mtp_layers > 0) {
                None => arms.push(arm(of_others, 1, Some(*ablation))),
                Some(why) => unavailable.push(AblationRow::unavailable(*ablation, of_others, why)),
            }
        }
        let mut skipped = vec![];
        arms.retain(|arm| {
            let tokens = arm.context + steps + 1;
            let reason = format!(
                "it needs {tokens} tokens with the reply, but the model was made for at most {longest}"
            );
            let fits = tokens <= longest;
            if !fits {
                skipped.push(Skipped { context: arm.context, sequences: arm.sequences, reason });
            }
            fits
        });
        Self { contexts, arms, unavailable, skipped }
    }
}

/// What came of an arm.
#[derive(Clone, Debug, PartialEq)]
enum Figures {
    Measured(Vec<Measured>),
    Refused(String),
}

/// Measures arms in turn.
struct Bench<'a> {
    processes: Processes,
    plan: &'a Plan,
    repeat: usize,
    records: Vec<ArmRecord>,
}

impl Bench<'_> {
    /// Figures of each arm of the plan.
    fn measure(&mut self) -> anyhow::Result<Vec<Figures>> {
        let arms = &self.plan.arms;
        let mut figures = vec![Figures::Measured(vec![]); arms.len()];
        for round in 0..self.repeat {
            // Every other round goes the other way, so that a machine that becomes slower or faster favours no arm.
            let mut order: Vec<usize> = (0..arms.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let Figures::Measured(done) = &mut figures[index] else { continue };
                let arm = &arms[index];
                let name = words(arm);
                let (reply, load) = self
                    .processes
                    .run(&Job::Measure(arm.clone()))
                    .with_context(|| format!("measuring {name}"))?;
                let told = load.words().map(|words| format!("; note: {words}")).unwrap_or_default();
                match reply {
                    Reply::Measured(measured) => {
                        output::note(&format!(
                            "round {} of {}, {name}: first token after {:.0} ms, then {:.1} tokens/s{told}",
                            round + 1,
                            self.repeat,
                            measured.prefill_seconds * 1e3,
                            measured.decode_rate()
                        ));
                        let record = ArmRecord::new(round, arm, &measured, load);
                        self.records.push(record);
                        done.push(measured);
                        repeated_digest(&name, done)?;
                    }
                    Reply::Refused(reason) => {
                        output::note(&format!("skipping {name}: {reason}"));
                        figures[index] = Figures::Refused(reason);
                    }
                    Reply::Survey(_) => bail!("a bench process did another job: this is a bug"),
                }
            }
        }
        Ok(figures)
    }
}

fn words(arm: &Arm) -> String {
    let mut text = format!("context {}", arm.context);
    if arm.sequences > 1 {
        text += &format!(", {} sequences", arm.sequences);
    }
    if let Some(ablation) = arm.ablation {
        text += &format!(", {}", ablation.words());
    }
    text
}

/// The digest that all repetitions have.
///
/// # Errors
/// If one has another: a device that computes other things each time has no speed.
fn repeated_digest<'a>(arm: &str, done: &'a [Measured]) -> anyhow::Result<Option<&'a str>> {
    let Some(first) = done.first() else { return Ok(None) };
    match done.iter().position(|measured| measured.digest != first.digest) {
        Some(other) => bail!(
            "{arm}: the same prompt gave other tokens in another process: digest {} in round 1, {} in round {}",
            first.digest,
            done[other].digest,
            other + 1
        ),
        None => Ok(Some(&first.digest)),
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

fn median_of(done: &[Measured], value: impl Fn(&Measured) -> f64) -> Option<f64> {
    median(&mut done.iter().map(value).collect::<Vec<_>>())
}

/// A tenth of a token, or of a millisecond, is more than anybody can tell.
fn rounded(value: Option<f64>) -> Option<f64> {
    value.map(|value| (value * 10.0).round() / 10.0)
}

/// What a switch is compared with.
struct Usual {
    context: usize,
    prefill: Option<f64>,
    decode: Option<f64>,
    digest: Option<String>,
}

fn report(
    plan: &Plan,
    figures: Vec<Figures>,
    floors: Option<&Floors>,
    manifest: serde_json::Value,
) -> anyhow::Result<Report> {
    let mut report = Report {
        rows: vec![],
        concurrent: vec![],
        ablations: vec![],
        skipped: plan.skipped.clone(),
        manifest,
    };
    let mut usual: Vec<Usual> = vec![];
    for (arm, figures) in plan.arms.iter().zip(figures) {
        let (context, sequences) = (arm.context, arm.sequences);
        let done = match figures {
            Figures::Measured(done) => done,
            Figures::Refused(reason) => {
                if let Some(ablation) = arm.ablation {
                    report.ablations.push(AblationRow::unavailable(ablation, context, &reason));
                } else {
                    report.skipped.push(Skipped { context, sequences, reason });
                }
                continue;
            }
        };
        let digest = repeated_digest(&words(arm), &done)?.map(str::to_owned);
        let prefill = median_of(&done, |m| context as f64 / m.prefill_seconds);
        let decode = median_of(&done, Measured::decode_rate);
        let peak_memory_bytes = done.iter().filter_map(|m| m.peak_memory_bytes).max();
        let decode_floor = rounded(floors.and_then(|f| f.decode(sequences, context, arm.steps)));
        if let Some(ablation) = arm.ablation {
            let base = usual.iter().find(|usual| usual.context == context);
            let ratio = |value: Option<f64>, base: Option<f64>| {
                value.zip(base).map(|(value, base)| (value / base * 1e3).round() / 1e3)
            };
            report.ablations.push(AblationRow {
                prefill_tokens_per_s: rounded(prefill),
                decode_tokens_per_s: rounded(decode),
                prefill_ratio: base.and_then(|base| ratio(prefill, base.prefill)),
                decode_ratio: base.and_then(|base| ratio(decode, base.decode)),
                same_tokens: base.map(|base| base.digest == digest),
                unavailable: None,
                ..AblationRow::unavailable(ablation, context, "")
            });
        } else if sequences > 1 {
            report.concurrent.push(ConcurrentRow {
                sequences,
                context,
                decode_tokens_per_s: rounded(decode).unwrap_or_default(),
                decode_floor,
                peak_memory_bytes,
            });
        } else {
            report.rows.push(Row {
                context,
                prefill_tokens_per_s: rounded(prefill),
                decode_tokens_per_s: rounded(decode),
                prefill_floor: rounded(floors.and_then(|f| f.prefill(context))),
                decode_floor,
                time_to_first_token_ms: rounded(median_of(&done, |m| m.prefill_seconds * 1e3)),
                peak_memory_bytes,
            });
            usual.push(Usual { context, prefill, decode, digest });
        }
    }
    report.ablations.extend(plan.unavailable.iter().cloned());
    Ok(report)
}

/// Where the report goes.
struct Files {
    json: PathBuf,
    drawings: Vec<(Drawing, PathBuf)>,
}

impl Files {
    /// Names that are free.
    ///
    /// # Errors
    /// If a file is there already: nothing is replaced.
    fn new(folder: &Path, args: &BenchArgs, survey: &Survey) -> anyhow::Result<Self> {
        let name = args.name.clone().unwrap_or_else(|| slug(&survey.device_name));
        let drawings = if args.plot { &Drawing::ALL[..] } else { &[] };
        let path = |drawing: &Drawing| folder.join(format!("{name}-{}.svg", drawing.name()));
        let files = Self {
            json: folder.join(format!("{name}.json")),
            drawings: drawings.iter().map(|drawing| (*drawing, path(drawing))).collect(),
        };
        for path in files.drawings.iter().map(|(_, path)| path).chain([&files.json]) {
            if path.exists() {
                bail!("{} is there already; take it away, or give another --name", path.display());
            }
        }
        Ok(files)
    }

    fn write(&self, report: &Report, device: &str) -> anyhow::Result<()> {
        if let Some(folder) = self.json.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let text = format!("{}\n", serde_json::to_string_pretty(&report.json())?);
        write_new(&self.json, &text)?;
        for (drawing, path) in &self.drawings {
            write_new(path, &drawing.svg(&report.rows, device)?)?;
        }
        Ok(())
    }
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let file = std::fs::File::create_new(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    output::note(&format!("wrote {}", path.display()));
    Ok(())
}

/// A device's name as a file's.
fn slug(name: &str) -> String {
    let plain = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let parts: Vec<&str> = plain.split('-').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "device".to_owned() } else { parts.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(digest: &str, decode_seconds: f64) -> Measured {
        Measured {
            prefill_seconds: 0.5,
            decode_seconds,
            decoded_tokens: 64,
            digest: digest.to_owned(),
            peak_memory_bytes: None,
            load_seconds: 0.0,
        }
    }

    #[test]
    fn other_tokens_are_an_error_with_both_digests() {
        let same = [measured("aa", 1.0), measured("aa", 2.0)];
        assert_eq!(repeated_digest("context 8", &same).unwrap(), Some("aa"));
        let planted = [measured("aa", 1.0), measured("aa", 1.0), measured("ab", 1.0)];
        let error = repeated_digest("context 8", &planted).unwrap_err().to_string();
        for word in ["context 8", "digest aa in round 1", "ab in round 3"] {
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(repeated_digest("context 8", &[]).unwrap(), None);
    }

    #[test]
    fn figures_are_medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(median(&mut []), None);
        let done = [measured("a", 1.0), measured("a", 2.0), measured("a", 64.0)];
        assert_eq!(median_of(&done, Measured::decode_rate), Some(32.0));
    }

    #[test]
    fn a_switch_is_told_next_to_the_usual_way() {
        let arm = |ablation| Arm { context: 8, steps: 64, sequences: 1, seed: 1, ablation };
        let plan = Plan {
            contexts: vec![8],
            arms: vec![arm(None), arm(Some(Ablation::Threads)), arm(Some(Ablation::Speculation))],
            unavailable: vec![],
            skipped: vec![],
        };
        let figures = vec![
            Figures::Measured(vec![measured("a", 1.0)]),
            Figures::Measured(vec![measured("b", 2.0)]),
            Figures::Refused("3 GB are not there".to_owned()),
        ];
        let report = report(&plan, figures, None, serde_json::Value::Null).unwrap();
        assert_eq!(report.rows[0].decode_tokens_per_s, Some(64.0));
        assert_eq!(report.rows[0].decode_floor, None);
        let [threads, speculation] = &report.ablations[..] else { panic!("two switches") };
        assert_eq!((threads.decode_ratio, threads.prefill_ratio), (Some(0.5), Some(1.0)));
        assert_eq!(threads.same_tokens, Some(false));
        assert_eq!(speculation.unavailable.as_deref(), Some("3 GB are not there"));
    }

    #[test]
    fn names_of_devices_become_names_of_files() {
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug("Intel(R) Xeon(R) @ 2 GHz"), "intel-r-xeon-r-2-ghz");
        assert_eq!(slug("../"), "device");
    }
}
