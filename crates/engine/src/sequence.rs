//! One request on its way: its tokens, its state, and what it does next.

use crate::cuts::Cut;
use crate::prefix_cache::{Reuse, Saved};
use crate::request::{FinishReason, Request, RequestId};
use crate::step::Ticket;
use crate::structure::{MatchError, Matcher};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::History;
use calla_ops::{MultiStepLimits, TokenMask};
use std::collections::VecDeque;

/// A request that waits or runs.
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
    /// Set if it is to end as soon as its rows come back from the device, or its state from a file.
    pub(crate) ending: Option<Ending>,
    pub(crate) state: State,
    /// Guesses of the tokens after the last, to be verified in the next step.
    pub(crate) drafts: Vec<u32>,
    /// Whether the last tokens have been drafted from, with whatever success.
    pub(crate) drafted: bool,
    /// Tokens of open thinking so far; `None` outside of it.
    pub(crate) thinking: Option<usize>,
    /// What the reply is held to, once thinking is over.
    pub(crate) structure: Structure,
    /// Tokens of drafts that the network would have chosen itself, and of all.
    pub(crate) accepted: usize,
    pub(crate) proposed: usize,
}

/// How a request ends before its reply does.
#[derive(Debug)]
pub(crate) enum Ending {
    Cancelled,
    Failed(crate::engine::Failure),
}

/// Where the state of a sequence is.
#[derive(Debug)]
pub(crate) enum State {
    /// Nowhere: it waits.
    None,
    /// On its way from a file.
    Loading {
        ticket: Ticket,
        saved: Saved,
        /// What it will be.
        state: DeviceState,
        first_page: usize,
    },
    /// On the device.
    Here(DeviceState),
}

/// State of a running sequence on the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceState {
    pub(crate) slot: usize,
    pub(crate) pages: Vec<usize>,
    /// Tokens that the state covers.
    pub(crate) done: usize,
    /// See [`crate::prefix_cache::Snapshot::provisional`].
    pub(crate) provisional: bool,
}

/// The grammar of a reply.
pub(crate) enum Structure {
    /// The reply is free.
    Free,
    /// Being compiled.
    Compiling,
    /// Compiled. `mask` is that of the next token, if it has been computed.
    Ready { matcher: Box<dyn Matcher>, mask: Option<Result<TokenMask, MatchError>> },
    /// With whoever computes its mask.
    Lent,
}

/// Rows that a sequence wants to run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The logits of so many rows, the last ones, are wanted.
    pub(crate) outputs: usize,
}

