//! Dispatches in the order of the program that recorded them, before they are scheduled.

use crate::dispatch::Dispatch;
use crate::scratch::Scratch;
use crate::tensor::{Dtype, Place, Tensor};
use serde::Serialize;

/// What of the model a dispatch is a part of, for summaries by type of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Rows of the token embedding.
    Embedding,
    /// Gated DeltaNet layers, without their experts.
    DeltaNet,
    /// Attention layers, without their experts.
    Attention,
    /// Router, routed experts and shared expert of a layer.
    Moe,
    /// Final norm, logits, and what is reduced from them.
    LmHead,
    /// The draft layer.
    Draft,
    /// The choice of tokens, and what it hands to the next step.
    Sampling,
}

/// A dispatch, and what it is a part of.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// What is run.
    pub dispatch: Dispatch,
    /// What it is a part of.
    pub part: Part,
}

/// Dispatches in program order: each may use what those before it wrote.
///
/// Its temporaries are tensors of [`Place::Scratch`]. They hold undefined values until a dispatch writes them, and nothing
/// outside the recording sees them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The dispatches.
    pub steps: Vec<Recorded>,
    /// Bytes of each temporary; `Place::Scratch(n)` is the one at index `n`.
    pub scratch: Vec<u64>,
}

impl Recording {
    /// Appends a dispatch.
    pub fn push(&mut self, part: Part, dispatch: Dispatch) {
        self.steps.push(Recorded { dispatch, part });
    }
}

impl Scratch for Recording {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        let tensor = Tensor::new(Place::Scratch(self.scratch.len() as u32), 0, rows, cols, dtype);
        self.scratch.push(tensor.range.len);
        tensor
    }
}
