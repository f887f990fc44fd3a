//! How many tokens to draft: chosen from measured acceptance and cost, down to none.
//!
//! Verifying `k` drafts gives `1 + p1 + p1 p2 + ...` tokens on average, where `p_j` is the measured share of
//! accepted drafts at place `j` (of those whose predecessors were accepted). Divided by the measured seconds
//! of drafting and verifying, this is a speed, and the depth with the highest wins. Costs are kept per number
//! of decoding sequences, for what one sequence gains by sharing weights, many have already.
//!
//! Depth never changes what is generated: a draft is kept only if it is the very token that the sampler
//! chooses from the network's own logits, which are the same bit for bit in a batch of any size.

/// How deep drafts may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// No drafts.
    Off,
    /// Always so many.
    Fixed(usize),
    /// Up to so many, as measurements say.
    Adaptive(usize),
}

impl Speculation {
    /// The deepest that drafts can go.
    #[must_use]
    pub fn depth_max(self) -> usize {
        match self {
            Self::Off => 0,
            Self::Fixed(depth) | Self::Adaptive(depth) => depth,
        }
    }
}

/// Sequences beyond this share the costs of this many.
const SEQUENCES_MAX: usize = 8;
/// Measurements of a depth before its average counts.
const TRIALS: u64 = 3;
/// Every so many steps another depth than the best is tried, in case the world has changed.
const RETRIAL_INTERVAL: u64 = 128;
/// Weight of the newest measurement in an average.
const NEWEST: f64 = 0.1;

/// A running average that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: f64,
    count: u64,
}

impl Average {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let weight = NEWEST.max(1.0 / self.count as f64);
        self.value += weight * (value - self.value);
    }
}

/// Measurements of one engine.
#[derive(Clone, Debug)]
pub(crate) struct DepthChooser {
    mode: Speculation,
    /// Seconds of a round by sequences and depth.
    costs: Vec<Vec<Average>>,
    /// Share of accepted drafts by place.
    accepted: Vec<Average>,
    rounds: u64,
    /// Which retrial this round is, if it is one.
    retrial: Option<u64>,
}

impl DepthChooser {
    pub(crate) fn new(mode: Speculation) -> Self {
        let depth_max = mode.depth_max();
        Self {
            mode,
            costs: vec![vec![Average::default(); depth_max + 1]; SEQUENCES_MAX],
            accepted: vec![Average::default(); depth_max],
            rounds: 0,
            retrial: None,
        }
    }

    /// How many tokens to draft for each of `sequences` decoding sequences.
    pub(crate) fn depth(&self, sequences: usize) -> usize {
        let costs = match (self.mode, sequences) {
            (Speculation::Off, _) | (_, 0) => return 0,
            (Speculation::Fixed(depth), _) => return depth,
            (Speculation::Adaptive(_), n) => &self.costs[n.min(SEQUENCES_MAX) - 1],
        };
        if let Some(untried) = costs.iter().position(|cost| cost.count < TRIALS) {
            return untried;
        }
        if let Some(retrial) = self.retrial {
            return retrial as usize % costs.len();
        }
        let mut best = (0, 0.0);
        let (mut tokens, mut chance) = (1.0, 1.0);
        for (depth, cost) in costs.iter().enumerate() {
            if depth > 0 {
                chance *= self.accepted[depth - 1].value;
                tokens += chance;
            }
            let speed = tokens / cost.value.max(1e-9);
            if speed > best.1 {
                best = (depth, speed);
            }
        }
        best.0
    }

    /// So many rounds (drafts, if any, and the step that verified them) were run at once, and each took so long, if that is
    /// known.
    pub(crate) fn measured(
        &mut self,
        sequences: usize,
        depth: usize,
        rounds: usize,
        seconds: Option<f64>,
    ) {
        let retrials = self.rounds / RETRIAL_INTERVAL;
        self.rounds += rounds as u64;
        let now = self.rounds / RETRIAL_INTERVAL;
        self.retrial = (now > retrials).then_some(now);
        if let Some(seconds) = seconds
            && let Some(costs) =
                sequences.min(SEQUENCES_MAX).checked_sub(1).map(|i| &mut self.costs[i])
            && let Some(cost) = costs.get_mut(depth)
        {
            cost.add(seconds);
        }
    }

    /// Of `proposed` drafts of a sequence, the first `accepted` were kept.
    pub(crate) fn verified(&mut self, proposed: usize, accepted: usize) {
        let places = self.accepted.iter_mut().take(proposed.min(accepted + 1));
        for (place, share) in places.enumerate() {
            share.add(f64::from(u8::from(place < accepted)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The depth in use after many rounds in a world of given costs, where every draft is accepted with the
    /// chance `one_in` says.
    fn settles_at(
        cost_of: impl Fn(usize) -> f64,
        accepted_of: impl Fn(u64, usize) -> usize,
    ) -> usize {
        let mut chooser = DepthChooser::new(Speculation::Adaptive(3));
        for round in 0..1000 {
            let depth = chooser.depth(1);
            chooser.measured(1, depth, 1, Some(cost_of(depth)));
            chooser.verified(depth, accepted_of(round, depth));
        }
        chooser.depth(1)
    }

    #[test]
    fn the_fastest_depth_wins() {
        let all = |_, depth| depth;
        let first = |_, depth: usize| depth.min(1);
        let none = |_, _| 0;
        let cheap = |depth: usize| 1.0 + 0.1 * depth as f64;
        let dear = |depth: usize| 1.0 + 1.1 * depth as f64;
        assert_eq!(settles_at(cheap, all), 3);
        assert_eq!(settles_at(cheap, first), 1);
        assert_eq!(settles_at(cheap, none), 0);
        assert_eq!(settles_at(dear, all), 0, "speculation turns itself off");
        assert_eq!(settles_at(|d| 1.0 + 0.45 * d as f64, |round, d| d.min(round as usize % 2)), 1);
    }

    #[test]
    fn off_is_off_and_fixed_is_fixed() {
        assert_eq!(DepthChooser::new(Speculation::Off).depth(1), 0);
        let mut fixed = DepthChooser::new(Speculation::Fixed(2));
        fixed.measured(9, 2, 1, Some(5.0));
        fixed.verified(2, 0);
        assert_eq!((fixed.depth(1), fixed.depth(0)), (2, 0));
    }

    #[test]
    fn a_changed_world_is_noticed() {
        let mut chooser = DepthChooser::new(Speculation::Adaptive(1));
        let mut run = |cost: f64, rounds: usize| {
            for _ in 0..rounds {
                let depth = chooser.depth(2);
                chooser.measured(2, depth, 1, Some(if depth == 1 { cost } else { 1.0 }));
                chooser.verified(depth, depth);
            }
            chooser.depth(2)
        };
        assert_eq!(run(5.0, 300), 0);
        assert_eq!(run(1.1, 30 * RETRIAL_INTERVAL as usize + 1), 1);
    }
}
