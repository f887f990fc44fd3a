//! Sequences over shuffled pages: the tables of their rows, the pool on the device, and the reference's.

use crate::values::output;
use calla_gpu::cache::DeviceCache;
use calla_gpu::step_tables::StepTables;
use calla_gpu::{
    ChunkEntry, Described, Device, Dtype, GpuMatrix, GpuParts, KvPool, Range as Bytes, Tables,
    Tensor,
};
use calla_model::network::{Attention, CheckpointParts, Mixer};
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS};
use calla_model::{LayerKind, Shape};
use calla_ops::{Batch, CacheSize, HostCache, Rows, Span, SpanKind, attention, cache};
use calla_testkit::{Random, shapes, weights};
use half::bf16;
use std::ops::Range;

/// A shape of one attention layer with so many heads.
pub fn shape(attention_heads: usize, kv_heads: usize) -> Shape {
    let layers = vec![LayerKind::Attention];
    Shape { layers, attention_heads, kv_heads, max_positions: 2000, ..shapes::tiny() }
}

/// Spans of a step over pages in random order, of which some belong to nobody.
pub struct Layout {
    /// Rows, positions and pages of each span.
    pub spans: Vec<Span>,
    /// Pages in all.
    pub pages: usize,
}

impl Layout {
    /// A span for each range of positions.
    pub fn new(random: &mut Random, positions: &[Range<usize>]) -> Self {
        Self::with_pages(random, positions, |_| 0)
    }

    /// The same, but pages before those that the spans write are all one: nobody reads them.
    pub fn without_history(random: &mut Random, positions: &[Range<usize>]) -> Self {
        Self::with_pages(random, positions, |range| range.start / PAGE_TOKENS)
    }

    fn with_pages(
        random: &mut Random,
        positions: &[Range<usize>],
        missing: impl Fn(&Range<usize>) -> usize,
    ) -> Self {
        let pages_of = |range: &Range<usize>| range.end.div_ceil(PAGE_TOKENS) - missing(range);
        let used: usize = positions.iter().map(pages_of).sum();
        let pages = used + 2;
        let mut free = random.distinct(pages, pages);
        let none = free.pop().expect("two more than are used");
        let mut row = 0;
        let spans = positions.iter().enumerate().map(|(slot, range)| {
            let rows = row..row + range.len();
            row = rows.end;
            let mut pages = vec![none; missing(range)];
            pages.extend(free.split_off(free.len() - pages_of(range)));
            Span::new(SpanKind::Prefill, rows, range.start, slot, pages)
        });
        Self { spans: spans.collect(), pages }
    }

    /// Rows of all spans.
    pub fn rows(&self) -> usize {
        self.spans.last().map_or(0, |span| span.rows.end)
    }

    /// The tables on the device, with chunks of as many rows as `chunk` says.
    pub fn tables(&self, device: &mut dyn Device, mut chunk: impl FnMut() -> usize) -> Tables {
        let size = CacheSize { pages: self.pages, slots: self.spans.len() };
        let cache =
            DeviceCache::new(&mut Described::new(false), &shape(1, 1), size, size.slots, false)
                .expect("no memory is needed");
        let batch =
            Batch::new(vec![0; self.rows()], self.spans.clone(), vec![], 1, size).expect("spans");
        let mut tables = StepTables::new(&batch, &cache.begin(&self.spans).expect("spare slots"));
        tables.chunks.clear();
        for (i, span) in (0..).zip(&self.spans) {
            let mut next = span.rows.start;
            while next < span.rows.end {
                let rows = chunk().min(span.rows.end - next);
                tables.chunks.push(ChunkEntry {
                    first_row: next as u32,
                    rows: rows as u32,
                    span: i,
                });
                next += rows;
            }
        }
        crate::values::tables(device, &tables)
    }

    /// The reference's pool, all NaN.
    pub fn reference_pool(&self, shape: &Shape) -> cache::KvPool {
        let size = CacheSize { pages: self.pages, slots: 1 };
        let mut pool = HostCache::new(shape, size).expect("memory").attention.remove(0);
        pool.keys.fill(f32::NAN);
        pool.values.fill(f32::NAN);
        pool
    }
}

/// Copies the reference's pool to the device.
pub fn upload(device: &mut dyn Device, shape: &Shape, pool: &cache::KvPool) -> KvPool {
    let mut part = |values: &[f32]| {
        let page = PAGE_TOKENS * shape.kv_dim();
        let tensor = output(device, values.len() / page, page, Dtype::Bf16);
        let all: Vec<bf16> = (0..values.len())
            .map(|at| bf16::from_f32(values[reference_index(shape, at)]))
            .collect();
        device.write(tensor.range, bytemuck::cast_slice(&all)).expect("a write");
        tensor
    };
    KvPool { keys: part(&pool.keys), values: part(&pool.values) }
}

