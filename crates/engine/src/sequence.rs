//! One request on its way: its tokens, its state, and what it does next.

use crate::cuts::Cut;
use crate::prefix_cache::{CacheKey, Reuse};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::{History, Sampling};
use std::collections::VecDeque;

/// Identifies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Who may share its prefixes.
    pub key: CacheKey,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most. KV pages for prompt and reply are reserved at admission.
    pub max_tokens: usize,
    /// Tokens that end the reply; they are not part of it.
    pub stop_ids: Vec<u32>,
    /// Ids below this can be chosen; rows of the vocabulary beyond it are padding.
    pub vocab_used: usize,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

/// A request that waits or runs.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// Prompt, then reply.
    pub(crate) tokens: Vec<u32>,
    /// Cuts inside the prompt that are still ahead.
    pub(crate) cuts: VecDeque<Cut>,
    /// Positions, a subset of the cuts ahead, where a snapshot is to be taken.
    pub(crate) snapshots: VecDeque<usize>,
    pub(crate) history: History,
    pub(crate) reuse: Reuse,
    pub(crate) cancelled: bool,
    /// Its state; `None` while it waits.
    pub(crate) state: Option<SequenceState>,
}

/// State of a running sequence.
#[derive(Clone, Debug)]
pub(crate) struct SequenceState {
    pub(crate) slot: usize,
    pub(crate) pages: Vec<usize>,
    /// Tokens that the state covers.
    pub(crate) done: usize,
}

/// Rows that a sequence wants to run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The last row's logits choose a token.
    pub(crate) output: bool,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: Request) -> Self {
        Self {
            id,
            tokens: request.prompt.clone(),
            history: History::of_prompt(&request.prompt),
            request,
            cuts: VecDeque::new(),
            snapshots: VecDeque::new(),
            reuse: Reuse::default(),
            cancelled: false,
            state: None,
        }
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.request.prompt.len()
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len()
    }

    /// KV pages that it may come to need.
    pub(crate) fn pages_max(&self, context: usize) -> usize {
        let tokens = self.prompt_len().saturating_add(self.request.max_tokens);
        tokens.min(context).div_ceil(PAGE_TOKENS)
    }

    /// Whether it still computes its prompt.
    pub(crate) fn in_prefill(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.done < self.prompt_len())
    }

    /// Its next rows, at most `rows_max` of them where it can choose: a slice of the prompt that ends at a
    /// cut or at the prompt's end, or the one token that was chosen last.
    pub(crate) fn next_work(&self, rows_max: usize) -> Work {
        let state = self.state.as_ref().expect("a running sequence");
        let start = state.done;
        if !self.in_prefill() {
            return Work { start, end: start + 1, output: true };
        }
        let limit = self.snapshots.front().copied().unwrap_or(self.prompt_len());
        let ends = self.cuts.iter().map(|cut| cut.position).take_while(|&p| p < limit);
        let mut end = None;
        for cut in ends.chain([limit]) {
            // At least one cut's worth runs, so that progress is made whatever the budget.
            if end.is_some() && cut - start > rows_max {
                break;
            }
            end = Some(cut);
        }
        let end = end.expect("the limit is one");
        Work { start, end, output: end == self.prompt_len() }
    }

    /// Records that the state covers `end` tokens now.
    pub(crate) fn advance_to(&mut self, end: usize) {
        self.state.as_mut().expect("a running sequence").done = end;
        while self.cuts.front().is_some_and(|cut| cut.position <= end) {
            self.cuts.pop_front();
        }
    }
}

/// Where snapshots of a prompt are taken, resuming from `reused` tokens: at the end of the system part (the
/// second marker), at the last three markers (last user turn, tool result, generation prompt), every
/// `interval` tokens, and where this prompt leaves an earlier one (`common`), since more may leave there.
pub(crate) fn snapshot_positions(
    cuts: &[Cut],
    reused: usize,
    common: usize,
    interval: usize,
) -> VecDeque<usize> {
    let markers: Vec<usize> = cuts.iter().filter(|c| c.at_marker).map(|c| c.position).collect();
    let mut positions: Vec<usize> = markers.iter().copied().take(1).collect();
    positions.extend(markers.iter().rev().take(3));
    positions.extend(cuts.iter().map(|c| c.position).rfind(|&p| p <= common));
    let mut last = reused;
    for cut in cuts {
        if cut.position >= last + interval {
            positions.push(cut.position);
            last = cut.position;
        }
    }
    positions.retain(|&p| p > reused);
    positions.sort_unstable();
    positions.dedup();
    positions.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuts::CutRule;

    #[test]
    fn snapshots_lie_where_a_later_request_can_branch() {
        let mut prompt = vec![1_u32; 5000];
        for marker in [0, 100, 4000, 4500, 4900] {
            prompt[marker] = 9;
        }
        let cuts = CutRule::new(vec![9]).cuts(&prompt);
        let all = snapshot_positions(&cuts, 0, 0, 2048);
        assert_eq!(all, [100, 2084, 4000, 4192, 4500, 4900]);
        assert_eq!(snapshot_positions(&cuts, 4500, 4600, 2048), [4564, 4900]);
    }

    #[test]
    fn slices_end_at_cuts_whatever_the_budget() {
        let request = Request {
            prompt: vec![1; 300],
            key: CacheKey::default(),
            sampling: Sampling::greedy(),
            max_tokens: 10,
            stop_ids: vec![],
            vocab_used: 10,
        };
        let mut sequence = Sequence::new(RequestId(0), request);
        sequence.cuts = CutRule::default().cuts(&sequence.tokens).into();
        sequence.state = Some(SequenceState { slot: 0, pages: vec![], done: 0 });
        let mut ends = vec![];
        for budget in [1, 64, 130, 1000] {
            let work = sequence.next_work(budget);
            ends.push((work.end, work.output));
            sequence.advance_to(work.end);
        }
        assert_eq!(ends, [(64, false), (128, false), (256, false), (300, true)]);
        assert_eq!(sequence.next_work(5), Work { start: 300, end: 301, output: true });
    }
}
