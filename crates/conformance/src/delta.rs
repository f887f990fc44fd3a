//! What the tests of Gated DeltaNet share: layers, spans over slots, and the reference over them.

use crate::values::{bf16s, f32s, rounded, rows, vector};
use calla_gpu::step_tables::StepTables;
use calla_gpu::{
    ChunkEntry, DeltaSlots, Device, Dtype, GpuMatrix, GpuParts, SpanEntry, Tables, Tensor,
};
use calla_model::network::{CheckpointParts, DeltaNet, Mixer};
use calla_model::{LayerKind, Shape};
use calla_ops::ops::DeltaTerms;
use calla_ops::{Rows, conv_silu, delta_prep, gated_delta};
use calla_testkit::{Random, compare, shapes, weights};

/// A shape that has so many heads and little else.
pub fn shape(key_heads: usize, value_heads: usize) -> Shape {
    Shape {
        layers: vec![LayerKind::DeltaNet],
        delta_key_heads: key_heads,
        delta_value_heads: value_heads,
        ..shapes::tiny()
    }
}

/// A layer's weights, here and on the device.
pub struct Layer {
    /// Its shape.
    pub shape: Shape,
    /// Its weights here.
    pub weights: DeltaNet<CheckpointParts>,
    /// Its vectors on the device; its matrices hold nothing.
    pub gpu: DeltaNet<GpuParts>,
}

impl Layer {
    /// A random layer.
    pub fn new(device: &mut dyn Device, shape: Shape, seed: u64) -> Self {
        let mut network = weights::network(&shape, weights::Formats::Published, seed);
        let Mixer::DeltaNet(weights) = network.layers.remove(0).mixer else {
            panic!("not a DeltaNet layer")
        };
        let vectors = [&weights.conv1d, &weights.a_log, &weights.dt_bias, &weights.norm];
        let [conv1d, a_log, dt_bias, norm] = vectors.map(|values| vector(device, values));
        // The recurrence takes no matrix.
        let none = calla_gpu::Range { len: 0, ..conv1d.range };
        let matrix =
            GpuMatrix { rows: 0, cols: 64, bits: 4, packed: none, scales: none, biases: none };
        let gpu = DeltaNet {
            in_proj_qkv: matrix,
            in_proj_z: matrix,
            in_proj_b: matrix,
            in_proj_a: matrix,
            conv1d,
            a_log,
            dt_bias,
            norm,
            out_proj: matrix,
        };
        Self { shape, weights, gpu }
    }
}

/// What leaves the input projections of some rows, as the device holds it.
#[derive(Clone)]
pub struct Inputs {
    /// Queries, keys and values before the convolution.
    pub qkv: Rows,
    /// Write strengths before the sigmoid.
    pub b: Rows,
    /// Decays before softplus.
    pub a: Rows,
}

impl Inputs {
    /// `shift` moves the decay inputs: at 8 nothing of a state is left, at -12 all of it.
    pub fn new(random: &mut Random, shape: &Shape, rows: usize, shift: f32) -> Self {
        let heads = shape.delta_value_heads;
        let mut a = random.rows(rows, heads, 2.0);
        a.as_mut_slice().iter_mut().for_each(|a| *a += shift);
        let qkv = rounded(&random.rows(rows, shape.conv_dim(), 1.0));
        Self { qkv, b: random.rows(rows, heads, 2.0), a }
    }

    /// Some of the rows.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let part = |all: &Rows| part(all, range.clone());
        Self { qkv: part(&self.qkv), b: part(&self.b), a: part(&self.a) }
    }

    /// qkv, b and a on the device.
    pub fn upload(&self, device: &mut dyn Device) -> [Tensor; 3] {
        [bf16s(device, &self.qkv), f32s(device, &self.b), f32s(device, &self.a)]
    }
}

/// Some rows.
pub fn part(all: &Rows, range: std::ops::Range<usize>) -> Rows {
    let cols = all.cols();
    Rows::from_vec(cols, all.as_slice()[range.start * cols..range.end * cols].to_vec())
}

/// Spans, the slots that they read and write, and their checkpoints.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Rows, slots and checkpoints of each span.
    pub spans: Vec<SpanEntry>,
    /// Slots for states between rows.
    pub checkpoints: Vec<u32>,
    /// Slots in all.
    pub slots: usize,
}

impl Layout {
    /// Spans of these lengths over random slots, some of which stay unused.
    pub fn new(random: &mut Random, lengths: &[usize], with_checkpoints: bool) -> Self {
        let kept = |length: usize| if with_checkpoints { length - 1 } else { 0 };
        let used: usize = lengths.iter().map(|&length| 2 + kept(length)).sum();
        let slots = used + 2;
        let mut free = random.distinct(used, slots).into_iter().map(|slot| slot as u32);
        let mut layout = Self { slots, ..Self::default() };
        let mut first_row = 0;
        for &length in lengths {
            let first_checkpoint = layout.checkpoints.len() as u32;
            layout.checkpoints.extend(free.by_ref().take(kept(length)));
            layout.spans.push(SpanEntry {
                first_row,
                rows: length as u32,
                slot_in: free.next().expect("a free slot"),
                slot_out: free.next().expect("a free slot"),
                first_checkpoint,
                checkpoints: kept(length) as u32,
                ..SpanEntry::default()
            });
            first_row += length as u32;
        }
        layout
    }

