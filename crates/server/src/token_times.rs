//! When the tokens of a turn came: those that a reply got together, from steps without the host or from drafts, took equally
//! long each.

use calla_engine::{Output, RequestId};
use std::collections::HashMap;
use std::time::Instant;

/// Times of the tokens of one turn.
pub(crate) struct TokenTimes {
    start: Instant,
    end: Instant,
    /// Tokens of each reply: told so far, and all.
    counts: HashMap<RequestId, (u32, u32)>,
}

impl TokenTimes {
    /// Those of a turn from `start` to `end`, of which all that came is at hand.
    pub(crate) fn new<'a>(
        outputs: impl IntoIterator<Item = &'a Output>,
        start: Instant,
        end: Instant,
    ) -> Self {
        let mut counts: HashMap<RequestId, (u32, u32)> = HashMap::new();
        for output in outputs {
            match output {
                Output::Token { id, .. } => counts.entry(*id).or_default().1 += 1,
                // The turn was for the prompt: what is behind it came at its end.
                Output::Prefill { id, .. } => counts.entry(*id).or_default().0 += 1,
                Output::Finished { .. } | Output::Failed { .. } => {}
            }
        }
        counts.retain(|_, (prefills, tokens)| *prefills == 0 && *tokens > 1);
        Self { start, end, counts }
    }

    /// When a reply's next token came.
    pub(crate) fn next(&mut self, id: RequestId) -> Instant {
        let Some((told, all)) = self.counts.get_mut(&id) else { return self.end };
        *told += 1;
        let turn = self.end.saturating_duration_since(self.start);
        self.start + turn.mul_f64((f64::from(*told) / f64::from(*all)).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn tokens_that_came_together_are_spread_over_their_turn() {
        let start = Instant::now();
        let [after_a_third, after_two] = [1, 2].map(|n| start + Duration::from_millis(10 * n));
        let end = start + Duration::from_millis(30);
        let token = |id| Output::Token { id: RequestId(id), token: 1, logprobs: None };
        let outputs = [
            token(1),
            token(2),
            Output::Prefill { id: RequestId(3), done: 5, total: 5 },
            token(3),
            token(3),
            token(1),
            token(1),
        ];
        let mut times = TokenTimes::new(&outputs, start, end);
        let mut next = |id| times.next(RequestId(id));
        assert_eq!([next(1), next(1), next(1)], [after_a_third, after_two, end]);
        assert_eq!([next(2), next(3), next(3)], [end; 3]);
        // A reply that this turn said nothing of.
        assert_eq!(next(4), end);
    }
}
