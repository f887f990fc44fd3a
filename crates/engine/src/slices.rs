//! How many rows of prompts a step takes: as many as the device is measured to do in the time it may take.
//!
//! A cancel waits for the step on the device, and so does a display whose GPU it is. Budgets choose how many cuts run in
//! one step and never where they lie, so they change no result.

use crate::recent::Recent;
use calla_model::shape::PAGE_TOKENS;

/// A larger budget is taken when it is expected to need no more than this part of the time, so that noise does not move
/// the budget to and fro.
const MARGIN: f64 = 0.8;

/// Sizes slices from measured time.
#[derive(Clone, Debug)]
pub(crate) struct SliceSizer {
    rows_max: usize,
    /// Seconds that a step should take at most; `None`: the budget stays at its maximum.
    target_seconds: Option<f64>,
    rows: usize,
    /// Seconds per row of the last steps at this budget.
    measured: Recent,
}

impl SliceSizer {
    /// Begins with the largest budget: it is what the device is set up for, a step of it is soon measured, and to begin
    /// with little would make the first reply of a fast device wait.
    pub(crate) fn new(rows_max: usize, target_seconds: Option<f64>) -> Self {
        Self { rows_max, target_seconds, rows: rows_max, measured: Recent::default() }
    }

    /// Rows of prompts that the next step may take: the maximum, or one page's rows times a power of two below it. Few
    /// values, because a GPU records a plan for each number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Learns from a step with `rows` rows of prompts.
    pub(crate) fn measured(&mut self, rows: usize, seconds: f64) {
        let Some(target) = self.target_seconds else { return };
        if rows == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        // What a step costs whatever its rows weighs more in a small one: it shows that the device is slow only if it took
        // too long itself.
        if rows * 2 < self.rows && seconds <= target {
            return;
        }
        self.measured.add(seconds / rows as f64);
        let Some(seconds_per_row) = self.measured.usual() else { return };
        let fits = |rows: usize, seconds: f64| rows as f64 * seconds_per_row <= seconds;
        let mut next = self.rows;
        while !fits(next, target) && next > self.rows_min() {
            next = self.below(next);
        }
        // One at a time: twice the rows take at most about twice the time, which is no more than was expected here.
        if next == self.rows && fits(self.above(next), MARGIN * target) {
            next = self.above(next);
        }
        if next != self.rows {
            self.rows = next;
            self.measured.clear();
        }
    }

    fn rows_min(&self) -> usize {
        PAGE_TOKENS.min(self.rows_max)
    }

    /// The next smaller budget.
    fn below(&self, rows: usize) -> usize {
        let mut below = self.rows_min();
        while below * 2 < rows {
            below *= 2;
        }
        below
    }

    /// The next larger budget.
    fn above(&self, rows: usize) -> usize {
        if rows == self.rows_max { rows } else { (rows * 2).min(self.rows_max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: f64 = 0.2;

    /// Budgets of so many steps that are as long as they may be.
    fn budgets(sizer: &mut SliceSizer, steps: usize, seconds: impl Fn(usize) -> f64) -> Vec<usize> {
        let step = |_| {
            let rows = sizer.rows();
            sizer.measured(rows, seconds(rows));
            rows
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn a_slow_device_gets_what_it_does_in_time() {
        let mut sizer = SliceSizer::new(2048, Some(TARGET));
        // 128 rows take 0.128 s.
        assert_eq!(
            budgets(&mut sizer, 6, |rows| rows as f64 * 1e-3),
            [2048, 2048, 128, 128, 128, 128]
        );
        let mut sizer = SliceSizer::new(2048, Some(TARGET));
        assert!(budgets(&mut sizer, 100, |_| 9.0).ends_with(&[64]), "never less than a page");
    }

    #[test]
    fn a_fast_device_keeps_its_maximum_and_gets_it_back() {
        let mut sizer = SliceSizer::new(1000, Some(TARGET));
        assert_eq!(budgets(&mut sizer, 9, |rows| rows as f64 * 1e-4), [1000; 9]);
        budgets(&mut sizer, 4, |rows| rows as f64 * 1e-2);
        assert_eq!(sizer.rows(), 64);
        let grown = budgets(&mut sizer, 10, |rows| rows as f64 * 1e-4);
        assert_eq!(grown, [64, 64, 128, 128, 256, 256, 512, 512, 1000, 1000]);
        assert_eq!(sizer.below(1000), 512);
    }

    #[test]
    fn one_step_that_was_held_up_decides_nothing() {
        let mut sizer = SliceSizer::new(512, Some(TARGET));
        for at in 0..40 {
            let rows = sizer.rows();
            sizer.measured(rows, if at % 3 == 0 { 30.0 } else { rows as f64 * 3e-4 });
            assert_eq!(sizer.rows(), 512, "{at}");
        }
    }

    #[test]
    fn what_says_nothing_is_ignored() {
        let mut sizer = SliceSizer::new(512, Some(TARGET));
        for (rows, seconds) in [(10, 0.19), (0, 9.0), (512, f64::NAN), (512, -1.0), (512, 0.0)] {
            (0..5).for_each(|_| sizer.measured(rows, seconds));
            assert_eq!(sizer.rows(), 512, "{rows} {seconds}");
        }
        // A few rows that take too long do say something.
        (0..5).for_each(|_| sizer.measured(10, 0.5));
        assert_eq!(sizer.rows(), 64);
        let mut fixed = SliceSizer::new(512, None);
        assert_eq!(budgets(&mut fixed, 5, |_| 9.0), [512; 5]);
        let mut least = SliceSizer::new(1, Some(TARGET));
        assert_eq!(budgets(&mut least, 5, |_| 9.0), [1; 5]);
    }

    #[test]
    fn noise_does_not_move_the_budget_to_and_fro() {
        let mut sizer = SliceSizer::new(1024, Some(TARGET));
        let mut changes = 0;
        for at in 0..200_u32 {
            let rows = sizer.rows();
            // Up to a tenth more or less.
            let noise = 0.9 + f64::from(at * 7919 % 21) / 100.0;
            sizer.measured(rows, rows as f64 * 7.0e-4 * noise);
            changes += usize::from(sizer.rows() != rows);
        }
        assert_eq!((sizer.rows(), changes), (256, 1));
    }
}
