//! The process of one arm: a model is loaded, run once to warm up, and run again with a clock.

use super::floor;
use super::job::{Ablation, Arm, Job, Measured, Reply, Survey};
use crate::args::ModelArgs;
use crate::bench_args::BenchJobArgs;
use crate::device::{Gpu, Hardware, System, Unusable, Wanted, cuda};
use crate::load::{self, Wish};
use crate::output;
use anyhow::{Context, bail, ensure};
use calla_cpu::Isa;
use calla_engine::{CutRule, Machine, Output, Refusal, Request, RequestId, Speculation};
use calla_gpu::DeviceError;
use calla_gpu_cuda::{CudaDevice, Options, Replay};
use calla_model::shape::PAGE_TOKENS;
use calla_runtime::{Driver, Limits, Turn, engine_config};
use std::sync::Arc;
use std::time::Instant;

/// Does a job, and prints what came of it.
pub(crate) fn run(args: BenchJobArgs) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(&args.job).context("the job of a bench process")?;
    let result = match &job {
        Job::Survey { context } => survey(&args.model, *context).map(Reply::Survey),
        Job::Measure(arm) => measure(args.model, arm).map(Reply::Measured),
    };
    let reply = match result {
        Err(error) if does_not_fit(&error) => Reply::Refused(output::chain(&error)),
        result => result?,
    };
    output::json(&reply)
}

fn does_not_fit(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Refusal>()
            || matches!(
                cause.downcast_ref(),
                Some(DeviceError::OutOfMemory { .. } | DeviceError::OverLimit(_))
            )
    })
}

fn survey(args: &ModelArgs, context: usize) -> anyhow::Result<Survey> {
    let mut chosen = load::choose(args, context)?;
    let available = chosen.memory.available;
    let (rates, threads) = match (&mut chosen.gpu, chosen.wanted) {
        (Some(gpu), _) => (floor::gpu(gpu.device(), &chosen.device_name, available)?, None),
        (None, Wanted::Reference) => (floor::cpu(1, available), Some(1)),
        (None, _) => {
            let all = || std::thread::available_parallelism().map_or(1, usize::from);
            let threads = args.threads.map_or_else(all, usize::from);
            (floor::cpu(threads, available), Some(threads))
        }
    };
    Ok(Survey {
        device: chosen.wanted.to_string(),
        device_name: chosen.device_name,
        threads,
        element_bytes: chosen.element_bytes,
        rates,
        model_name: chosen.model_name,
        model_digest: chosen.model_digest,
    })
}

/// This machine, with a CUDA driver that has something switched off.
struct Switched(Option<Ablation>);

impl Hardware for Switched {
    fn host(&self) -> anyhow::Result<Machine> {
        System::default().host()
    }

    fn gpus(&self) -> Vec<Wanted> {
        System::default().gpus()
    }

    fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable> {
        let Wanted::Cuda(ordinal) = wanted else { return System::default().open(wanted) };
        let mut options = Options { ordinal, ..Options::default() };
        match self.0 {
            Some(Ablation::Twins) => options.no_twins = true,
            Some(Ablation::DependentLaunch) => options.no_early_start = true,
            Some(Ablation::GraphReplay) => options.replay = Replay::Launches,
            _ => {}
        }
        cuda(&options)
    }
}

fn measure(mut args: ModelArgs, arm: &Arm) -> anyhow::Result<Measured> {
    let mut speculation = Speculation::Off;
    match arm.ablation {
        Some(Ablation::Threads) => args.threads = Some(1),
        Some(Ablation::VectorInstructions) => args.isa = Some(Isa::Portable),
        Some(Ablation::Speculation) => speculation = Speculation::Adaptive(2),
        _ => {}
    }
    let start = Instant::now();
    let free_before = free_gpu_memory(args.device);
    let (sequences, tokens) = (arm.sequences, arm.context + arm.steps + 1 + slack(arm));
    // Sequences share no page.
    let context = tokens.next_multiple_of(PAGE_TOKENS) * sequences;
    let wish = Wish { context, sequences, speculation };
    let loaded = load::load_for_bench(&args, Arc::new(Switched(arm.ablation)), wish)?;
    let limits = Limits {
        context: loaded.context,
        running_max: sequences,
        queue_max: sequences,
        speculation,
        fast_cache: false,
    };
    let vocab = loaded.config.shape.vocab_size;
    let mut config = engine_config(loaded.runner.as_ref(), CutRule::new(vec![]), limits);
    if arm.ablation == Some(Ablation::TokenFeedback) {
        config.multi_step = None;
    }
    let no_grammars = Box::new(|_: &_| Err("no grammar is measured".to_owned()));
    let mut driver = Driver::new(loaded.runner, config, no_grammars, None.into())?;
    let load_seconds = start.elapsed().as_secs_f64();

    let prompts: Vec<Vec<u32>> =
        (0..sequences).map(|i| prompt(arm.seed, i, arm.context, vocab)).collect();
    let warm = generate(&mut driver, &prompts, arm)?;
    driver.engine().forget_memory();
    let timed = generate(&mut driver, &prompts, arm)?;
    let [first, digest] = [&warm, &timed].map(|run| digest(&run.tokens, arm.steps + 1));
    ensure!(
        first == digest,
        "the same prompt gave other tokens when it was run again in one process: digest {first}, then {digest}"
    );
    let gpu_bytes = free_before
        .zip(free_gpu_memory(args.device))
        .map(|(before, after)| before.saturating_sub(after));
    let is_host = matches!(args.device, Wanted::Cpu | Wanted::Reference);
    Ok(Measured {
        prefill_seconds: timed.prefill_seconds,
        decode_seconds: timed.decode_seconds,
        decoded_tokens: timed.decoded_tokens,
        digest,
        peak_memory_bytes: if is_host { peak_resident_bytes() } else { gpu_bytes },
        load_seconds,
    })
}

