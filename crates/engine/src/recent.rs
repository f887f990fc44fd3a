//! What something usually took of late.

use std::collections::VecDeque;

/// Measurements that the usual one is the median of. With three, one that was held up (another program had the device)
/// decides nothing.
const MEASURED: usize = 3;

/// The last measurements, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent(VecDeque<f64>);

impl Recent {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push_back(value);
        if self.0.len() > MEASURED {
            self.0.pop_front();
        }
    }

    /// The median of what was measured, of two the smaller; of one, nothing is known.
    pub(crate) fn usual(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        (sorted.len() >= 2).then(|| sorted[(sorted.len() - 1) / 2])
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
