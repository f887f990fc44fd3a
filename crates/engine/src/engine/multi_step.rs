//! Multi-step decode: several steps in which the device chooses tokens, and what they gave.

use super::{Engine, Failure, InFlight};
use crate::request::{FinishReason, Request, RequestId};
use crate::sequence::{Ending, Sequence, Work};
use crate::step::Run;
use calla_ops::{MultiStep, RowSampler};

/// What a row without a token means.
const BAD_LOGITS: &str = "logits are not finite numbers: the checkpoint is damaged (`calla info --verify` finds the \
                          tensor), or the device has failed";

impl Engine {
    /// Steps that need no host, or one, if every running sequence decodes without drafts and none of them needs the host for
    /// its next tokens. Also one step is faster so: its logits stay on the device.
    pub(super) fn compose_multi_step(&mut self) -> Option<(Run, InFlight)> {
        let limits = self.config.multi_step?.limits;
        if self.running.is_empty() || self.draft_depth() > 0 {
            return None;
        }
        let free = self.running.iter().map(|s| s.free_steps(&limits, self.config.context)).min()?;
        let steps = free.min(self.multi_step_sizer.steps(self.running.len()));
        if steps == 0 {
            return None;
        }
        let used = |request: &Request| request.vocab_used.min(self.config.vocab_size);
        let vocab_used = used(&self.running[0].request);
        if vocab_used == 0 || self.running.iter().any(|s| used(&s.request) != vocab_used) {
            return None;
        }
        let sampler = |s: &Sequence| RowSampler {
            sampling: s.request.sampling.clone(),
            generated: s.history.generated(),
        };
        let samplers = self.running.iter().map(sampler).collect();
        let work: Vec<(RequestId, Work, Vec<usize>)> =
            self.running.iter().filter_map(|s| Some((s.id, s.next_work(1)?, vec![]))).collect();
        let ids = work.iter().map(|&(id, ..)| id).collect();
        let batch = self.batch(&work, steps - 1);
        let run = Run::MultiStep(MultiStep { batch, samplers, vocab_used, steps });
        Some((run, InFlight::MultiStep { ids, steps }))
    }

    /// Takes the tokens of each row, one step after the other, as single steps would have given them.
    pub(super) fn take_tokens(
        &mut self,
        ids: Vec<RequestId>,
        steps: usize,
        tokens: Vec<Vec<u32>>,
        seconds: Option<f64>,
    ) {
        assert_eq!(ids.len(), tokens.len(), "tokens of each row");
        let step_seconds = seconds.map(|seconds| seconds / steps as f64);
        self.depth_chooser.measured(ids.len(), 0, steps, step_seconds);
        if let Some(seconds) = step_seconds {
            self.multi_step_sizer.measured(ids.len(), seconds);
        }
        let mut rows: Vec<(RequestId, Vec<u32>)> = ids.into_iter().zip(tokens).collect();
        for step in 0..steps {
            let is_last = step + 1 == steps;
            rows.retain(|(id, tokens)| self.take_token(*id, tokens.get(step).copied(), is_last));
        }
    }

    /// Takes the token that a step chose, if the row had one: whether the reply goes on. After the last of the steps the
    /// state is the sequence's; before, it covers tokens behind this one, and a reply that ends leaves nothing of it.
    fn take_token(&mut self, id: RequestId, token: Option<u32>, is_last: bool) -> bool {
        let i = self.index_of(id);
        let ending = self.running[i].ending.take();
        let token = match (ending, token) {
            (None, Some(token)) => token,
            (ending, _) => {
                let failure = || Ending::Failed(Failure::Device(BAD_LOGITS.to_owned()));
                let mut sequence = self.running.remove(i);
                self.release(&mut sequence);
                self.conclude(sequence, ending.unwrap_or_else(failure));
                return false;
            }
        };
        let sequence = &mut self.running[i];
        let done = sequence.device().done;
        sequence.advance_to(done + 1);
        let reason = if sequence.request.stop_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else {
            self.emit(i, token, None)
        };
        let Some(reason) = reason else { return true };
        let mut sequence = self.running.remove(i);
        if !is_last {
            self.release(&mut sequence);
        }
        self.finish(sequence, reason);
        false
    }
}
