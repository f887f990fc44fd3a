//! Decode steps that follow one another without the host.

use super::GpuRunner;
use super::plans::Work;
use crate::advance::Kept;
use crate::cache::StateError;
use crate::device::{Device, DeviceError};
use crate::recorder::Feedback;
use crate::sample::{KEPT_STEPS, MULTI_STEP, Sampler};
use crate::shape_constants::width;
use crate::tensor::{BufferId, Dtype, Place, Range, Tensor};
use crate::top_candidates::{NO_TOKEN, VOCAB_MAX};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, MultiStep, MultiStepLimits, Span, SpanKind, StepError};

/// How [`GpuRunner::generate`] chooses tokens.
#[derive(Clone, Copy, Debug)]
pub enum Choice<'a> {
    /// The most likely ones. Logits that are no numbers go unnoticed: a sampler with a temperature of 0 chooses the same
    /// and notices.
    MostLikely,
    /// As the sampler of each row says.
    Drawn(&'a [Sampler]),
}

/// What steps hand on beside their tables.
#[derive(Clone, Copy, Debug)]
struct Buffers {
    /// u32 `[1, 1]`.
    step: Tensor,
    /// u32 `[rows, 8]`.
    samplers: Tensor,
    /// u32 `[KEPT_STEPS, rows]`.
    tokens: Tensor,
}

impl Buffers {
    /// Those of `rows` rows, one after the other from the start of `place` on.
    fn new(place: Place, rows: u32) -> Self {
        let step = Tensor::new(place, 0, 1, 1, Dtype::U32);
        // Bindings start at multiples of 16 bytes; a sampler has 32.
        let samplers = Tensor::new(place, 16, rows, Sampler::WORDS, Dtype::U32);
        let start = samplers.range.start + samplers.range.len;
        Self { step, samplers, tokens: Tensor::new(place, start, KEPT_STEPS, rows, Dtype::U32) }
    }

    fn bytes(rows: u32) -> u64 {
        let last = Self::new(Place::Scratch(0), rows).tokens.range;
        last.start + last.len
    }
}

/// How a recorded step chooses tokens, and where it puts them.
pub(super) fn feedback(buffer: BufferId, rows: u32, vocab_used: u32, drawn: bool) -> Feedback {
    let Buffers { step, samplers, tokens } = Buffers::new(Place::Buffer(buffer), rows);
    Feedback { vocab_used, samplers: drawn.then_some(samplers), kept: Kept { tokens, step } }
}

impl<D: Device> GpuRunner<D> {
    /// See [`calla_ops::Runner::multi_step_limits`].
    pub(super) fn limits_of_steps(&self) -> Option<MultiStepLimits> {
        (width(self.shape.vocab_size) <= VOCAB_MAX).then_some(MULTI_STEP)
    }

    /// See [`calla_ops::Runner::multi_step`]. Greedy rows take samplers too, which notice logits that are no numbers.
    pub(super) fn run_steps(&mut self, steps: &MultiStep) -> Result<Vec<Vec<u32>>, StateError> {
        self.take_failure()?;
        let MultiStep { batch, samplers, vocab_used, steps } = steps;
        let samplers = samplers.iter().map(|row| Sampler::new(&row.sampling, row.generated));
        let samplers: Option<Vec<Sampler>> = samplers.collect();
        let samplers = samplers.ok_or_else(|| {
            refused("a row has a bias, penalties or a top_k that is for the host".to_owned())
        })?;
        self.generate_steps(batch, Choice::Drawn(&samplers), *vocab_used, *steps)
    }