impl Work {
    pub(crate) fn rows(self) -> usize {
        self.end - self.start
    }
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: Request) -> Self {
        Self {
            id,
            tokens: request.prompt.clone(),
            history: History::of_prompt(&request.prompt),
            cuts: VecDeque::new(),
            snapshots: VecDeque::new(),
            reuse: Reuse::default(),
            ending: None,
            state: State::None,
            drafts: Vec::new(),
            drafted: false,
            thinking: request.thinking.as_ref().map(|_| 0),
            structure: match request.grammar {
                Some(_) => Structure::Compiling,
                None => Structure::Free,
            },
            accepted: 0,
            proposed: 0,
            request,
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
        self.tokens_max(context).div_ceil(PAGE_TOKENS)
    }

    /// Tokens that its state may come to cover.
    pub(crate) fn tokens_max(&self, context: usize) -> usize {
        self.prompt_len().saturating_add(self.request.max_tokens).min(context)
    }

    /// Its state on the device, if it is there.
    pub(crate) fn here(&self) -> Option<&DeviceState> {
        match &self.state {
            State::Here(state) => Some(state),
            State::None | State::Loading { .. } => None,
        }
    }

    /// The state of a sequence that runs on the device.
    pub(crate) fn device(&mut self) -> &mut DeviceState {
        match &mut self.state {
            State::Here(state) => state,
            State::None | State::Loading { .. } => unreachable!("only sequences here are run"),
        }
    }

    /// Whether it still computes its prompt.
    pub(crate) fn in_prefill(&self) -> bool {
        self.here().is_none_or(|state| state.done < self.prompt_len())
    }

    /// Whether it is here and decodes.
    pub(crate) fn is_decoding(&self) -> bool {
        self.here().is_some() && !self.in_prefill()
    }

    /// Its next rows, if it can go on. In prefill: a slice of the prompt that ends at a cut or at the prompt's
    /// end, at most `rows_max` rows where there is a choice. In decoding: the tokens that its state does not
    /// cover yet (one, or more if some were forced), and after them the drafts.
    pub(crate) fn next_work(&self, rows_max: usize) -> Option<Work> {
        let start = self.here()?.done;
        if !self.in_prefill() {
            let end = self.tokens.len() + self.drafts.len();
            return Some(Work { start, end, outputs: 1 + self.drafts.len() });
        }
        let limit = self.snapshots.front().copied().unwrap_or(self.prompt_len());
        let ends = self.cuts_before(limit);
        let is_held = matches!(self.structure, Structure::Compiling);
        let mut end = None;
        for cut in ends.chain([limit]) {
            // The first token needs the grammar.
            if is_held && cut == self.prompt_len() {
                break;
            }
            // At least one cut's worth runs, so that progress is made whatever the budget.
            if end.is_some() && cut - start > rows_max {
                break;
            }
            end = Some(cut);
        }
        let end = end?;
        Some(Work { start, end, outputs: usize::from(end == self.prompt_len()) })
    }

    /// Tokens that must not be chosen next.
    pub(crate) fn banned(&self) -> Vec<u32> {
        let request = &self.request;
        let mut banned = request.banned_ids.clone();
        if request.ignore_eos || self.generated() < request.min_tokens {
            banned.extend(&request.stop_ids);
        }
        banned
    }

    /// Decode steps before the host has to do something about its next token (force it, hold it to a grammar, ban others,
    /// look at its logits) or its reply has all its tokens; 0 if it does not decode, or the host is needed now.
    pub(crate) fn free_steps(&self, limits: &MultiStepLimits, context: usize) -> usize {
        let request = &self.request;
        let has_one_row = self.is_decoding()
            && self.next_work(1).is_some_and(|work| work.rows() == 1 && self.drafts.is_empty());
        let is_free = matches!(self.structure, Structure::Free)
            && request.top_logprobs.is_none()
            && self.banned().is_empty()
            && limits.can_sample(&request.sampling);
        if !has_one_row || !is_free {
            return 0;
        }
        let of_reply = request.max_tokens.saturating_sub(self.generated());
        let of_context = (context + 1).saturating_sub(self.tokens.len());
        let budget = request.thinking.as_ref().and_then(|thinking| thinking.budget);
        let of_thinking = self.thinking.zip(budget);
        let of_thinking =
            of_thinking.map_or(usize::MAX, |(count, budget)| budget.saturating_sub(count));
        of_reply.min(of_context).min(of_thinking)
    }

    /// Positions of the cuts between what its state covers and `end`. There are none once the prompt is computed.
    pub(crate) fn cuts_before(&self, end: usize) -> impl Iterator<Item = usize> {
        self.cuts.iter().map(|cut| cut.position).take_while(move |&position| position < end)
    }

    /// Records that the state covers `end` tokens now.
    pub(crate) fn advance_to(&mut self, end: usize) {
        self.device().done = end;
        while self.cuts.front().is_some_and(|cut| cut.position <= end) {
            self.cuts.pop_front();
        }
    }

    /// Adds a token to the reply; says if the reply ends with it for its length.
    pub(crate) fn push(&mut self, token: u32, context: usize) -> Option<FinishReason> {
        self.history.push(token);
        self.tokens.push(token);
        self.drafted = false;
        if let (Some(count), Some(thinking)) = (&mut self.thinking, &self.request.thinking) {
            *count += 1;
            if token == thinking.end_id {
                self.thinking = None;
            }
        }
        if self.generated() == self.request.max_tokens {
            Some(FinishReason::Length)
        } else if self.tokens.len() > context {
            Some(FinishReason::ContextFull)
        } else {
            None
        }
    }

    /// Whether the next token is held to a grammar.
    pub(crate) fn is_structured(&self) -> bool {
        self.thinking.is_none() && !matches!(self.structure, Structure::Free)
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

    fn sequence(request: Request) -> Sequence {
        let mut sequence = Sequence::new(RequestId(0), request);
        sequence.cuts = CutRule::default().cuts(&sequence.tokens).into();
        let state = DeviceState { slot: 0, pages: vec![], done: 0, provisional: false };
        sequence.state = State::Here(state);
        sequence
    }

    #[test]
    fn slices_end_at_cuts_whatever_the_budget() {
        let mut sequence = sequence(Request::new(vec![1; 300], 10));
        let mut ends = vec![];
        for budget in [1, 64, 130, 1000] {
            let work = sequence.next_work(budget).unwrap();
            ends.push((work.end, work.outputs));
            sequence.advance_to(work.end);
        }
        assert_eq!(ends, [(64, 0), (128, 0), (256, 0), (300, 1)]);
        sequence.push(7, 1000);
        assert_eq!(sequence.next_work(5), Some(Work { start: 300, end: 301, outputs: 1 }));
        sequence.drafts = vec![4, 5];
        assert_eq!(sequence.next_work(5), Some(Work { start: 300, end: 303, outputs: 3 }));
    }

    #[test]
    fn the_last_slice_waits_for_the_grammar() {
        let grammar = Some(crate::structure::Grammar::JsonObject);
        let mut sequence = sequence(Request { grammar, ..Request::new(vec![1; 100], 10) });
        let work = sequence.next_work(1000).unwrap();
        assert_eq!((work.end, work.outputs), (64, 0));
        sequence.advance_to(64);
        assert_eq!(sequence.next_work(1000), None);
        sequence.structure = Structure::Lent;
        assert_eq!(sequence.next_work(1000).unwrap().end, 100);
    }
}
