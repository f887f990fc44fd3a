//! Clocks of processors, and floors.

use calla_model::Shape;
use std::hint::black_box;
use std::time::Instant;

/// GB/s of one thread that reads far more than the second-level cache holds, by its own CPU time.
pub(crate) fn read_bandwidth() -> f64 {
    let words = vec![1_u64; 1 << 27];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let clock = Clock::start();
        black_box(words.iter().fold(0_u64, |sum, &word| sum.wrapping_add(word)));
        best = best.min(clock.passed().processor);
    }
    (words.len() * 8) as f64 / best / 1e9
}

/// Seconds of wall clock and of processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds {
    /// That have passed.
    pub(crate) wall: f64,
    /// That all threads of the process have run for (Linux), or NaN.
    pub(crate) processor: f64,
}

/// Both clocks.
pub(crate) struct Clock {
    since: Instant,
    processor: f64,
}

impl Clock {
    /// Both clocks from now.
    pub(crate) fn start() -> Self {
        Self { processor: processor_seconds(), since: Instant::now() }
    }

    /// Since the start.
    pub(crate) fn passed(&self) -> Seconds {
        let wall = self.since.elapsed().as_secs_f64();
        Seconds { wall, processor: processor_seconds() - self.processor }
    }
}

/// Seconds that the threads of this process have run for. The kernel's figure moves in milliseconds for a
/// thread that runs on.
fn processor_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return f64::NAN;
    };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        // First field: nanoseconds on a processor.
        let schedule = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        schedule.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Distinct experts that `rows` independent rows meet on average when each chooses evenly.
pub(crate) fn distinct_experts(shape: &Shape, rows: usize) -> f64 {
    let (experts, top_k) = (shape.experts as f64, shape.top_k as f64);
    experts * (1.0 - (1.0 - top_k / experts).powi(rows as i32))
}
