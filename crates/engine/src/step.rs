//! What the engine asks of a device, as plain data.

use calla_ops::Batch;

/// One step: first the state operations in order, then the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Moves of state that the batch relies on.
    pub state: Vec<StateOp>,
    /// Rows to run. `None` when only state has to be moved.
    pub batch: Option<Batch>,
}

/// A move of sequence state inside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateOp {
    /// A slot becomes the state of a sequence without tokens.
    ClearSlot {
        /// The slot.
        slot: usize,
    },
    /// A slot becomes a copy of another.
    CopySlot {
        /// Read.
        from: usize,
        /// Written.
        to: usize,
    },
    /// A KV page becomes a copy of another.
    CopyPage {
        /// Read.
        from: usize,
        /// Written.
        to: usize,
    },
}

/// Whether decoding rounds like prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// A state is the same bit for bit however its tokens were computed (the CPU backend).
    Uniform,
    /// Prefill (in chunks between cuts) and decoding round differently (a GPU): a state reached by
    /// decoding is provisional and is not kept.
    Split,
}
