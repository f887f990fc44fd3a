//! Where a prompt may be cut: a pure function of its tokens.
//!
//! Warm output equals cold output bit for bit because cut points never depend on load, timing or what is
//! cached. A cut lies before each marker token (one that opens a turn or a tool result) and at every
//! multiple of 64 tokens counted from the last marker. Load and time only choose how many cuts run in one
//! slice; state is only ever kept at a cut.

use calla_model::shape::PAGE_TOKENS;

/// Tokens that open a part of the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutRule {
    markers: Vec<u32>,
}

/// A place between two tokens where state may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tokens before it.
    pub position: usize,
    /// A marker token follows: a later request can branch here.
    pub at_marker: bool,
}

impl CutRule {
    /// Cuts before each of `markers`.
    #[must_use]
    pub fn new(markers: Vec<u32>) -> Self {
        Self { markers }
    }

    /// All cuts inside `tokens`, in order; neither the start nor the end is one.
    #[must_use]
    pub fn cuts(&self, tokens: &[u32]) -> Vec<Cut> {
        let mut cuts = Vec::new();
        let mut last_marker = 0;
        for (position, token) in tokens.iter().enumerate() {
            let at_marker = self.markers.contains(token);
            if position > 0 && (at_marker || (position - last_marker).is_multiple_of(PAGE_TOKENS)) {
                cuts.push(Cut { position, at_marker });
            }
            if at_marker {
                last_marker = position;
            }
        }
        cuts
    }

    /// Where the first part of a prompt (its system message and tools) ends: before the first marker but the one
    /// that opens it.
    #[must_use]
    pub fn first_part(&self, tokens: &[u32]) -> usize {
        let later = tokens.iter().skip(1).position(|token| self.markers.contains(token));
        later.map_or(tokens.len(), |i| i + 1)
    }

    /// Markers among `tokens`: the number of the message that a position lies in.
    #[must_use]
    pub fn markers_in(&self, tokens: &[u32]) -> usize {
        tokens.iter().filter(|t| self.markers.contains(t)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_lie_before_markers_and_at_multiples_counted_from_them() {
        let mut tokens = vec![1; 300];
        tokens[0] = 9;
        tokens[10] = 9;
        tokens[200] = 9;
        let cuts = CutRule::new(vec![9]).cuts(&tokens);
        let positions: Vec<usize> = cuts.iter().map(|c| c.position).collect();
        assert_eq!(positions, [10, 74, 138, 200, 264]);
        assert!(cuts[0].at_marker && !cuts[1].at_marker && cuts[3].at_marker);
    }

    #[test]
    fn cuts_of_a_prefix_are_a_prefix_of_the_cuts() {
        let tokens: Vec<u32> = (0..500).map(|i| (i * 7919 % 31) as u32).collect();
        let rule = CutRule::new(vec![3, 17]);
        let all = rule.cuts(&tokens);
        for len in 0..tokens.len() {
            let own = rule.cuts(&tokens[..len]);
            assert_eq!(own, all[..own.len()], "{len}");
            assert!(all.get(own.len()).is_none_or(|cut| cut.position >= len));
        }
    }
}
