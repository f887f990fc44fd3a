//! A fixed number of equal things, handed out with reference counts: KV pages and state slots.

use std::ops::Range;

/// Indices `0..len`, each free or held by one or more owners.
#[derive(Clone, Debug)]
pub struct Pool {
    owners: Vec<u32>,
    free: Vec<usize>,
}

impl Pool {
    /// All free.
    #[must_use]
    pub fn new(len: usize) -> Self {
        // Reversed, so that low indices are handed out first.
        Self { owners: vec![0; len], free: (0..len).rev().collect() }
    }

    /// Takes a free one, with one owner.
    pub fn take(&mut self) -> Option<usize> {
        let index = self.free.pop()?;
        self.owners[index] = 1;
        Some(index)
    }

    /// Adds an owner.
    ///
    /// # Panics
    /// If nobody holds it: a use after release.
    pub fn share(&mut self, index: usize) {
        assert!(self.owners[index] > 0, "sharing {index}, which is free");
        self.owners[index] += 1;
    }

    /// Drops an owner; with the last one it becomes free.
    ///
    /// # Panics
    /// If nobody holds it: a double release.
    pub fn release(&mut self, index: usize) {
        assert!(self.owners[index] > 0, "releasing {index}, which is free");
        self.owners[index] -= 1;
        if self.owners[index] == 0 {
            self.free.push(index);
        }
    }

    /// Owners of one.
    #[must_use]
    pub fn owners(&self, index: usize) -> u32 {
        self.owners[index]
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there are none at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The free ones, as ascending ranges that do not touch.
    #[must_use]
    pub fn free_ranges(&self) -> Vec<Range<usize>> {
        let free = |&index: &usize| self.owners[index] == 0;
        let mut ranges: Vec<Range<usize>> = vec![];
        for index in (0..self.len()).filter(free) {
            match ranges.last_mut().filter(|range| range.end == index) {
                Some(range) => range.end += 1,
                None => ranges.push(index..index + 1),
            }
        }
        ranges
    }

    /// How many are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_things_are_freed_with_their_last_owner() {
        let mut pool = Pool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((a, b, pool.take()), (0, 1, None));
        pool.share(a);
        pool.release(a);
        assert_eq!((pool.free(), pool.owners(a)), (0, 1));
        pool.release(a);
        assert_eq!(pool.take(), Some(a));
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is meant")]
    fn free_things_come_as_ranges() {
        let mut pool = Pool::new(6);
        assert_eq!(pool.free_ranges(), [0..6]);
        assert_eq!(std::iter::from_fn(|| pool.take()).count(), 6);
        assert_eq!(pool.free_ranges(), []);
        for index in [4, 1, 2, 0] {
            pool.release(index);
        }
        assert_eq!(pool.free_ranges(), [0..3, 4..5]);
        pool.take();
        assert_eq!(pool.free_ranges(), [1..3, 4..5]);
        assert_eq!(Pool::new(0).free_ranges(), []);
    }

    #[test]
    #[should_panic(expected = "releasing 0, which is free")]
    fn a_double_release_is_a_bug() {
        Pool::new(1).release(0);
    }
}
