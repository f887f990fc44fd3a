//! The network on a device, as the engine drives it.

mod draft;
mod generate;
mod growing;
mod plans;

use crate::cache::{DeviceCache, SlotMoves, StateError};
use crate::device::{Device, DeviceError};
use crate::dispatch::Dispatch;
use crate::plan::{BoundPlan, Plan};
use crate::recorder::{Bindings, record_draft, record_generation, record_step};
use crate::rotations::Rotations;
use crate::shape_constants::width;
use crate::step_tables::{StepTables, TableBuffer, TableCounts, page_entries};
use crate::tensor::{Dtype, Place, Range, Tensor};
use crate::weights::GpuParts;
use calla_model::shape::PAGE_TOKENS;
use calla_model::{Network, Shape};
use calla_ops::{
    Batch, CacheError, CacheSize, Drafts, MultiStep, MultiStepLimits, Rows, Runner, SpanKind,
    StepError,
};
use growing::Growing;
use plans::{PlanKey, Plans, Work};

pub use generate::Choice;

/// How much a runner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerSize {
    /// State of sequences.
    pub cache: CacheSize,
    /// Most sequences of a step. So many slots more are held, as a step writes no slot that it reads.
    pub sequences: usize,
    /// Draft, where the network has the layer for it.
    pub drafting: bool,
}

/// A network on a device.
///
/// A step is recorded once for its counts of rows, spans, chunks and outputs and a bucket of its context. From then on
/// its tables are written and its dispatches run again. State moves on only where a step has succeeded.
pub struct GpuRunner<D> {
    device: D,
    /// Of the device, in errors and in [`Runner::arithmetic`].
    name: &'static str,
    shape: Shape,
    network: Network<GpuParts>,
    rotations: Rotations,
    cache: DeviceCache,
    tables: Growing,
    logits: Growing,
    scratch: Growing,
    draft: Option<draft::Buffers>,
    /// What steps of a generation hand on.
    feedback: Growing,
    /// How to take the last step of a generation back, while no other was run.
    last_generated: Option<SlotMoves>,
    plans: Plans,
    /// Whether the last run recorded a plan.
    has_recorded: bool,
    /// Why state could not be moved, until a step can say so.
    failed: Option<StateError>,
}

/// Positions for which the smallest plan has room. Others have room for twice as many each.
const CONTEXT_MIN: u32 = 1 << 7;

/// Rows of logits that there is room for from the start: 16 MB at full size.
const RESERVED_OUTPUTS: u32 = 16;

impl<D: Device> GpuRunner<D> {
    /// A network whose weights lie on `device`, without any sequence. `name` is that of the device in errors.
    ///
    /// # Errors
    /// If the device has not the memory, or failed.
    pub fn new(
        mut device: D,
        name: &'static str,
        shape: &Shape,
        network: Network<GpuParts>,
        size: RunnerSize,
    ) -> Result<Self, DeviceError> {
        let drafting = size.drafting && network.mtp.is_some();
        let cache = DeviceCache::new(&mut device, shape, size.cache, size.sequences, drafting)?;
        let rotations = Rotations::upload(&mut device, shape)?;
        let draft = drafting
            .then(|| draft::Buffers::new(&mut device, shape, size.sequences))
            .transpose()?;
        let mut runner = Self {
            device,
            name,
            shape: shape.clone(),
            network,
            rotations,
            cache,
            tables: Growing::new("tables of a step"),
            logits: Growing::new("logits"),
            scratch: Growing::new("temporaries of a step"),
            draft,
            feedback: Growing::new("what steps hand on"),
            last_generated: None,
            plans: Plans::default(),
            has_recorded: false,
            failed: None,
        };
        runner.reserve(width(size.sequences))?;
        Ok(runner)
    }

    /// Makes the small buffers as large as most steps need them: whenever one of them grows, all recorded plans are lost.
    fn reserve(&mut self, sequences: u32) -> Result<(), DeviceError> {
        let rows = width(self.device.slice_rows()).saturating_add(sequences);
        // Each span may end a chunk before it is full.
        let chunks = rows.div_ceil(width(PAGE_TOKENS)).saturating_add(sequences);
        let outputs = RESERVED_OUTPUTS.max(sequences);
        let counts = TableCounts { rows, spans: sequences, chunks, outputs };
        self.buffers(counts, self.cache.size().pages, RESERVED_OUTPUTS)?;
        self.reserve_feedback(sequences)?;
        Ok(())
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Bytes of temporaries that the largest step so far needed.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch.bytes()
    }

