//! What the engine drives: a loaded network that runs batches and returns logits.

use crate::batch::Batch;
use crate::cache::{CacheError, CacheSize, Entries, FreeState, HostCache};
use crate::draft::{Drafts, draft};
use crate::forward::{forward, residual_stream};
use crate::mtp::mtp_append;
use crate::multi_step::{MultiStep, MultiStepLimits};
use crate::ops::Ops;
use crate::tensor::Rows;
use crate::zeroed::CAN_GIVE_BACK;
use calla_model::{LayerKind, Network, Shape};

/// Most rows of a step that prefill may use, where a device has no other wish. Large enough that each weight is read once for
/// many rows, small enough that activations stay in a processor's cache and a cancel is heard soon.
pub const SLICE_ROWS: usize = 256;

/// A network on a device. Object-safe: the engine does not care which.
pub trait Runner: Send {
    /// Shape of the network.
    fn shape(&self) -> &Shape;

    /// State that the device holds.
    fn cache_size(&self) -> CacheSize;

    /// Forgets the recurrent state of a slot, before a new sequence uses it.
    fn clear_slot(&mut self, slot: usize);

    /// Makes the recurrent state of one slot a copy of another's.
    fn copy_slot(&mut self, from: usize, to: usize);

    /// Makes one KV page a copy of another.
    fn copy_page(&mut self, from: usize, to: usize);

    /// Whether the moves since the last call that said so have all been made: those of slots and pages above return
    /// nothing. A device that finds out about a failure later says it here, or else with the next step or draft.
    ///
    /// # Errors
    /// If one failed: what it should have written is undefined.
    fn check_moves(&mut self) -> Result<(), StepError> {
        Ok(())
    }

    /// Whether [`Runner::give_back`] does anything.
    fn can_give_back(&self) -> bool {
        false
    }

    /// Hands the memory of KV pages and slots that hold nothing back to the system, as far as the device can, for the
    /// system is short of it: bytes that are not taken up any more, if they were before. All of them can be used as ever;
    /// what they hold is undefined until it is written. The default, for a device whose pages and slots are one
    /// allocation, does nothing.
    ///
    /// # Errors
    /// If there is no such page or slot.
    fn give_back(&mut self, free: &FreeState) -> Result<u64, StepError> {
        let _ = free;
        Ok(0)
    }

    /// Runs a batch, advancing the state of its sequences: logits of its output rows.
    ///
    /// # Errors
    /// If the device failed; the state of the batch's sequences is then lost.
    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError>;

    /// Whether the device prepared for the last run, as it does for the first one of a kind (a GPU records a plan and compiles
    /// kernels): its time then tells nothing of the next one's.
    fn has_prepared(&self) -> bool {
        false
    }

    /// Whether [`Runner::draft`] can draft.
    fn can_draft(&self) -> bool {
        false
    }

    /// For each draft its tokens: greedy guesses of the multi-token-prediction layer. Recurrent state and
    /// what `step` returns stay as they are.
    ///
    /// # Errors
    /// If the device failed, or cannot draft.
    fn draft(&mut self, drafts: &Drafts) -> Result<Vec<Vec<u32>>, StepError> {
        let _ = drafts;
        Err(StepError { device: "this", reason: "it has no draft layer".to_owned() })
    }

    /// What [`Runner::multi_step`] can do; `None`, the default: nothing.
    fn multi_step_limits(&self) -> Option<MultiStepLimits> {
        None
    }

    /// Runs decode steps one after the other: for each row of the batch the tokens that it chose, one a step, or fewer where
    /// a step's logits were no numbers. Each sequence's state then covers the batch's token and the chosen ones but the
    /// last, as if [`Runner::step`] had been given them one by one; where there were fewer, it is worth nothing.
    ///
    /// # Errors
    /// If the device failed, or cannot run such steps; the state of the batch's sequences is then lost.
    fn multi_step(&mut self, steps: &MultiStep) -> Result<Vec<Vec<u32>>, StepError> {
        let _ = steps;
        let reason = "it cannot choose tokens".to_owned();
        Err(StepError { device: "this", reason })
    }

    /// Bytes of a slot's state.
    fn slot_bytes(&self) -> usize;

    /// Bytes of a KV page.
    fn page_bytes(&self) -> usize;

