//! A counter-based source of choices.

use crate::toy::mix;

pub(crate) struct Random {
    pub(crate) seed: u64,
    pub(crate) count: u64,
}

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        (mix(self.seed, self.count) % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
