//! Records decode steps that follow one another without the host: each chooses its tokens and makes the next one's tables.

use super::tape::{Bindings, Tape};
use super::{Decode, Recorder, step};
use crate::advance::{Kept, advance};
use crate::argmax::argmax;
use crate::plan::{Part, Recording};
use crate::sample::sample;
use crate::tensor::{Dtype, Tensor};
use crate::top_candidates::{Candidates, top_candidates};
use crate::weights::GpuParts;
use calla_model::{Network, Shape};
use calla_ops::Batch;

/// How tokens are chosen, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct Feedback {
    /// Only tokens below this one are chosen.
    pub vocab_used: u32,
    /// A sampler for each row, u32 `[n, 8]` ([`crate::sample::Sampler`]); without, the most likely token is taken.
    pub samplers: Option<Tensor>,
    /// Receives the tokens of each step.
    pub kept: Kept,
}

/// Records a decode step of spans of one row, all of them outputs, that ends with the tables of the next step: run again,
/// it is the next. Each run reads the state that the one before wrote, and writes over that from before it, so a run too
/// many leaves the state in front of it whole.
///
/// # Panics
/// If bindings are not those of the shape and the batch, or a span has more rows than one or no output.
#[must_use]
pub fn record_generation(
    shape: &Shape,
    network: &Network<GpuParts>,
    batch: &Batch,
    bindings: Bindings<'_>,
    context: u32,
    feedback: &Feedback,
) -> Recording {
    let rows = batch.tokens().len();
    assert_eq!(rows, batch.spans().len(), "spans of one row");
    assert!(batch.outputs().iter().copied().eq(0..rows), "outputs are all rows, in order");
    let (logits, tables) = (bindings.logits, bindings.tables);
    let mut recorder = step(Decode(Tape::new(shape, bindings, context)), network, batch);
    let tape = recorder.tape();
    tape.enter(Part::Sampling, "next");
    let chosen = tape.tensor(logits.rows, 1, Dtype::U32);
    match feedback.samplers {
        Some(samplers) => {
            let candidates = Candidates::new(&mut tape.recording, logits.rows);
            let found =
                top_candidates(logits, feedback.vocab_used, &mut tape.recording, &candidates);
            tape.extend(found);
            tape.push(sample(&candidates, samplers, chosen));
        }
        None => {
            let found = argmax(logits, feedback.vocab_used, &mut tape.recording, chosen);
            tape.extend(found);
        }
    }
    tape.push(advance(chosen, &tables, feedback.samplers, &feedback.kept));
    recorder.into_recording()
}