    /// Rows of all spans.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.rows as usize).sum()
    }

    /// Slots that a step writes.
    pub fn written(&self) -> Vec<usize> {
        let outs = self.spans.iter().map(|span| span.slot_out);
        outs.chain(self.checkpoints.iter().copied()).map(|slot| slot as usize).collect()
    }

    /// Chunks of as many rows as `rows` says.
    pub fn chunks(&self, mut rows: impl FnMut() -> usize) -> Vec<ChunkEntry> {
        let mut chunks = vec![];
        for (i, span) in self.spans.iter().enumerate() {
            let mut done = 0;
            while done < span.rows {
                let rows = (rows() as u32).min(span.rows - done);
                let first_row = span.first_row + done;
                chunks.push(ChunkEntry { first_row, rows, span: i as u32 });
                done += rows;
            }
        }
        chunks
    }

    /// The tables on the device.
    pub fn tables(&self, device: &mut dyn Device, chunks: &[ChunkEntry]) -> Tables {
        let row_spans: Vec<u32> =
            (0..).zip(&self.spans).flat_map(|(i, span)| vec![i; span.rows as usize]).collect();
        let tables = StepTables {
            tokens: vec![u32::MAX; self.rows()],
            row_spans,
            spans: self.spans.clone(),
            checkpoints: self.checkpoints.clone(),
            chunks: chunks.to_vec(),
            ..StepTables::default()
        };
        crate::values::tables(device, &tables)
    }
}

/// Contents of all slots.
#[derive(Clone)]
pub struct Slots {
    /// A state a row.
    pub states: Rows,
    /// A window of the convolution a row.
    pub windows: Rows,
}

impl Slots {
    /// Random contents.
    pub fn random(random: &mut Random, shape: &Shape, slots: usize) -> Self {
        let states = random.rows(slots, shape.delta_state_len(), 0.3);
        let windows = rounded(&random.rows(slots, shape.conv_state_len(), 1.0));
        Self { states, windows }
    }

    /// Brings them to the device.
    pub fn upload(&self, device: &mut dyn Device) -> DeltaSlots {
        DeltaSlots { states: f32s(device, &self.states), windows: bf16s(device, &self.windows) }
    }

    /// Reads them.
    pub fn download(device: &mut dyn Device, slots: &DeltaSlots) -> Self {
        Self { states: rows(device, slots.states), windows: rows(device, slots.windows) }
    }

    /// Requires that a step has left all slots but `written` as they were.
    pub fn assert_others_kept(&self, before: &Self, written: &[usize]) {
        for slot in (0..before.states.rows()).filter(|slot| !written.contains(slot)) {
            assert_eq!(self.states.row(slot), before.states.row(slot), "state of slot {slot}");
            assert_eq!(self.windows.row(slot), before.windows.row(slot), "window of slot {slot}");
        }
    }

    /// Requires the same bits.
    pub fn assert_identical(&self, expected: &Self) {
        compare::identical(&self.states, &expected.states).unwrap();
        compare::identical(&self.windows, &expected.windows).unwrap();
    }
}

/// Terms of the recurrence by the reference; windows move on. Without checkpoints.
pub fn reference_terms(
    layer: &Layer,
    inputs: &Inputs,
    layout: &Layout,
    slots: &mut Slots,
) -> DeltaTerms<Rows> {
    let mut convolved = Rows::zeros(inputs.qkv.rows(), inputs.qkv.cols());
    for span in &layout.spans {
        let mut window = slots.windows.row(span.slot_in as usize).to_vec();
        let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
        conv_silu::reference(&inputs.qkv, &layer.weights.conv1d, rows, &mut window, &mut convolved);
        slots.windows.row_mut(span.slot_out as usize).copy_from_slice(&window);
    }
    delta_prep::reference(&layer.shape, &convolved, &inputs.b, &inputs.a, &layer.weights)
}

/// The recurrence by the reference, in chunks with sums in f64 or token by token; states move on. Without checkpoints.
pub fn reference_recurrence(
    shape: &Shape,
    terms: &DeltaTerms<Rows>,
    layout: &Layout,
    slots: &mut Slots,
    chunk: Option<usize>,
) -> Rows {
    let mut out = Rows::zeros(terms.v.rows(), terms.v.cols());
    for span in &layout.spans {
        let mut state = slots.states.row(span.slot_in as usize).to_vec();
        let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
        match chunk {
            Some(chunk) => gated_delta::chunked(shape, terms, rows, chunk, &mut state, &mut out),
            None => gated_delta::recurrent(shape, terms, rows, &mut state, &mut out),
        }
        slots.states.row_mut(span.slot_out as usize).copy_from_slice(&state);
    }
    out
}

/// Terms on the device, undefined.
pub fn terms_output(device: &mut dyn Device, shape: &Shape, rows: usize) -> DeltaTerms<Tensor> {
    let mut output = |cols, dtype| crate::values::output(device, rows, cols, dtype);
    DeltaTerms {
        q: output(shape.delta_key_dim(), Dtype::Bf16),
        k: output(shape.delta_key_dim(), Dtype::Bf16),
        v: output(shape.delta_value_dim(), Dtype::Bf16),
        beta: output(shape.delta_value_heads, Dtype::F32),
        log_decay: output(shape.delta_value_heads, Dtype::F32),
    }
}

/// All elements in rows of a head's width, so that heads are judged one by one.
pub fn by_head(all: &Rows) -> Rows {
    Rows::from_vec(128, all.as_slice().to_vec())
}
