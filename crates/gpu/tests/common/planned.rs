//! Steps of a network that are recorded for a device and not run yet: for tests that run them kernel by kernel.

use super::TestDevice;
use calla_gpu::cache::DeviceCache;
use calla_gpu::recorder::{Bindings, record_step};
use calla_gpu::step_tables::{StepTables, TableBuffer, page_entries};
use calla_gpu::{
    BufferId, Device as _, Dtype, GpuParts, Place, Plan, Range, Rotations, Tensor, upload,
};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::{Batch, CacheSize};

/// Most positions that a row of such a step sees.
const CONTEXT: u32 = 64;

/// A network with state for sequences on a device.
pub struct Planner {
    pub shape: Shape,
    network: Network<GpuParts>,
    rotations: Rotations,
    pub cache: DeviceCache,
}

/// A step that can be run again and again.
pub struct Planned {
    pub plan: Plan,
    /// Its temporaries.
    pub arena: BufferId,
    pub logits: Tensor,
    tables: BufferId,
}

impl Planned {
    /// Gives its memory back.
    pub fn release(self, device: &mut TestDevice) {
        let Place::Buffer(logits) = self.logits.range.place else { panic!("logits in a buffer") };
        for buffer in [self.tables, logits, self.arena] {
            device.release(buffer).expect("a buffer");
        }
    }
}

impl Planner {
    /// As many spare slots as there are slots.
    pub fn new(
        device: &mut TestDevice,
        shape: Shape,
        network: &Network<CheckpointParts>,
        size: CacheSize,
    ) -> Self {
        let network = upload(device, network, &shape).expect("weights that kernels take");
        let rotations = Rotations::upload(device, &shape).expect("memory");
        let cache = DeviceCache::new(device, &shape, size, size.slots, false).expect("memory");
        Self { shape, network, rotations, cache }
    }

    /// Makes all sequences ones without tokens.
    pub fn forget(&self, device: &mut TestDevice) {
        for slot in 0..self.cache.size().slots {
            let clears = self.cache.clear_slot(slot).expect("a slot");
            device.run(&clears, &[clears.len()]).expect("a clear");
        }
    }

    /// Records a batch with its tables. From now on the state of its sequences is what the step will make of it.
    pub fn plan(&mut self, device: &mut TestDevice, batch: &Batch) -> Planned {
        let moves = self.cache.begin(batch.spans()).expect("spare slots");
        let tables = StepTables::new(batch, &moves);
        let bytes = tables.counts().bytes(page_entries(batch));
        let buffer = TableBuffer::new(device, bytes).expect("memory");
        let written = tables.to_bytes();
        let range =
            Range { place: Place::Buffer(buffer.buffer), start: 0, len: written.len() as u64 };
        device.write(range, &written).expect("a write");
        let (rows, vocab) = (batch.outputs().len() as u32, self.shape.vocab_size as u32);
        let bytes = u64::from(rows) * u64::from(vocab) * Dtype::F32.size();
        let logits = device.allocate("logits", bytes).expect("memory");
        let logits = Tensor::whole(logits, rows, vocab, Dtype::F32);
        let bindings = Bindings {
            tables: buffer.tables(tables.counts()).expect("room"),
            rotations: self.rotations,
            attention: self.cache.attention(),
            delta: self.cache.delta(),
            kept: None,
            logits,
        };
        let plan = Plan::new(record_step(&self.shape, &self.network, batch, bindings, CONTEXT));
        let arena = device.allocate("arena", plan.scratch_bytes()).expect("memory");
        self.cache.commit(moves);
        Planned { plan, arena, logits, tables: buffer.buffer }
    }
}