/// Reads keys or values in the reference's order.
pub fn download(device: &mut dyn Device, shape: &Shape, part: Tensor) -> Vec<f32> {
    let stored = crate::values::rows(device, part).into_vec();
    let mut values = vec![0.0; stored.len()];
    for (at, value) in stored.into_iter().enumerate() {
        values[reference_index(shape, at)] = value;
    }
    values
}

/// Where the reference, `[page, token, kv head, 256]`, has element `at` of `[page, kv head, token, 256]`.
fn reference_index(shape: &Shape, at: usize) -> usize {
    let (tile, dim) = (at / HEAD_DIM, at % HEAD_DIM);
    let (token, head_tile) = (tile % PAGE_TOKENS, tile / PAGE_TOKENS);
    let (head, page) = (head_tile % shape.kv_heads, head_tile / shape.kv_heads);
    ((page * PAGE_TOKENS + token) * shape.kv_heads + head) * HEAD_DIM + dim
}

/// What attention is given of some sequences: values of each position.
pub struct Sequences {
    /// Shape of the layer.
    pub shape: Shape,
    /// Queries, of each sequence.
    pub q: Vec<Rows>,
    /// Queries and gates side by side, of each sequence.
    pub q_gate: Vec<Rows>,
    keys: Vec<Rows>,
    values: Vec<Rows>,
}

impl Sequences {
    /// Keys and values as bf16 holds them, queries too if `rounded`. `sharpness`: the standard deviation of scores.
    pub fn new(
        random: &mut Random,
        shape: Shape,
        lengths: &[usize],
        rounded: bool,
        sharpness: f32,
    ) -> Self {
        let mut make = |cols: usize, scale: f32, rounded: bool| -> Vec<Rows> {
            let all = lengths.iter().map(|&length| random.rows(length, cols, scale));
            if rounded {
                all.map(|rows| crate::values::rounded(&rows)).collect()
            } else {
                all.collect()
            }
        };
        Self {
            q: make(shape.query_dim(), sharpness, rounded),
            q_gate: make(2 * shape.query_dim(), 2.0, rounded),
            keys: make(shape.kv_dim(), 1.0, true),
            values: make(shape.kv_dim(), 1.0, true),
            shape,
        }
    }

    /// The pool as it is when the spans' keys and values are there; each sequence has at most one span.
    pub fn pool(&self, layout: &Layout, sequences: &[usize]) -> cache::KvPool {
        let mut pool = layout.reference_pool(&self.shape);
        let width = self.shape.kv_dim();
        for (span, &sequence) in layout.spans.iter().zip(sequences) {
            for position in 0..span.position + span.rows.len() {
                let at = span.kv_index(position) * width;
                pool.keys[at..at + width].copy_from_slice(self.keys[sequence].row(position));
                pool.values[at..at + width].copy_from_slice(self.values[sequence].row(position));
            }
        }
        pool
    }
}

/// Attention, gated, of a step's rows by the reference: `(sequence, positions)` each.
pub fn reference(random: &mut Random, all: &Sequences, step: &[(usize, Range<usize>)]) -> Rows {
    let (sequences, positions): (Vec<usize>, Vec<Range<usize>>) = step.iter().cloned().unzip();
    let layout = Layout::new(random, &positions);
    let pool = all.pool(&layout, &sequences);
    let q = gather(&layout, &sequences, &all.q);
    let mut o = Rows::zeros(layout.rows(), all.shape.query_dim());
    for span in &layout.spans {
        attention::reference(&all.shape, &q, span, &pool, &mut o);
    }
    attention::gate(&o, &gather(&layout, &sequences, &all.q_gate))
}

/// Rows of a step out of rows of sequences.
pub fn gather(layout: &Layout, sequences: &[usize], values: &[Rows]) -> Rows {
    let mut all = vec![];
    for (span, &sequence) in layout.spans.iter().zip(sequences) {
        for row in span.rows.clone() {
            all.extend_from_slice(values[sequence].row(span.position_of(row)));
        }
    }
    Rows::from_vec(values[0].cols(), all)
}

/// A random attention layer.
///
/// # Panics
/// If the shape begins with a layer of another kind.
#[must_use]
pub fn layer(shape: &Shape, seed: u64) -> Attention<CheckpointParts> {
    let mut network = weights::network(shape, weights::Formats::Published, seed);
    match network.layers.remove(0).mixer {
        Mixer::Attention(attention) => attention,
        Mixer::DeltaNet(_) => panic!("not an attention layer"),
    }
}

/// The norms of a layer on the device; its matrices hold nothing.
pub fn upload_layer(
    device: &mut dyn Device,
    layer: &Attention<CheckpointParts>,
) -> Attention<GpuParts> {
    let q_norm = crate::values::vector(device, &layer.q_norm);
    let k_norm = crate::values::vector(device, &layer.k_norm);
    let none = Bytes { len: 0, ..q_norm.range };
    let matrix = GpuMatrix { rows: 0, cols: 64, bits: 4, packed: none, scales: none, biases: none };
    Attention { q_proj: matrix, k_proj: matrix, v_proj: matrix, q_norm, k_norm, o_proj: matrix }
}
