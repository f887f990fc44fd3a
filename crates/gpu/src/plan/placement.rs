//! Offsets in one arena for tensors that do not live all at once.

/// Tensors start at multiples of this many bytes: what Metal asks of bound offsets, and a multiple of a cache line.
pub(super) const ALIGNMENT: u64 = 256;

/// When a tensor must keep its values, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// The first stage that touches it.
    pub(super) first: u32,
    /// The last one. Dispatches of a stage may run at once, so that it is still needed all through that stage.
    pub(super) last: u32,
    /// Its bytes, a multiple of [`ALIGNMENT`].
    pub(super) bytes: u64,
}

impl Lifetime {
    /// In how many stages it lives.
    fn stages(&self) -> u64 {
        u64::from(self.last - self.first) + 1
    }
}

/// Where tensors lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// First byte of each.
    pub(super) offsets: Vec<u64>,
    /// Bytes of the arena.
    pub(super) peak: u64,
}

/// Gives tensors that live at the same time bytes of their own.
///
/// To find the least peak is NP-hard. This takes the tensors one after the other, puts each into the smallest gap among
/// those that live with it, and keeps the best of a few orders.
pub(super) fn place(tensors: &[Lifetime]) -> Placement {
    let stages = Stages::new(tensors);
    let least = stages.most_alive(tensors);
    let keys: [fn(&Lifetime) -> [u64; 2]; 4] = [
        |tensor| [tensor.bytes, tensor.stages()],
        |tensor| [tensor.stages(), tensor.bytes],
        |tensor| [tensor.bytes * tensor.stages(), tensor.bytes],
        |tensor| [u64::from(u32::MAX - tensor.first), tensor.bytes],
    ];
    let mut best = place_by(tensors, &stages, keys[0]);
    for &key in &keys[1..] {
        if best.peak > least {
            let other = place_by(tensors, &stages, key);
            best = if other.peak < best.peak { other } else { best };
        }
    }
    best
}

/// Which tensors live in each stage, so that a tensor is compared only with those that live with it.
struct Stages {
    /// All that live in a stage.
    alive: Vec<Vec<usize>>,
    /// Those of them that begin there.
    begin: Vec<Vec<usize>>,
}

impl Stages {
    fn new(tensors: &[Lifetime]) -> Self {
        let count = tensors.iter().map(|tensor| tensor.last as usize + 1).max().unwrap_or(0);
        let mut stages = Self { alive: vec![vec![]; count], begin: vec![vec![]; count] };
        for (index, tensor) in tensors.iter().enumerate() {
            stages.begin[tensor.first as usize].push(index);
            for alive in &mut stages.alive[tensor.first as usize..=tensor.last as usize] {
                alive.push(index);
            }
        }
        stages
    }

    /// Most bytes that live in one stage. No placement has a lower peak.
    fn most_alive(&self, tensors: &[Lifetime]) -> u64 {
        let bytes = |alive: &Vec<usize>| alive.iter().map(|&index| tensors[index].bytes).sum();
        self.alive.iter().map(bytes).max().unwrap_or(0)
    }

    /// Those that live at a time with a tensor, itself among them.
    fn with(&self, tensor: &Lifetime) -> impl Iterator<Item = usize> {
        let (first, last) = (tensor.first as usize, tensor.last as usize);
        let later = self.begin[first..=last].iter().skip(1).flatten();
        self.alive[first].iter().chain(later).copied()
    }
}

/// Places tensors of larger keys first.
fn place_by(tensors: &[Lifetime], stages: &Stages, key: fn(&Lifetime) -> [u64; 2]) -> Placement {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(key(&tensors[index])));
    let mut offsets: Vec<Option<u64>> = vec![None; tensors.len()];
    let mut peak = 0;
    for index in order {
        let tensor = &tensors[index];
        let bytes_of = |other: usize| Some((offsets[other]?, tensors[other].bytes));
        let mut taken: Vec<(u64, u64)> = stages.with(tensor).filter_map(bytes_of).collect();
        taken.sort_unstable();
        let mut best: Option<(u64, u64)> = None;
        let mut end = 0;
        for (offset, bytes) in taken {
            let gap = offset.saturating_sub(end);
            if gap >= tensor.bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(offset + bytes);
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        offsets[index] = Some(offset);
        peak = peak.max(offset + tensor.bytes);
    }
    Placement { offsets: offsets.into_iter().flatten().collect(), peak }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_testkit::Random;

    /// How far above the least possible peak random tensors may end: the worst of 2000 sets is 1.15, their mean 1.014.
    const PEAK_OVER_LEAST: f64 = 1.2;

    fn check(tensors: &[Lifetime], placement: &Placement) {
        let end = |index: usize| placement.offsets[index] + tensors[index].bytes;
        assert_eq!(placement.peak, (0..tensors.len()).map(end).max().unwrap_or(0));
        for a in 0..tensors.len() {
            assert!(placement.offsets[a].is_multiple_of(ALIGNMENT));
            for b in 0..a {
                let together =
                    tensors[a].first <= tensors[b].last && tensors[b].first <= tensors[a].last;
                let apart = end(a) <= placement.offsets[b] || end(b) <= placement.offsets[a];
                assert!(apart || !together, "{tensors:?} {placement:?}");
            }
        }
    }

    fn random(seed: u64) -> Vec<Lifetime> {
        let mut random = Random::new(seed);
        let stages = random.range(1..=100);
        // Mostly short lives, as those of activations.
        let longest = *random.pick(&[2, 4, 100]);
        let tensor = |_| {
            let first = random.range(0..=stages - 1);
            let last = first + random.range(0..=(stages - 1 - first).min(longest));
            let bytes = random.range(1..=40) as u64 * ALIGNMENT;
            Lifetime { first: first as u32, last: last as u32, bytes }
        };
        let count = seed as usize % 150;
        (0..count).map(tensor).collect()
    }

    #[test]
    fn the_peak_is_close_to_the_least() {
        let mut worst = 1.0_f64;
        for seed in 0..2000 {
            let tensors = random(seed);
            let placement = place(&tensors);
            check(&tensors, &placement);
            let least = Stages::new(&tensors).most_alive(&tensors);
            let over = if least > 0 { placement.peak as f64 / least as f64 } else { 1.0 };
            worst = worst.max(over);
        }
        assert!(worst <= PEAK_OVER_LEAST, "{worst}");
    }
}
