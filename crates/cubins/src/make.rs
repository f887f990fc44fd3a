//! Pipelines, compiled for architectures.

use anyhow::{Result, anyhow};
use calla_gpu::Dispatch;
use calla_gpu_cuda::archive::Pipelines;
use calla_gpu_cuda::{Architecture, Compiler, Library, Source};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// GPUs that there are, by compute capability.
const GPUS: [(u32, u32); 11] =
    [(8, 0), (8, 6), (8, 7), (8, 8), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)];

/// The fewest architectures whose machine code runs on all GPUs from 8.0 on but systems on a chip, as (major, minor).
pub const USUAL: [(u32, u32); 4] = [(8, 0), (9, 0), (10, 0), (12, 0)];

/// GPUs that take machine code for `architecture` where there is some for each of `all`.
pub fn served(
    architecture: Architecture,
    all: &BTreeSet<Architecture>,
) -> impl Iterator<Item = Architecture> {
    let gpus = GPUS.into_iter().map(|(major, minor)| Architecture { major, minor });
    gpus.filter(move |&gpu| {
        let nearest = all.iter().filter(|other| other.runs_on(gpu)).max();
        nearest == Some(&architecture)
    })
}

/// Sources of the pipelines that `dispatches` need on any of `gpus`: which kernels have twins there depends on their memory,
/// and comparisons (`calla bench --ablate`) do without any.
///
/// # Errors
/// If a kernel cannot be translated, or there is none of a name.
pub fn sources(
    dispatches: &[Dispatch],
    gpus: impl Iterator<Item = Architecture>,
) -> Result<Vec<Source>> {
    let memories: BTreeSet<u32> = gpus.map(Architecture::block_memory).collect();
    let mut sources = HashMap::new();
    for memory in memories.into_iter().map(Some).chain([None]) {
        let library = Library::new(memory)?;
        for dispatch in dispatches {
            let source = library
                .source(dispatch)
                .map_err(|reason| anyhow!("{}: {reason}", dispatch.entry))?;
            sources.insert(source.key(), source);
        }
    }
    Ok(sources.into_values().collect())
}

/// Compiles sources side by side, those of one file after another.
///
/// # Errors
/// What the compiler said of one.
pub fn compile(
    compiler: &Compiler,
    mut sources: Vec<Source>,
    architecture: Architecture,
) -> Result<Pipelines> {
    sources.sort_by(|a, b| (a.entry, &a.text).cmp(&(b.entry, &b.text)));
    let next = Mutex::new(sources.iter());
    let done = Mutex::new(Ok(Pipelines::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let source = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(source) = source else { break };
                    let code = compiler.compile(source.file, &source.text, architecture);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match (code, &mut *done) {
                        (Ok(code), Ok(pipelines)) => drop(pipelines.insert(source.key(), code)),
                        (Err(reason), Ok(_)) => {
                            *done = Err(anyhow!("{}, {architecture}: {reason}", source.entry));
                        }
                        (_, Err(_)) => break,
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
