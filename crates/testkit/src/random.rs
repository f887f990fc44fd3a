//! A seeded generator of random numbers and activations.
//!
//! SplitMix64 (Steele et al., 2014), written out: the generators of `rand` may change their sequence from
//! one version to the next, and a failing seed must stay one. Statistical finesse is not needed here.

use calla_ops::Rows;
use std::ops::RangeInclusive;

/// A random sequence that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of a seed and a label: independent of how much others have drawn.
    #[must_use]
    pub fn labelled(seed: u64, label: &str) -> Self {
        // FNV-1a.
        let hash = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash ^ Self(seed).bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer of a range.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn range(&mut self, range: RangeInclusive<usize>) -> usize {
        let span =
            (range.end().checked_sub(*range.start()).expect("a range that is not empty")) + 1;
        range.start() + (self.bits() % span as u64) as usize
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.range(1..=n) == 1
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1_u64 << 24) as f32;
        low + (high - low) * unit
    }

    /// Mean 0, standard deviation 1, within 6: a sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform(-0.5, 0.5)).sum()
    }

    /// One element.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.range(0..=of.len() - 1)]
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            let j = self.range(0..=i);
            list.swap(i, j);
        }
    }

    /// `count` different numbers below `below`, in random order.
    pub fn distinct(&mut self, count: usize, below: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..below).collect();
        self.shuffle(&mut all);
        all.truncate(count);
        all
    }

    /// Activations with mean 0 and standard deviation `scale`. One row in eight has an outlier of ten times
    /// that, as real residual streams do.
    pub fn rows(&mut self, rows: usize, cols: usize, scale: f32) -> Rows {
        let mut x = Rows::from_vec(cols, (0..rows * cols).map(|_| scale * self.normal()).collect());
        for row in 0..rows {
            if self.one_in(8) {
                let col = self.range(0..=cols - 1);
                x.row_mut(row)[col] = 10.0 * scale;
            }
        }
        x
    }

    /// Token ids.
    pub fn tokens(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        (0..count).map(|_| self.range(0..=vocab_size - 1) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        // The published test vector of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
        assert_ne!(Random::labelled(1, "a").bits(), Random::labelled(1, "b").bits());
        assert_ne!(Random::labelled(1, "a").bits(), Random::labelled(2, "a").bits());
    }

    #[test]
    fn normal_numbers_are_normal_enough() {
        let mut random = Random::new(1);
        let draws: Vec<f32> = (0..20_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f32>() / 20_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