    /// Replaces `out` by the state of a slot: all layers (the draft layer's part too when drafting), the
    /// exact bits, little-endian.
    ///
    /// # Errors
    /// If there is no such slot or the device failed.
    fn read_slot(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), StepError>;

    /// Sets a slot to what [`Runner::read_slot`] gave on a runner of the same network and setting.
    ///
    /// # Errors
    /// If there is no such slot, the bytes are not as many as a slot takes, or the device failed.
    fn write_slot(&mut self, slot: usize, bytes: &[u8]) -> Result<(), StepError>;

    /// Replaces `out` by a KV page, as [`Runner::read_slot`].
    ///
    /// # Errors
    /// If there is no such page or the device failed.
    fn read_page(&mut self, page: usize, out: &mut Vec<u8>) -> Result<(), StepError>;

    /// Sets a KV page to what [`Runner::read_page`] gave.
    ///
    /// # Errors
    /// If there is no such page, the bytes are not as many as a page takes, or the device failed.
    fn write_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), StepError>;

    /// Most rows of a step that prefill may use: so many that the device is well used, and so few that a cancel is heard
    /// soon.
    fn slice_rows(&self) -> usize {
        SLICE_ROWS
    }

    /// Seconds that a step should take at most, by fewer rows than [`Runner::slice_rows`] if need be. `None`, the default:
    /// however long those take. A processor that is slow reads each expert's weights for fewer rows in a smaller slice, so
    /// a long prompt would take longer still.
    fn slice_seconds(&self) -> Option<f64> {
        None
    }

    /// Whether decoding rounds like prefill, so that a state is the same bit for bit however its tokens were computed.
    fn decodes_as_it_prefills(&self) -> bool;

    /// Names the rounding of this device's results: state may move between runners of one network where
    /// this is equal.
    fn arithmetic(&self) -> String;
}

/// A device failed while it ran a batch.
#[derive(Debug, thiserror::Error)]
#[error("the {device} device failed: {reason}")]
pub struct StepError {
    /// Which device.
    pub device: &'static str,
    /// What it reported.
    pub reason: String,
}

impl From<CacheError> for StepError {
    fn from(error: CacheError) -> Self {
        Self { device: "host", reason: error.to_string() }
    }
}

/// Operations whose state and tensors lie in host memory.
pub trait HostOps: Ops<Tensor = Rows> + Send {
    /// The state of its sequences.
    fn cache(&self) -> &HostCache;

    /// The state of its sequences, to move, restore or set up.
    fn cache_mut(&mut self) -> &mut HostCache;

    /// See [`Runner::arithmetic`].
    fn arithmetic(&self) -> String;

    /// State that it holds.
    fn cache_size(&self) -> CacheSize {
        self.cache().size
    }

    /// Forgets the recurrent state of a slot.
    fn clear_slot(&mut self, slot: usize) {
        self.cache_mut().clear_slot(slot);
    }

    /// Makes the recurrent state of one slot a copy of another's.
    fn copy_slot(&mut self, from: usize, to: usize) {
        self.cache_mut().copy_slot(from, to);
    }

    /// Makes one KV page a copy of another.
    fn copy_page(&mut self, from: usize, to: usize) {
        self.cache_mut().copy_page(from, to);
    }
}

/// Operations together with the network they run.
pub struct Executor<O: Ops> {
    /// The backend.
    pub ops: O,
    /// The weights.
    pub network: Network<O::Parts>,
}

impl<O: HostOps> Executor<O> {
    /// A network that runs on `ops`, without drafts.
    pub fn new(ops: O, network: Network<O::Parts>) -> Self {
        Self { ops, network }
    }

    /// Drafts from now on, where the network has the layer for it. Only before the first step: it is that
    /// step's rows that drafts start from.
    ///
    /// # Errors
    /// If there is not the memory for the draft layer's state.
    pub fn with_drafts(mut self) -> Result<Self, CacheError> {
        if self.network.mtp.is_some() {
            let shape = self.ops.shape().clone();
            self.ops.cache_mut().add_drafting(&shape)?;
        }
        Ok(self)
    }

    /// Which attention layer of the cache is the draft layer's.
    fn draft_layer(&self) -> usize {
        self.ops.shape().layers_of(LayerKind::Attention)
    }
}

