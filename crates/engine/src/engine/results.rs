//! What a step gave: tokens are chosen, drafts are verified, replies end.

use super::{Engine, Failure, InFlight, Output, Usage};
use crate::request::{FinishReason, RequestId};
use crate::sequence::{Ending, Sequence, Structure, Work};
use crate::step::{Outcome, StepFailure};
use calla_ops::Rows;
use calla_ops::sample::{Allowed, ChooseError, TokenLogprobs, choose, logprobs};

/// What came of choosing a token.
enum Chosen {
    /// The reply goes on with it.
    Token(u32),
    /// The reply goes on with one or more tokens that were not chosen.
    Forced,
    /// The reply ends.
    End(FinishReason),
}

impl Engine {
    /// Takes the result of the step that [`Engine::next_step`] gave, and how long it took, if that tells how
    /// long another such step takes. The time only tells how deep to draft and how many rows of prompts and
    /// decode steps to run at once.
    ///
    /// # Panics
    /// If no step is running, or the result is not one of its kind.
    pub fn complete(&mut self, result: Result<Outcome, StepFailure>, seconds: Option<f64>) {
        let in_flight = self.in_flight.take().expect("a step was running");
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(failure) => return self.step_failed(in_flight, &failure),
        };
        match (in_flight, outcome) {
            (InFlight::Moves, Outcome::Moved) => {}
            (InFlight::Batch(work), Outcome::Logits(logits)) => {
                self.take_logits(work, &logits, seconds);
            }
            (InFlight::MultiStep { ids, steps }, Outcome::Tokens(tokens)) => {
                self.take_tokens(ids, steps, tokens, seconds);
            }
            (InFlight::Drafts(ids), Outcome::Drafts(drafts)) => {
                assert_eq!(ids.len(), drafts.len(), "drafts of each sequence");
                self.draft_seconds = seconds;
                for (id, drafts) in ids.into_iter().zip(drafts) {
                    self.take_drafts(id, drafts);
                }
            }
            (in_flight, outcome) => panic!("{outcome:?} is no result of {in_flight:?}"),
        }
    }

    fn step_failed(&mut self, in_flight: InFlight, failure: &StepFailure) {
        let ids: Vec<RequestId> = match in_flight {
            InFlight::Moves => vec![],
            InFlight::Batch(work) => work
                .into_iter()
                .map(|(id, _, slots)| {
                    self.checkpoints.extend(slots);
                    id
                })
                .collect(),
            InFlight::MultiStep { ids, .. } | InFlight::Drafts(ids) => ids,
        };
        if matches!(failure, StepFailure::State(_)) {
            // Whose state was to be moved, nobody knows any more.
            self.forget_state();
            while let Some(sequence) = self.running.pop() {
                self.fail(sequence, Failure::Device(failure.to_string()));
            }
        } else {
            for id in ids {
                let i = self.index_of(id);
                let sequence = self.running.remove(i);
                self.fail(sequence, Failure::Device(failure.to_string()));
            }
        }
    }

    fn take_drafts(&mut self, id: RequestId, mut drafts: Vec<u32>) {
        let i = self.index_of(id);
        if let Some(ending) = self.running[i].ending.take() {
            let sequence = self.running.remove(i);
            return self.conclude(sequence, ending);
        }
        let used = self.running[i].request.vocab_used.min(self.config.vocab_size);
        // A guess that can never be chosen ends the guessing.
        let good = drafts.iter().position(|&t| t as usize >= used).unwrap_or(drafts.len());
        drafts.truncate(good.min(self.config.speculation.depth_max()));
        self.running[i].drafts = drafts;
    }

    fn take_logits(
        &mut self,
        work: Vec<(RequestId, Work, Vec<usize>)>,
        logits: &Rows,
        seconds: Option<f64>,
    ) {
        let decoding =
            work.iter().filter(|(id, ..)| self.running[self.index_of(*id)].is_decoding());
        let depths: Vec<usize> = decoding.map(|(_, _, slots)| slots.len()).collect();
        // A step with a slice of a prompt says nothing about the cost of decoding.
        if depths.len() == work.len() {
            let depth = depths.iter().copied().max().unwrap_or(0);
            let round = seconds.zip(self.draft_seconds).map(|(step, drafts)| step + drafts);
            self.depth_chooser.measured(depths.len(), depth, 1, round);
            if let Some(seconds) = seconds.filter(|_| depth == 0) {
                self.multi_step_sizer.measured(depths.len(), seconds);
            }
        }
        self.draft_seconds = Some(0.0);
        let prefill = work.iter().filter(|(id, ..)| self.running[self.index_of(*id)].in_prefill());
        let rows = prefill.map(|(_, work, _)| work.rows()).sum();
        if let Some(seconds) = seconds {
            self.slice_sizer.measured(rows, seconds);
        }
        let mut row = 0;
        for (id, work, slots) in work {
            let rows = row..row + work.outputs;
            row = rows.end;
            let logits: Vec<&[f32]> = rows.map(|row| logits.row(row)).collect();
            self.advance(id, work, slots, &logits);
        }
    }

    /// Moves a sequence on by the rows that ran; the logits are those of the last of them.
    fn advance(&mut self, id: RequestId, work: Work, mut slots: Vec<usize>, logits: &[&[f32]]) {
        let i = self.index_of(id);
        let drafts = std::mem::take(&mut self.running[i].drafts);
        let was_prefill = self.running[i].in_prefill();
        // The state after the first row whose logits count; it becomes that after a later one with each
        // draft that proves right.
        let certain = work.end - drafts.len();
        self.running[i].advance_to(certain);
        if was_prefill {
            let total = self.running[i].prompt_len();
            self.outputs.push_back(Output::Prefill { id, done: certain, total });
            if self.running[i].snapshots.front() == Some(&certain) {
                self.running[i].snapshots.pop_front();
                self.take_snapshot(i);
            }
        }
        let mut accepted = 0;
        let mut end = self.running[i].ending.take();
        let mut reason = None;
        if end.is_none() {
            for (row, logits) in logits.iter().enumerate() {
                self.running[i].device().done = certain + row;
                accepted = row;
                match self.choose_next(i, logits) {
                    Ok(Chosen::Token(token)) if drafts.get(row) == Some(&token) => {}
                    Ok(Chosen::Token(_) | Chosen::Forced) => break,
                    Ok(Chosen::End(why)) => {
                        reason = Some(why);
                        break;
                    }
                    Err(failure) => {
                        end = Some(Ending::Failed(failure));
                        break;
                    }
                }
            }
        }
        // Row `accepted` of those with logits is the last that holds.
        let sequence = &mut self.running[i];
        if let Some(slot) = slots.get_mut(accepted) {
            std::mem::swap(slot, &mut sequence.device().slot);
        }
        if !drafts.is_empty() {
            sequence.proposed += drafts.len();
            sequence.accepted += accepted;
            self.depth_chooser.verified(drafts.len(), accepted);
        }
        self.checkpoints.extend(slots);
        if let Some(ending) = end {
            let sequence = self.running.remove(i);
            self.conclude(sequence, ending);
        } else if let Some(reason) = reason {
            let sequence = self.running.remove(i);
            self.finish(sequence, reason);
        }
    }

    /// Chooses the next token of running sequence `i` and adds it to the reply.
    fn choose_next(&mut self, i: usize, logits: &[f32]) -> Result<Chosen, Failure> {
        let sequence = &self.running[i];
        let request = &sequence.request;
        if request.max_tokens == 0 {
            return Ok(Chosen::End(FinishReason::Length));
        }
        if let (Some(count), Some(thinking)) = (sequence.thinking, &request.thinking)
            && thinking.budget.is_some_and(|budget| count >= budget)
        {
            let forced = thinking.forced_end.clone();
            return Ok(self.force(i, &forced));
        }
        self.ensure_mask(i)?;
        let sequence = &mut self.running[i];
        let request = &sequence.request;
        let is_structured = sequence.is_structured();
        let mask = match &sequence.structure {
            Structure::Ready { mask: Some(Ok(mask)), .. } if is_structured => Some(mask),
            _ => None,
        };
        let banned = sequence.banned();
        let allowed = Allowed { mask, banned: &banned };
        let (used, sampling) = (request.vocab_used, &request.sampling);
        let token = match choose(logits, used, sampling, &sequence.history, allowed) {
            Ok(token) => token,
            // The grammar is at its end, or leaves only stop tokens where they are not wanted.
            Err(ChooseError::NothingAllowed) => return Ok(Chosen::End(FinishReason::Stop)),
            Err(ChooseError::BadLogits(error)) => return Err(Failure::Device(error.to_string())),
        };
        if request.stop_ids.contains(&token) {
            return Ok(Chosen::End(FinishReason::Stop));
        }
        let logprobs = request.top_logprobs.map(|top| logprobs(logits, used, token, top));
        if is_structured && let Structure::Ready { matcher, mask } = &mut sequence.structure {
            *mask = None;
            matcher.accept(token)?;
        }
        let was_thinking = sequence.thinking.is_some();
        if let Some(reason) = self.emit(i, token, logprobs) {
            return Ok(Chosen::End(reason));
        }
        if was_thinking && self.running[i].is_structured() {
            return Ok(self.force(i, &[]));
        }
        Ok(Chosen::Token(token))
    }

    /// Adds tokens to the reply that nobody chose and, where they or the token before them end thinking in
    /// favour of a grammar, what separates the two.
    fn force(&mut self, i: usize, tokens: &[u32]) -> Chosen {
        for &token in tokens {
            if let Some(reason) = self.emit(i, token, None) {
                return Chosen::End(reason);
            }
        }
        let sequence = &self.running[i];
        if sequence.is_structured()
            && let Some(thinking) = &sequence.request.thinking
        {
            for token in thinking.separator.clone() {
                if let Some(reason) = self.emit(i, token, None) {
                    return Chosen::End(reason);
                }
            }
        }
        Chosen::Forced
    }

    /// Adds a token to the reply and tells of it.
    pub(super) fn emit(
        &mut self,
        i: usize,
        token: u32,
        logprobs: Option<TokenLogprobs>,
    ) -> Option<FinishReason> {
        let sequence = &mut self.running[i];
        let reason = sequence.push(token, self.config.context);
        self.outputs.push_back(Output::Token { id: sequence.id, token, logprobs });
        reason
    }

    /// Computes the mask of the next token unless somebody has.
    fn ensure_mask(&mut self, i: usize) -> Result<(), Failure> {
        let sequence = &mut self.running[i];
        if !sequence.is_structured() {
            return Ok(());
        }
        match &mut sequence.structure {
            Structure::Ready { matcher, mask } => {
                let mask = mask.get_or_insert_with(|| matcher.mask());
                mask.as_ref().map(|_| ()).map_err(|error| Failure::Match(error.clone()))
            }
            Structure::Lent => panic!("matchers are returned before a step is completed"),
            Structure::Compiling => unreachable!("the last slice waits for the grammar"),
            Structure::Free => unreachable!("it is structured"),
        }
    }

    // Ends.

    /// Ends a sequence whose state is worth nothing.
    fn fail(&mut self, mut sequence: Sequence, failure: Failure) {
        self.release(&mut sequence);
        self.report_failure(&sequence, failure);
    }

    pub(super) fn report_failure(&mut self, sequence: &Sequence, failure: Failure) {
        self.count(sequence);
        self.outputs.push_back(Output::Failed { id: sequence.id, failure });
    }

    /// Ends a sequence; its state becomes a snapshot where that is exact.
    pub(super) fn finish(&mut self, mut sequence: Sequence, reason: FinishReason) {
        self.retire(&mut sequence);
        self.count(&sequence);
        let usage = Usage {
            prompt_tokens: sequence.prompt_len(),
            reuse: sequence.reuse,
            completion_tokens: sequence.generated(),
            drafted_tokens: sequence.proposed,
            accepted_tokens: sequence.accepted,
        };
        self.outputs.push_back(Output::Finished { id: sequence.id, reason, usage });
    }

    fn count(&mut self, sequence: &Sequence) {
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.generated_tokens += sequence.generated() as u64;
        counts.drafted_tokens += sequence.proposed as u64;
        counts.accepted_tokens += sequence.accepted as u64;
    }
}