    /// Runs the spans of one kind: logits of its output rows.
    fn run_step(&mut self, batch: &Batch, moves: &SlotMoves) -> Result<Rows, DeviceError> {
        let logits = self.run_plan(batch, moves, Work::Step(batch.spans()[0].kind))?;
        let mut values = vec![0.0_f32; logits.rows as usize * logits.cols as usize];
        if values.is_empty() {
            // State moves on only once it is known that the device has not failed: a read waits and says so.
            let buffer = self.tables.id().expect("tables were written");
            let word = Range { place: Place::Buffer(buffer), start: 0, len: 4 };
            self.device.read(word, &mut [0; 4])?;
        } else {
            self.device.read(logits.range, bytemuck::cast_slice_mut(&mut values))?;
        }
        Ok(Rows::from_vec(self.shape.vocab_size, values))
    }

    /// Runs the plan of a batch: where its logits are.
    fn run_plan(
        &mut self,
        batch: &Batch,
        moves: &SlotMoves,
        work: Work,
    ) -> Result<Tensor, DeviceError> {
        let (plan, logits) = self.prepare(batch, moves, work, 0)?;
        self.run_prepared(&plan)?;
        Ok(logits)
    }

    /// Records the plan of a batch if need be, and writes its tables: which plan it is, and where its logits are. Rows
    /// may come to see `ahead` positions more than in the batch.
    fn prepare(
        &mut self,
        batch: &Batch,
        moves: &SlotMoves,
        work: Work,
        ahead: u32,
    ) -> Result<(PlanKey, Tensor), DeviceError> {
        let tables = StepTables::new(batch, moves);
        let counts = tables.counts();
        // Each guess has logits, though nobody asks for them.
        let outputs = if let Work::Draft { .. } = work { counts.rows } else { counts.outputs };
        let (table_buffer, logits) = self.buffers(counts, page_entries(batch), outputs)?;
        let seen = tables.positions.iter().max().map_or(1, |&last| last + 1 + ahead);
        let context = seen.next_power_of_two().max(CONTEXT_MIN);
        let key = PlanKey { work, counts, context };
        if self.plans.get(&key).is_none() {
            self.has_recorded = true;
            self.record(key, batch, table_buffer, logits)?;
        }
        let bytes = tables.to_bytes();
        let (place, len) = (Place::Buffer(table_buffer.buffer), bytes.len() as u64);
        self.device.write(Range { place, start: 0, len }, &bytes)?;
        Ok((key, logits))
    }

    /// Runs a plan on the tables that are there.
    fn run_prepared(&mut self, key: &PlanKey) -> Result<(), DeviceError> {
        let plan = self.plans.get(key).expect("a plan that was just recorded");
        self.device.replay(plan)
    }

    /// Buffers for the tables of a step, and for its logits.
    fn buffers(
        &mut self,
        counts: TableCounts,
        pages: usize,
        outputs: u32,
    ) -> Result<(TableBuffer, Tensor), DeviceError> {
        let (device, plans) = (&mut self.device, &mut self.plans);
        let (buffer, bytes) = self.tables.at_least(device, plans, counts.bytes(pages))?;
        let tables = TableBuffer { buffer, bytes };
        let vocab = width(self.shape.vocab_size);
        let bytes = u64::from(outputs) * u64::from(vocab) * Dtype::F32.size();
        let (buffer, _) = self.logits.at_least(device, plans, bytes)?;
        Ok((tables, Tensor::whole(buffer, outputs, vocab, Dtype::F32)))
    }

    fn record(
        &mut self,
        key: PlanKey,
        batch: &Batch,
        tables: TableBuffer,
        logits: Tensor,
    ) -> Result<(), DeviceError> {
        let bindings = Bindings {
            tables: tables.tables(key.counts).expect("a buffer that was made for these tables"),
            rotations: self.rotations,
            attention: self.cache.attention(),
            delta: self.cache.delta(),
            kept: self.cache.kept(),
            logits,
        };
        let (shape, network, context) = (&self.shape, &self.network, key.context);
        let recording = match (key.work, &self.draft) {
            (Work::Draft { vocab_used }, Some(draft)) => {
                let draft = draft.bindings(key.counts.rows, vocab_used);
                record_draft(shape, network, batch, bindings, context, &draft)
            }
            (Work::Generate { vocab_used, drawn }, _) => {
                let buffer = self.feedback.id().expect("what the first step finds was written");
                let feedback = generate::feedback(buffer, key.counts.rows, vocab_used, drawn);
                record_generation(shape, network, batch, bindings, context, &feedback)
            }
            _ => record_step(shape, network, batch, bindings, context),
        };
        let plan = Plan::new(recording);
        let bytes = plan.scratch_bytes();
        let (scratch, _) = self.scratch.at_least(&mut self.device, &mut self.plans, bytes)?;
        self.plans.insert(&mut self.device, key, BoundPlan::new(&plan, scratch));
        Ok(())
    }

