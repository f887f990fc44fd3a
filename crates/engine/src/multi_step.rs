//! How many decode steps follow one another without the host: as many as the device is measured to do in the time for which
//! a token may wait.
//!
//! Tokens of such steps are handed out together, and a cancel or a new request waits for all of them. How many run at once
//! changes no result.

use crate::recent::Recent;
use calla_ops::MultiStepLimits;
use std::collections::BTreeMap;

/// Multi-step decode, as an engine is set up for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiStepConfig {
    /// What the device can do.
    pub limits: MultiStepLimits,
    /// Seconds that steps without the host should take together at most.
    pub seconds_max: f64,
}

impl MultiStepConfig {
    /// Seconds for which nobody notices that a token waits: some thirty deliveries a second look even.
    pub const SECONDS_MAX: f64 = 0.03;
}

/// Sizes multi-step decodes from measured time.
#[derive(Clone, Debug)]
pub(crate) struct MultiStepSizer {
    config: Option<MultiStepConfig>,
    /// Seconds of the last decode steps by their number of rows.
    measured: BTreeMap<usize, Recent>,
}

impl MultiStepSizer {
    pub(crate) fn new(config: Option<MultiStepConfig>) -> Self {
        Self { config, measured: BTreeMap::new() }
    }

    /// Steps of `rows` rows that may follow one another, at least 1. It is 1 until as many rows are measured.
    pub(crate) fn steps(&self, rows: usize) -> usize {
        let usual = self.measured.get(&rows).and_then(Recent::usual);
        let (Some(config), Some(seconds)) = (self.config, usual) else { return 1 };
        // A float beyond the integers becomes the largest of them.
        let in_time = (config.seconds_max / seconds) as usize;
        in_time.clamp(1, config.limits.steps_max.max(1))
    }

    /// Learns from a step of `rows` rows, all of them decodes without drafts, or from several of which each took `seconds`.
    pub(crate) fn measured(&mut self, rows: usize, seconds: f64) {
        if self.config.is_none() || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        self.measured.entry(rows).or_default().add(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizer(seconds_max: f64) -> MultiStepSizer {
        let limits = MultiStepLimits { steps_max: 16, top_k_max: 64 };
        MultiStepSizer::new(Some(MultiStepConfig { limits, seconds_max }))
    }

    #[test]
    fn steps_fit_the_time_for_their_rows() {
        let mut sizer = sizer(0.03);
        assert_eq!(sizer.steps(1), 1, "nothing is measured");
        for (rows, seconds, steps) in [(1, 0.0042, 7), (8, 0.016, 1), (2, 0.001, 16), (3, 9.0, 1)] {
            sizer.measured(rows, seconds);
            assert_eq!(sizer.steps(rows), 1, "one measurement may be a plan's recording");
            sizer.measured(rows, seconds);
            assert_eq!(sizer.steps(rows), steps, "{rows} rows");
        }
        assert_eq!(sizer.steps(1), 7, "others were measured since");
    }

    #[test]
    fn one_step_that_was_held_up_decides_nothing_and_a_slower_device_does() {
        let mut sizer = sizer(0.03);
        for seconds in [0.003, 0.003, 2.0, 0.003, 0.003, 2.0] {
            sizer.measured(1, seconds);
            assert!([1, 10].contains(&sizer.steps(1)));
        }
        assert_eq!(sizer.steps(1), 10);
        sizer.measured(1, 0.01);
        sizer.measured(1, 0.01);
        assert_eq!(sizer.steps(1), 3);
    }

    #[test]
    fn what_says_nothing_is_ignored() {
        let mut unlimited = sizer(f64::INFINITY);
        for seconds in [f64::NAN, -1.0, 0.0, f64::INFINITY] {
            unlimited.measured(1, seconds);
            unlimited.measured(1, seconds);
            assert_eq!(unlimited.steps(1), 1, "{seconds}");
        }
        (0..2).for_each(|_| unlimited.measured(1, 0.5));
        assert_eq!(unlimited.steps(1), 16);
        let mut off = MultiStepSizer::new(None);
        (0..2).for_each(|_| off.measured(1, 1e-6));
        assert_eq!(off.steps(1), 1);
    }
}