/// Each row's predecessor: of a span's first the row that its slot keeps.
fn predecessors(kept: &Entries, h: &Rows, batch: &Batch) -> Rows {
    let mut previous = Rows::zeros(h.rows(), h.cols());
    for span in batch.spans() {
        previous.row_mut(span.rows.start).copy_from_slice(kept.entry(span.slot));
        for row in span.rows.clone().skip(1) {
            previous.row_mut(row).copy_from_slice(h.row(row - 1));
        }
    }
    previous
}

/// Keeps the last row of each span in its slot and the others in its checkpoints.
fn keep_rows(kept: &mut Entries, h: &Rows, batch: &Batch) {
    for span in batch.spans() {
        for (row, &slot) in span.rows.clone().zip(&span.checkpoints) {
            kept.entry_mut(slot).copy_from_slice(h.row(row));
        }
        kept.entry_mut(span.slot).copy_from_slice(h.row(span.rows.end - 1));
    }
}

impl<O: HostOps> Runner for Executor<O>
where
    Network<O::Parts>: Send,
{
    fn shape(&self) -> &Shape {
        self.ops.shape()
    }

    fn cache_size(&self) -> CacheSize {
        self.ops.cache_size()
    }

    fn clear_slot(&mut self, slot: usize) {
        self.ops.clear_slot(slot);
    }

    fn copy_slot(&mut self, from: usize, to: usize) {
        self.ops.copy_slot(from, to);
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        self.ops.copy_page(from, to);
    }

    fn can_give_back(&self) -> bool {
        CAN_GIVE_BACK
    }

    fn give_back(&mut self, free: &FreeState) -> Result<u64, StepError> {
        Ok(self.ops.cache_mut().give_back(free)?)
    }

    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError> {
        let layer = self.draft_layer();
        let (ops, network) = (&mut self.ops, &self.network);
        let Some(mtp) = network.mtp.as_ref().filter(|_| ops.cache().hidden.is_some()) else {
            return Ok(forward(ops, network, batch, |_, _| {}));
        };
        let x = residual_stream(ops, network, batch, |_, _| {});
        // `lm_head` norms the rows that it needs; here all are needed, once.
        let h = ops.rms_norm(&x, &network.norm);
        if let Some(kept) = &mut ops.cache_mut().hidden {
            let previous = predecessors(kept, &h, batch);
            keep_rows(kept, &h, batch);
            mtp_append(ops, network, mtp, &previous, layer, batch);
        }
        if batch.outputs().is_empty() {
            return Ok(Rows::zeros(0, ops.shape().vocab_size));
        }
        let outputs = ops.select_rows(&h, batch.outputs());
        Ok(ops.linear(&outputs, network.output_matrix()))
    }

    fn can_draft(&self) -> bool {
        self.ops.cache().hidden.is_some() && self.network.mtp.is_some()
    }

    fn draft(&mut self, drafts: &Drafts) -> Result<Vec<Vec<u32>>, StepError> {
        let layer = self.draft_layer();
        let (ops, network) = (&mut self.ops, &self.network);
        let (Some(kept), Some(mtp)) = (&ops.cache().hidden, &network.mtp) else {
            return Err(StepError { device: "host", reason: "drafting is off".to_owned() });
        };
        let rows = drafts.as_slice().iter().flat_map(|draft| kept.entry(draft.slot));
        let hidden = Rows::from_vec(ops.shape().hidden, rows.copied().collect());
        Ok(draft(ops, network, mtp, layer, hidden, drafts))
    }

    fn slot_bytes(&self) -> usize {
        self.ops.cache().slot_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.ops.cache().page_bytes()
    }

    fn read_slot(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), StepError> {
        Ok(self.ops.cache_mut().read_slot(slot, out)?)
    }

    fn write_slot(&mut self, slot: usize, bytes: &[u8]) -> Result<(), StepError> {
        Ok(self.ops.cache_mut().write_slot(slot, bytes)?)
    }

    fn read_page(&mut self, page: usize, out: &mut Vec<u8>) -> Result<(), StepError> {
        Ok(self.ops.cache_mut().read_page(page, out)?)
    }

    fn write_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), StepError> {
        Ok(self.ops.cache_mut().write_page(page, bytes)?)
    }

    fn decodes_as_it_prefills(&self) -> bool {
        // `HostOps` promise a row's result whatever it is batched with.
        true
    }

    fn arithmetic(&self) -> String {
        self.ops.arithmetic()
    }
}