    /// Runs moves of state, which do not depend on one another. What fails is said by the next step: nothing else waits
    /// for them.
    fn move_state(&mut self, dispatches: Result<Vec<Dispatch>, CacheError>) {
        let moved = dispatches.map_err(StateError::from).and_then(|dispatches| {
            let stages: &[usize] = if dispatches.is_empty() { &[] } else { &[dispatches.len()] };
            Ok(self.device.run(&dispatches, stages)?)
        });
        if let Err(error) = moved {
            self.failed.get_or_insert(error);
        }
    }

    /// The first failure since the last step.
    fn take_failure(&mut self) -> Result<(), StateError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn named<T>(&self, result: Result<T, StateError>) -> Result<T, StepError> {
        result.map_err(|error| StepError { device: self.name, reason: error.to_string() })
    }

    /// Runs the spans of both kinds, one plan after the other. State moves on where all of it has succeeded, logits read
    /// included, so that the same batch can be run again where it has not.
    fn run_batch(&mut self, batch: &Batch) -> Result<Rows, StateError> {
        self.take_failure()?;
        self.has_recorded = false;
        self.last_generated = None;
        let moves = self.cache.begin(batch.spans())?;
        let mut logits = Rows::zeros(batch.outputs().len(), self.shape.vocab_size);
        for kind in [SpanKind::Prefill, SpanKind::Decode] {
            if let Some((part, outputs)) = batch.part(kind) {
                let rows = self.run_step(&part, &moves)?;
                for (row, &output) in rows.iter().zip(&outputs) {
                    logits.row_mut(output).copy_from_slice(row);
                }
            }
        }
        self.cache.commit(moves);
        Ok(logits)
    }
}

impl<D: Device> Runner for GpuRunner<D> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn cache_size(&self) -> CacheSize {
        self.cache.size()
    }

    fn clear_slot(&mut self, slot: usize) {
        self.move_state(self.cache.clear_slot(slot));
    }

    fn copy_slot(&mut self, from: usize, to: usize) {
        self.move_state(self.cache.copy_slot(from, to));
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        self.move_state(self.cache.copy_page(from, to));
    }

    fn check_moves(&mut self) -> Result<(), StepError> {
        let result = self.take_failure();
        self.named(result)
    }

    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError> {
        let result = self.run_batch(batch);
        self.named(result)
    }

    fn has_prepared(&self) -> bool {
        self.has_recorded
    }

    fn can_draft(&self) -> bool {
        self.draft.is_some()
    }

    fn draft(&mut self, drafts: &Drafts) -> Result<Vec<Vec<u32>>, StepError> {
        let result = self.take_failure().and_then(|()| self.guess(drafts));
        self.named(result)
    }

    fn multi_step_limits(&self) -> Option<MultiStepLimits> {
        self.limits_of_steps()
    }

    fn multi_step(&mut self, steps: &MultiStep) -> Result<Vec<Vec<u32>>, StepError> {
        let result = self.run_steps(steps);
        self.named(result)
    }

    fn slot_bytes(&self) -> usize {
        self.cache.slot_bytes()
    }

    fn page_bytes(&self) -> usize {
        self.cache.page_bytes()
    }

    fn read_slot(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), StepError> {
        let result = self.take_failure();
        let result = result.and_then(|()| self.cache.read_slot(&mut self.device, slot, out));
        self.named(result)
    }

    fn write_slot(&mut self, slot: usize, bytes: &[u8]) -> Result<(), StepError> {
        let result = self.cache.write_slot(&mut self.device, slot, bytes);
        self.named(result)
    }

    fn read_page(&mut self, page: usize, out: &mut Vec<u8>) -> Result<(), StepError> {
        let result = self.take_failure();
        let result = result.and_then(|()| self.cache.read_page(&mut self.device, page, out));
        self.named(result)
    }

    fn write_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), StepError> {
        let result = self.cache.write_page(&mut self.device, page, bytes);
        self.named(result)
    }

    fn slice_rows(&self) -> usize {
        self.device.slice_rows()
    }

    fn slice_seconds(&self) -> Option<f64> {
        self.device.slice_seconds()
    }

    fn decodes_as_it_prefills(&self) -> bool {
        false
    }

    fn arithmetic(&self) -> String {
        let (name, rounding) = (self.name, self.device.rounding());
        format!("{name}, {rounding}, activations of prefill and KV in bf16, 1")
    }
}
