//! How much goes into one command buffer: as much as the GPU is measured to do in a tenth of a second.
//!
//! macOS stops a command buffer that runs for seconds, and the display waits for one that does not end.

use calla_gpu::Dispatch;

/// Seconds that a command buffer should take.
const TARGET_SECONDS: f64 = 0.1;
/// Floating-point operations that take about as long as a byte from memory.
const FLOPS_PER_BYTE: u64 = 16;
/// Work of a command buffer until something was measured: what an M1 moves in some 15 ms.
const FIRST_WORK: u64 = 1 << 30;
/// A command buffer of less work says little about the speed of more.
const MEASURED_WORK_MIN: u64 = 1 << 24;

/// Sizes command buffers from measured time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    work_limit: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { work_limit: FIRST_WORK }
    }
}

impl Pace {
    /// Work of a dispatch, in bytes from memory that take about as long.
    #[must_use]
    pub fn work(dispatch: &Dispatch) -> u64 {
        let bytes = dispatch.traffic.read.saturating_add(dispatch.traffic.written);
        bytes.max(dispatch.flops / FLOPS_PER_BYTE)
    }

    /// How many of the `stages` of `dispatches` the next command buffer takes: at least one.
    #[must_use]
    pub fn stages(&self, dispatches: &[Dispatch], stages: &[usize]) -> usize {
        let (mut taken, mut first, mut work) = (0, 0, 0_u64);
        for &count in stages {
            let stage = &dispatches[first..first + count];
            work = stage.iter().map(Self::work).fold(work, u64::saturating_add);
            if taken > 0 && work > self.work_limit {
                break;
            }
            (taken, first) = (taken + 1, first + count);
        }
        taken
    }

    /// Learns from a command buffer. Half way at a time: one that was held up by others should not decide.
    pub fn measured(&mut self, work: u64, gpu_seconds: f64) {
        if work < MEASURED_WORK_MIN || !gpu_seconds.is_finite() || gpu_seconds <= 0.0 {
            return;
        }
        let due = (work as f64 / gpu_seconds * TARGET_SECONDS).max(MEASURED_WORK_MIN as f64);
        self.work_limit = f64::midpoint(self.work_limit as f64, due) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_gpu::{BufferId, Dtype, Tensor};

    fn dispatch(bytes: u32) -> Dispatch {
        Dispatch::new("copy").read(Tensor::whole(BufferId(0), 1, bytes / 4, Dtype::F32))
    }

    #[test]
    fn stages_are_taken_up_to_the_limit_and_never_none() {
        let pace = Pace { work_limit: 100 };
        let all = [dispatch(40), dispatch(40), dispatch(40), dispatch(400)];
        assert_eq!(pace.stages(&all, &[1, 1, 1, 1]), 2);
        assert_eq!(pace.stages(&all, &[2, 1, 1]), 1);
        assert_eq!(pace.stages(&all[3..], &[1]), 1);
        assert_eq!(pace.stages(&all, &[4]), 1);
        assert_eq!(pace.stages(&[], &[]), 0);
        assert_eq!(Pace::work(&dispatch(40).flops(16_000)), 1000);
    }

    #[test]
    fn the_limit_follows_what_was_measured() {
        let mut pace = Pace::default();
        for _ in 0..30 {
            // 1 GB a second.
            pace.measured(50_000_000, 0.05);
        }
        assert!((99_000_000..=101_000_000).contains(&pace.work_limit), "{pace:?}");
        let before = pace.work_limit;
        for (work, seconds) in [(1000, 1.0), (1 << 30, 0.0), (1 << 30, f64::NAN), (1 << 30, -1.0)] {
            pace.measured(work, seconds);
        }
        assert_eq!(pace.work_limit, before);
        for _ in 0..60 {
            pace.measured(1 << 30, 1e9);
        }
        assert!(pace.work_limit >= MEASURED_WORK_MIN);
    }
}
