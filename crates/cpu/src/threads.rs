//! Distribution of independent tasks over threads.
//!
//! What a task computes never depends on which thread runs it or on how many there are.

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Work below this many nanoseconds is done by the caller: waking threads costs tens of microseconds.
const PARALLEL_FROM: usize = 60_000;

/// A pool, or just the calling thread.
pub(crate) struct Threads {
    pool: Option<ThreadPool>,
    count: usize,
}

/// The threads could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {threads} CPU threads; ask for fewer")]
pub struct ThreadsError {
    threads: usize,
    source: ThreadPoolBuildError,
}

impl Threads {
    /// `count` threads; 0 means all that the machine offers this process.
    pub(crate) fn new(count: usize) -> Result<Self, ThreadsError> {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        if count == 1 {
            return Ok(Self { pool: None, count });
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("calla-cpu-{i}"))
            .build()
            .map_err(|source| ThreadsError { threads: count, source })?;
        Ok(Self { pool: Some(pool), count })
    }

    /// Number of threads.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Runs `task(0)`, .., `task(tasks - 1)`. `nanoseconds` estimates them all on one thread.
    pub(crate) fn for_each(
        &self,
        tasks: usize,
        nanoseconds: usize,
        task: impl Fn(usize) + Send + Sync,
    ) {
        match &self.pool {
            Some(pool) if tasks > 1 && nanoseconds >= PARALLEL_FROM => {
                pool.install(|| (0..tasks).into_par_iter().for_each(task));
            }
            _ => (0..tasks).for_each(task),
        }
    }

    /// Runs `task(i, item i)` for each item.
    pub(crate) fn for_each_mut<T: Send>(
        &self,
        items: &mut [T],
        nanoseconds: usize,
        task: impl Fn(usize, &mut T) + Send + Sync,
    ) {
        match &self.pool {
            Some(pool) if items.len() > 1 && nanoseconds >= PARALLEL_FROM => {
                pool.install(|| {
                    items.par_iter_mut().enumerate().for_each(|(i, item)| task(i, item));
                });
            }
            _ => items.iter_mut().enumerate().for_each(|(i, item)| task(i, item)),
        }
    }

    /// Runs `task(i, chunk i)` for each chunk of `len` values.
    pub(crate) fn for_each_chunk(
        &self,
        values: &mut [f32],
        len: usize,
        nanoseconds: usize,
        task: impl Fn(usize, &mut [f32]) + Send + Sync,
    ) {
        let len = len.max(1);
        match &self.pool {
            Some(pool) if values.len() > len && nanoseconds >= PARALLEL_FROM => {
                pool.install(|| {
                    values.par_chunks_mut(len).enumerate().for_each(|(i, chunk)| task(i, chunk));
                });
            }
            _ => values.chunks_mut(len).enumerate().for_each(|(i, chunk)| task(i, chunk)),
        }
    }
}
