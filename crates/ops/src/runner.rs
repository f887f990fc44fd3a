//! What the engine drives: a loaded network that runs batches and returns logits.

use crate::batch::Batch;
use crate::cache::{CacheSize, HostCache};
use crate::forward::forward;
use crate::ops::Ops;
use crate::tensor::Rows;
use calla_model::{Network, Shape};

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

    /// Runs a batch, advancing the state of its sequences: logits of its output rows.
    ///
    /// # Errors
    /// If the device failed; the state of the batch's sequences is then lost.
    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError>;
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

/// Operations whose state and tensors lie in host memory.
pub trait HostOps: Ops<Tensor = Rows> + Send {
    /// The state of its sequences.
    fn cache(&self) -> &HostCache;

    /// The state of its sequences, to move, restore or set up.
    fn cache_mut(&mut self) -> &mut HostCache;

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

    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError> {
        Ok(forward(&mut self.ops, &self.network, batch, |_, _| {}))
    }
}
