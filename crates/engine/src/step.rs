//! What the engine asks of the world around it, as plain data: steps of the device, and effects.

use crate::prefix_cache::CacheKey;
use crate::request::RequestId;
use crate::structure::Grammar;
use calla_ops::{Batch, Drafts, FreeState, MultiStep, Rows, StepError};

/// One step of the device: first the moves of state in order, then what is to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Moves of state that the run relies on.
    pub state: Vec<StateOp>,
    /// What to run then.
    pub run: Run,
}

/// What a step runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Run {
    /// Nothing: only state is moved.
    Nothing,
    /// Rows of the network.
    Batch(Batch),
    /// Decode steps whose tokens the device chooses.
    MultiStep(MultiStep),
    /// Guesses of the multi-token-prediction layer.
    Drafts(Drafts),
}

/// What a step gave.
#[derive(Debug)]
pub enum Outcome {
    /// State was moved; there was nothing to run.
    Moved,
    /// Logits of the batch's output rows.
    Logits(Rows),
    /// Tokens that each row of [`Run::MultiStep`] chose, one a step, or fewer where its logits were no numbers.
    Tokens(Vec<Vec<u32>>),
    /// Guessed tokens of each sequence, at most as many as asked for.
    Drafts(Vec<Vec<u32>>),
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepFailure {
    /// State could not be moved: no state of the device can be trusted any more.
    #[error("moving state failed: {0}")]
    State(#[source] StepError),
    /// The run failed: the state of its sequences is lost, that of others is not.
    #[error(transparent)]
    Run(#[from] StepError),
}

/// A move of sequence state.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// State is read out, to be kept in host memory or written to a file. Slot and pages may be used for something else right after;
    /// [`Engine::saved`](crate::Engine::saved) takes the result, whenever it comes.
    Save(Box<Save>),
    /// State that was loaded ([`Effect::Load`]) is put into a slot and pages.
    Restore {
        /// The load's ticket.
        ticket: Ticket,
        /// Written.
        slot: usize,
        /// Written: the prefix's pages from [`Effect::Load::first_page`] on.
        pages: Vec<usize>,
    },
    /// The system is short of memory: pages and slots that hold nothing at this place among the moves need none, until a
    /// later move or the run uses them. What they hold is undefined.
    GiveBack(FreeState),
}

/// State on its way to host memory or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// Names this save.
    pub ticket: Ticket,
    /// Whose prefix it is.
    pub key: CacheKey,
    /// The prefix.
    pub tokens: Vec<u32>,
    /// Slot with the recurrent state.
    pub slot: usize,
    /// KV pages that cover the prefix.
    pub pages: Vec<usize>,
}

/// Names a load or a save that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Names a saved prefix; given by whoever keeps it, in host memory, in a file or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// Where a saved prefix lay that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In host memory, behind a device that has memory of its own.
    Host,
    /// In a file.
    Disk,
}

/// What the engine wants done besides steps, at any time and in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Compile a grammar and say [`Engine::compiled`](crate::Engine::compiled).
    Compile {
        /// The request that needs it.
        id: RequestId,
        /// The grammar.
        grammar: Grammar,
    },
    /// Read a saved prefix and say [`Engine::loaded`](crate::Engine::loaded); then hold it until
    /// [`StateOp::Restore`] asks for it.
    Load {
        /// Names this load.
        ticket: Ticket,
        /// What to read.
        file: FileId,
        /// Pages before this one are in memory already.
        first_page: usize,
    },
    /// Delete a saved prefix.
    Remove {
        /// Which.
        file: FileId,
    },
}

/// Whether decoding rounds like prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// A state is the same bit for bit however its tokens were computed (the CPU backend).
    Uniform,
    /// Prefill (in chunks between cuts) and decoding round differently (a GPU): a state reached by
    /// decoding is provisional and, unless the configuration allows it, is not kept.
    Split,
}
