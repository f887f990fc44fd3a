//! What has to be known to repeat a measurement: machine, program, model, settings, and each process that ran.
//!
//! Nothing in it tells whose machine it was: no path, no name of a host or a user.

use super::Plan;
use super::job::{Arm, Measured, Survey};
use super::process::ForeignLoad;
use crate::bench_args::BenchArgs;
use crate::machine::processor;
use anyhow::Context;
use calla_model::Shape;
use serde::Serialize;
use serde_json::{Value, json};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// One process that measured an arm.
#[derive(Debug, Serialize)]
pub(super) struct ArmRecord {
    /// From 1 on.
    round: usize,
    context: usize,
    sequences: usize,
    /// What was switched.
    ablation: Option<&'static str>,
    prefill_seconds: f64,
    decode_seconds: f64,
    decoded_tokens: usize,
    digest: String,
    peak_memory_bytes: Option<u64>,
    load_seconds: f64,
    foreign: ForeignLoad,
}

impl ArmRecord {
    /// Of an arm in a round, counted from 0.
    pub(super) fn new(round: usize, arm: &Arm, measured: &Measured, foreign: ForeignLoad) -> Self {
        Self {
            round: round + 1,
            context: arm.context,
            sequences: arm.sequences,
            ablation: arm.ablation.map(|ablation| ablation.name()),
            prefill_seconds: measured.prefill_seconds,
            decode_seconds: measured.decode_seconds,
            decoded_tokens: measured.decoded_tokens,
            digest: measured.digest.clone(),
            peak_memory_bytes: measured.peak_memory_bytes,
            load_seconds: measured.load_seconds,
            foreign,
        }
    }
}

/// What a manifest is made of.
pub(super) struct Manifest<'a> {
    pub(super) survey: &'a Survey,
    pub(super) shape: &'a Shape,
    pub(super) args: &'a BenchArgs,
    pub(super) plan: &'a Plan,
    pub(super) records: Vec<ArmRecord>,
}

impl Manifest<'_> {
    /// The manifest.
    ///
    /// # Errors
    /// If the program cannot read itself.
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        let Self { survey, shape, args, plan, records } = self;
        let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        // What the system does not tell is unknown.
        let system = System::new_with_specifics(what).ok();
        let foreign = records.iter().filter(|record| record.foreign.words().is_some()).count();
        // Unknown where the program was not built from a repository.
        let commit = Some(env!("CALLA_COMMIT")).filter(|&commit| commit != "unknown");
        Ok(json!({
            "machine": {
                "device": survey.device_name,
                "cpu": processor(),
                "cores": std::thread::available_parallelism().map_or(1, usize::from),
                "memory_bytes": system.as_ref().map(System::total_memory),
                "os": System::long_os_version().ok(),
                "kernel": System::kernel_version().ok(),
                "architecture": std::env::consts::ARCH,
            },
            "program": {
                "version": env!("CARGO_PKG_VERSION"),
                "commit": commit,
                "blake3": own_digest()?,
                "debug_assertions": cfg!(debug_assertions),
            },
            "model": {
                "name": survey.model_name,
                "shape": shape.to_string(),
                "digest": survey.model_digest,
            },
            "settings": {
                "device": survey.device,
                "threads": survey.threads,
                "contexts": plan.contexts,
                "steps": args.steps,
                "seed": args.seed,
                "repetitions": args.repeat,
                "sampling": "greedy",
                "speculation": "off",
                "prompt": "ids of SplitMix64",
                "warm_up": "the same prompt and steps in the same process, forgotten before the clock starts",
            },
            "rates": survey.rates,
            "arms_with_foreign_load": foreign,
            "arms": records,
        }))
    }
}

fn own_digest() -> anyhow::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut file = std::fs::File::open(program).context("cannot read this program")?;
    std::io::copy(&mut file, &mut hasher).context("cannot read this program")?;
    Ok(hasher.finalize().to_hex().to_string())
}