/// Tokens that the first of several sequences may decode until the last one has begun: one in each step that reads a
/// prompt, of which each has fewer rows than the smallest slice for the sequences that decode.
fn slack(arm: &Arm) -> usize {
    if arm.sequences == 1 { 0 } else { arm.sequences * (arm.context.div_ceil(128) + 2) }
}

/// Pseudo-random ids of sequence `sequence`: SplitMix64.
fn prompt(seed: u64, sequence: usize, tokens: usize, vocab: usize) -> Vec<u32> {
    let mut state = seed.wrapping_add((sequence as u64) << 32);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab as u64) as u32
    };
    (0..tokens).map(|_| next()).collect()
}

/// FNV-1a of the first `count` tokens of each sequence.
fn digest(tokens: &[Vec<u32>], count: usize) -> String {
    let bytes =
        tokens.iter().flat_map(|ids| ids.iter().take(count)).flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// A run, and what it took.
struct Run {
    tokens: Vec<Vec<u32>>,
    prefill_seconds: f64,
    decode_seconds: f64,
    decoded_tokens: usize,
}

/// Runs all prompts at once, until each has `steps` tokens after the moment at which the last one had its first.
fn generate(driver: &mut Driver, prompts: &[Vec<u32>], arm: &Arm) -> anyhow::Result<Run> {
    let start = Instant::now();
    let mut ids: Vec<RequestId> = vec![];
    for prompt in prompts {
        let most = arm.steps + 1 + slack(arm);
        let request = Request { ignore_eos: true, ..Request::new(prompt.clone(), most) };
        ids.push(driver.engine().submit(request)?);
    }
    let mut tokens = vec![vec![]; prompts.len()];
    let count = |tokens: &[Vec<u32>]| tokens.iter().map(Vec::len).sum::<usize>();
    // When the last sequence had its first token, and how many all had then.
    let mut begun: Option<(Instant, usize)> = None;
    let enough = arm.steps + 1;
    while tokens.iter().any(|ids| ids.len() < enough) {
        if driver.turn(true) == Turn::Idle {
            bail!("sequences ended before each had {enough} tokens: this is a bug");
        }
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Token { id, token, .. } => {
                    let index = ids.iter().position(|&other| other == id);
                    tokens[index.context("a token of a request that was not made")?].push(token);
                }
                Output::Prefill { .. } => {}
                Output::Finished { usage, .. } => {
                    let reused = usage.reuse.reused;
                    ensure!(
                        reused == 0,
                        "{reused} tokens of the prompt were not computed but reused: this is a bug"
                    );
                    ensure!(
                        begun.is_some(),
                        "a sequence ended before the last one began, so that they did not all run at once: this is a bug"
                    );
                }
                Output::Failed { failure, .. } => return Err(failure.into()),
            }
        }
        if begun.is_none() && tokens.iter().all(|ids| !ids.is_empty()) {
            begun = Some((Instant::now(), count(&tokens)));
        }
    }
    let end = Instant::now();
    let (first, before) = begun.context("no sequence has begun: this is a bug")?;
    let decoded_tokens = count(&tokens) - before;
    ids.iter().for_each(|&id| driver.engine().cancel(id));
    while driver.turn(true) != Turn::Idle {}
    while driver.engine().poll().is_some() {}
    Ok(Run {
        tokens,
        prefill_seconds: (first - start).as_secs_f64(),
        decode_seconds: (end - first).as_secs_f64(),
        decoded_tokens,
    })
}

/// Bytes that are free on a CUDA GPU.
fn free_gpu_memory(device: Wanted) -> Option<u64> {
    let Wanted::Cuda(ordinal) = device else { return None };
    CudaDevice::free_memory(&Options { ordinal, ..Options::default() }).ok()
}

/// The most that this process had in memory at once, mapped files included. Linux tells.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_depend_on_seed_and_sequence_alone() {
        let ids = prompt(1, 0, 100, 1000);
        assert_eq!(ids, prompt(1, 0, 100, 1000));
        assert!(ids.iter().all(|&id| id < 1000));
        assert_ne!(ids, prompt(2, 0, 100, 1000));
        assert_ne!(ids, prompt(1, 1, 100, 1000));
        // A longer prompt begins with a shorter one.
        assert_eq!(ids[..50], prompt(1, 0, 50, 1000));
    }

    #[test]
    fn digests_tell_tokens_apart() {
        // FNV-1a of nothing, as published.
        assert_eq!(digest(&[], 8), "cbf29ce484222325");
        let tokens = vec![vec![1, 2, 3], vec![4, 5]];
        assert_eq!(digest(&tokens, 2), digest(&[vec![1, 2], vec![4, 5]], 2));
        assert_ne!(digest(&tokens, 3), digest(&tokens, 2));
        assert_ne!(digest(&tokens, 2), digest(&[vec![1, 2], vec![4, 6]], 2));
    }
}