    /// Runs `steps` decode steps one after the other, each on the tokens that the one before chose: for each row of
    /// `batch` its chosen tokens, `steps` of them, or fewer where a row's logits were no numbers ([`Choice::Drawn`]).
    ///
    /// `batch` is the first of the steps: decodes of one row, all of them outputs. Its page tables have the pages of all
    /// steps from the start. Only tokens below `vocab_used` are chosen. Each sequence's state then covers the batch's
    /// token and the chosen ones but the last, as if [`calla_ops::Runner::step`] had been given them one by one.
    ///
    /// # Errors
    /// If `batch` is none of that kind, pages do not cover the steps, there is not one sampler for each row, `vocab_used`
    /// is none of 1 to the vocabulary's size, or the device failed. In the last case the state of the batch's sequences is
    /// lost.
    pub fn generate(
        &mut self,
        batch: &Batch,
        choice: Choice<'_>,
        vocab_used: usize,
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, StepError> {
        let result = self.take_failure();
        let result = result.and_then(|()| self.generate_steps(batch, choice, vocab_used, steps));
        self.named(result)
    }

    /// Takes the last step of [`GpuRunner::generate`] back for the sequences in `slots`, right after it: their state is
    /// that before the step, which a step too many has left whole. A driver that has the next step run before it reads a
    /// token needs this where that token ends a reply.
    ///
    /// # Errors
    /// If one of the sequences was not in that batch, or a step was run or taken back since.
    pub fn take_back(&mut self, slots: &[usize]) -> Result<(), StepError> {
        let moves = self.last_generated.take().and_then(|moves| moves.only(slots));
        let result = moves.ok_or_else(|| {
            let reason =
                format!("no step that can be taken back was the last one of slots {slots:?}");
            refused(reason).into()
        });
        let result = result.map(|moves| self.cache.commit(moves));
        self.named(result)
    }

    fn generate_steps(
        &mut self,
        batch: &Batch,
        choice: Choice<'_>,
        vocab_used: usize,
        steps: usize,
    ) -> Result<Vec<Vec<u32>>, StateError> {
        self.check_generation(batch, choice, vocab_used, steps).map_err(refused)?;
        let mut tokens = vec![Vec::with_capacity(steps); batch.rows()];
        if steps == 0 {
            return Ok(tokens);
        }
        self.last_generated = None;
        self.has_recorded = false;
        let buffers = self.hand_over(width(batch.rows()), choice)?;
        let drawn = matches!(choice, Choice::Drawn(_));
        let work = Work::Generate { vocab_used: width(vocab_used), drawn };
        let moves = self.cache.begin(batch.spans())?;
        let (plan, _) = self.prepare(batch, &moves, work, width(steps - 1))?;
        let mut left = steps;
        while left > 0 {
            let count = left.min(KEPT_STEPS as usize);
            for _ in 0..count {
                self.run_prepared(&plan)?;
            }
            self.fetch(buffers.tokens, count, &mut tokens)?;
            left -= count;
        }
        if steps % 2 == 1 {
            self.cache.commit(moves);
        }
        // The same spare slots as before: they hold the state before the last step.
        self.last_generated = Some(self.cache.begin(batch.spans())?);
        // What follows a row without a token is noise.
        for tokens in &mut tokens {
            let count = tokens.iter().position(|&token| token == NO_TOKEN);
            tokens.truncate(count.unwrap_or(steps));
        }
        Ok(tokens)
    }

    fn check_generation(
        &self,
        batch: &Batch,
        choice: Choice<'_>,
        vocab_used: usize,
        steps: usize,
    ) -> Result<(), String> {
        let (rows, vocab_size) = (batch.rows(), self.shape.vocab_size);
        let is_decode = |span: &Span| span.kind == SpanKind::Decode && span.rows.len() == 1;
        if !batch.spans().iter().all(is_decode) || batch.outputs().len() != rows {
            return Err(
                "steps that follow one another are decodes of one row, all of them outputs".into(),
            );
        }
        if let Choice::Drawn(samplers) = choice
            && samplers.len() != rows
        {
            return Err(format!("{rows} rows take as many samplers, not {}", samplers.len()));
        }
        if vocab_used == 0 || vocab_used > vocab_size {
            return Err(format!("{vocab_used} tokens may be chosen; expected 1 to {vocab_size}"));
        }
        let pages = batch.spans().iter().map(|span| span.pages.len()).max().unwrap_or(0);
        if steps > pages * PAGE_TOKENS {
            return Err(format!("{steps} steps have no room in {pages} pages"));
        }
        if steps == 0 {
            return Ok(());
        }
        // As a batch of all steps it proves that their pages are there, and nobody else's.
        let span =
            |(i, span): (usize, &Span)| Span { rows: i * steps..(i + 1) * steps, ..span.clone() };
        let spans = batch.spans().iter().enumerate().map(span).collect();
        Batch::new(vec![0; rows * steps], spans, vec![], vocab_size, self.cache.size())
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// The buffer for what steps of `rows` rows hand on.
    pub(super) fn reserve_feedback(&mut self, rows: u32) -> Result<BufferId, DeviceError> {
        let (device, plans) = (&mut self.device, &mut self.plans);
        Ok(self.feedback.at_least(device, plans, Buffers::bytes(rows))?.0)
    }

    /// Sets what the first step finds.
    fn hand_over(&mut self, rows: u32, choice: Choice<'_>) -> Result<Buffers, DeviceError> {
        let buffers = Buffers::new(Place::Buffer(self.reserve_feedback(rows)?), rows);
        self.device.write(buffers.step.range, &0_u32.to_le_bytes())?;
        if let Choice::Drawn(samplers) = choice {
            self.device.write(buffers.samplers.range, bytemuck::cast_slice(samplers))?;
        }
        Ok(buffers)
    }

    /// Adds the first `count` kept steps to the tokens of each row.
    fn fetch(
        &mut self,
        kept: Tensor,
        count: usize,
        tokens: &mut [Vec<u32>],
    ) -> Result<(), DeviceError> {
        let mut values = vec![0_u32; count * tokens.len()];
        let range = Range { len: count as u64 * kept.row_bytes(), ..kept.range };
        self.device.read(range, bytemuck::cast_slice_mut(&mut values))?;
        for step in values.chunks_exact(tokens.len()) {
            tokens.iter_mut().zip(step).for_each(|(tokens, &token)| tokens.push(token));
        }
        Ok(())
    }
}

fn refused(reason: String) -> DeviceError {
    DeviceError::failed("a generation", reason)
}
