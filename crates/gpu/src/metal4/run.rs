//! Runs a case of the self-test on a device: makes its inputs, records its dispatch, reads what comes out.

use super::cases::{Case, Experts, Operation};
use crate::attention_prefill::attention_prefill;
use crate::device::{Device, DeviceError};
use crate::dispatch::Dispatch;
use crate::expert_qmm::{expert_qmm_down, expert_qmm_up};
use crate::products::Product;
use crate::qmm::{RowTile, qmm, qmm_swiglu};
use crate::routing::Grouped;
use crate::scratch::Scratch;
use crate::state::KvPool;
use crate::tables::{ChunkEntry, SpanEntry, Tables};
use crate::tensor::{BufferId, Dtype, Range as Bytes, Tensor};
use crate::weights::{GpuExperts, GpuMatrix};
use calla_model::Shape;
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS};
use half::bf16;
use std::ops::Range;

type Result<T> = std::result::Result<T, DeviceError>;

impl Case {
    /// The results of `rows` of its rows, each row's values one after the other, with tiles (or chunks) of `tile` rows.
    pub(super) fn run(
        &self,
        device: &mut dyn Device,
        rows: Range<usize>,
        tile: u32,
    ) -> Result<Vec<f32>> {
        let mut maker = Maker { device, seed: self.seed };
        match self.operation {
            Operation::Products { width, columns, bits, add } => {
                maker.products(rows, width, columns, bits, add, RowTile::of_rows(tile))
            }
            Operation::Swiglu { width, columns, bits } => {
                let x = maker.activations(X, &rows, width)?;
                let gate = maker.matrix(WEIGHTS, columns, width, bits[0])?;
                let up = maker.matrix(WEIGHTS + 1, columns, width, bits[1])?;
                let out = maker.output(rows.len(), columns, Dtype::Bf16)?;
                maker.run(qmm_swiglu(x, &gate, &up, out, RowTile::of_rows(tile)))?;
                maker.read(out)
            }
            Operation::ExpertsUp(sizes) => maker.experts_up(rows, &sizes, tile),
            Operation::ExpertsDown(sizes) => maker.experts_down(rows, &sizes, tile),
            Operation::Attention { heads, kv_heads, position } => {
                maker.attention(rows, heads, kv_heads, position, tile)
            }
        }
    }
}

// What random values are for: each has a stream of its own.
const X: u64 = 0;
const BEFORE: u64 = 1;
const CHOICE: u64 = 2;
const Q: u64 = 3;
const Q_GATE: u64 = 4;
const KEYS: u64 = 5;
const VALUES: u64 = 6;
const WEIGHTS: u64 = 16;

struct Maker<'a> {
    device: &'a mut dyn Device,
    seed: u64,
}

impl Maker<'_> {
    /// 64 random bits, always the same for an element of a stream.
    fn bits(&self, stream: u64, index: u64) -> u64 {
        let mut z = self.seed ^ stream << 48 ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for _ in 0..2 {
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
        }
        z
    }

    /// A value of mean 0 and variance 1: the sum of four even ones.
    fn value(&self, stream: u64, index: u64) -> f32 {
        let bits = self.bits(stream, index);
        let sum: u32 = (0..4).map(|i| u32::from((bits >> (16 * i)) as u16)).sum();
        (sum as f32 / 65_535.0 - 2.0) * 3.0_f32.sqrt()
    }

    fn tensor(&mut self, rows: usize, cols: usize, dtype: Dtype, bytes: &[u8]) -> Result<Tensor> {
        let buffer = self.device.allocate("metal4 self-test", bytes.len() as u64)?;
        let tensor = Tensor::whole(buffer, rows as u32, cols as u32, dtype);
        self.device.write(Bytes { len: bytes.len() as u64, ..tensor.range }, bytes)?;
        Ok(tensor)
    }

    fn u32s(&mut self, values: &[u32], cols: usize) -> Result<Tensor> {
        self.tensor(values.len() / cols, cols, Dtype::U32, bytemuck::cast_slice(values))
    }

    fn bf16s(&mut self, values: &[f32], cols: usize) -> Result<Tensor> {
        let stored: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
        self.tensor(values.len() / cols, cols, Dtype::Bf16, bytemuck::cast_slice(&stored))
    }

    /// Rows of bf16, each with its own values whatever rows come with it.
    fn activations(&mut self, stream: u64, rows: &Range<usize>, cols: usize) -> Result<Tensor> {
        let values: Vec<f32> =
            (rows.start * cols..rows.end * cols).map(|i| self.value(stream, i as u64)).collect();
        self.bf16s(&values, cols)
    }

    /// A tensor of NaN.
    fn output(&mut self, rows: usize, cols: usize, dtype: Dtype) -> Result<Tensor> {
        let bytes = vec![0xff; rows * cols * dtype.size() as usize];
        self.tensor(rows, cols, dtype, &bytes)
    }

    /// A matrix whose product with activations has a variance of about 1.
    fn matrix(&mut self, stream: u64, rows: usize, cols: usize, bits: u32) -> Result<GpuMatrix> {
        let words = rows * cols * bits as usize / 32;
        let packed: Vec<u32> = (0..words).map(|i| self.bits(stream, i as u64) as u32).collect();
        let most = ((1 << bits) - 1) as f32;
        let unit = 12.0_f32.sqrt() / most / (cols as f32).sqrt();
        let (mut scales, mut biases) = (vec![], vec![]);
        for group in 0..(rows * cols / 64) as u64 {
            let random = self.bits(stream + 1000, group);
            let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
            let scale = sign * unit * (0.5 + (random >> 40) as f32 / (1_u32 << 24) as f32);
            let middle = most * (0.45 + 0.1 * (random >> 8 & 0xffff) as f32 / 65_536.0);
            scales.push(bf16::from_f32(scale));
            biases.push(bf16::from_f32(-scale * middle));
        }
        let mut part = |bytes: &[u8]| -> Result<Bytes> {
            let tensor = self.tensor(1, bytes.len() / 2, Dtype::Bf16, bytes)?;
            Ok(tensor.range)
        };
        Ok(GpuMatrix {
            rows: rows as u32,
            cols: cols as u32,
            bits,
            packed: part(bytemuck::cast_slice(&packed))?,
            scales: part(bytemuck::cast_slice(&scales))?,
            biases: part(bytemuck::cast_slice(&biases))?,
        })
    }

    fn run(&mut self, dispatch: Dispatch) -> Result<()> {
        self.device.run(&[dispatch], &[1])
    }

    fn read(&mut self, tensor: Tensor) -> Result<Vec<f32>> {
        let mut bytes = vec![0; tensor.range.len as usize];
        self.device.read(tensor.range, &mut bytes)?;
        Ok(match tensor.dtype {
            Dtype::Bf16 => {
                bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
            }
            Dtype::F32 | Dtype::U32 => {
                bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
            }
        })
    }

    fn products(
        &mut self,
        rows: Range<usize>,
        width: usize,
        columns: &[usize],
        bits: u32,
        add: bool,
        tile: RowTile,
    ) -> Result<Vec<f32>> {
        let x = self.activations(X, &rows, width)?;
        let (mut weights, mut outs) = (vec![], vec![]);
        for (i, &columns) in (0..).zip(columns) {
            weights.push(self.matrix(WEIGHTS + i, columns, width, bits)?);
            let out = self.output(rows.len(), columns, Dtype::F32)?;
            if add {
                let before: Vec<f32> = (rows.start * columns..rows.end * columns)
                    .map(|at| self.value(BEFORE + (i << 8), at as u64))
                    .collect();
                self.device.write(out.range, bytemuck::cast_slice(&before))?;
            }
            outs.push(out);
        }
        let products: Vec<Product<'_>> =
            weights.iter().zip(&outs).map(|(weight, &out)| Product { weight, out }).collect();
        self.run(qmm(x, &products, add, tile))?;
        let mut parts = vec![];
        for (&out, &columns) in outs.iter().zip(columns) {
            parts.push((self.read(out)?, columns));
        }
        let row = |row| {
            parts.iter().flat_map(move |(part, columns)| &part[row * columns..(row + 1) * columns])
        };
        Ok((0..rows.len()).flat_map(row).copied().collect())
    }

    /// Experts of a row: different ones, some of them liked by all.
    fn choice(&self, row: usize, sizes: &Experts) -> Vec<usize> {
        let mut order: Vec<usize> = (0..sizes.experts).collect();
        let index = |expert| (row * sizes.experts + expert) as u64;
        let liked = |expert| if expert == sizes.experts / 2 { 2.0 } else { 0.0 };
        let score = |expert: usize| liked(expert) + self.value(CHOICE, index(expert));
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(sizes.top_k);
        order
    }

    /// Pairs of rows (from 0 on) in sorted order, and their tables.
    fn grouped(
        &mut self,
        rows: &Range<usize>,
        shape: &Shape,
        sizes: &Experts,
        block_rows: u32,
    ) -> Result<(Vec<usize>, Grouped)> {
        let chosen: Vec<usize> = rows.clone().flat_map(|row| self.choice(row, sizes)).collect();
        let mut pairs: Vec<usize> = (0..chosen.len()).collect();
        pairs.sort_by_key(|&pair| chosen[pair]);
        let (mut offsets, mut blocks) = (vec![0], vec![]);
        for expert in 0..sizes.experts {
            let mut first = offsets[expert];
            let end = first + chosen.iter().filter(|&&other| other == expert).count() as u32;
            offsets.push(end);
            while first < end {
                let count = block_rows.min(end - first);
                blocks.extend([expert as u32, first, count, 0]);
                first += count;
            }
        }
        let count = blocks.len() as u32 / 4;
        let mut made = Made { maker: self, failed: None };
        let grouped = Grouped::new(shape, pairs.len() as u32, block_rows, &mut made);
        made.failed.map_or(Ok(()), Err)?;
        blocks.resize(4 * grouped.blocks.rows as usize, 0);
        let sorted: Vec<u32> = pairs.iter().map(|&pair| pair as u32).collect();
        for (tensor, values) in [
            (grouped.pairs, sorted),
            (grouped.offsets, offsets),
            (grouped.blocks, blocks),
            (grouped.block_count, vec![count]),
        ] {
            self.device.write(tensor.range, bytemuck::cast_slice(&values))?;
        }
        Ok((pairs, grouped))
    }

    fn stacked(
        &mut self,
        stream: u64,
        count: usize,
        rows: usize,
        cols: usize,
        bits: u32,
    ) -> Result<GpuExperts> {
        let stacked = self.matrix(stream, count * rows, cols, bits)?;
        Ok(GpuExperts { count: count as u32, stacked })
    }

    fn experts_up(&mut self, rows: Range<usize>, sizes: &Experts, tile: u32) -> Result<Vec<f32>> {
        let (shape, width) = (shape_of(sizes), sizes.expert_hidden);
        let x = self.activations(X, &rows, sizes.hidden)?;
        let [gate_bits, up_bits] = sizes.bits;
        let gate = self.stacked(WEIGHTS, sizes.experts, width, sizes.hidden, gate_bits)?;
        let up = self.stacked(WEIGHTS + 1, sizes.experts, width, sizes.hidden, up_bits)?;
        let (pairs, grouped) = self.grouped(&rows, &shape, sizes, tile)?;
        let out = self.output(pairs.len(), width, Dtype::Bf16)?;
        self.run(expert_qmm_up(&shape, x, &gate, &up, &grouped, out))?;
        let sorted = self.read(out)?;
        let mut by_pair = vec![0.0; sorted.len()];
        for (values, pair) in sorted.chunks(width).zip(pairs) {
            by_pair[pair * width..(pair + 1) * width].copy_from_slice(values);
        }
        Ok(by_pair)
    }

    fn experts_down(&mut self, rows: Range<usize>, sizes: &Experts, tile: u32) -> Result<Vec<f32>> {
        let (shape, width) = (shape_of(sizes), sizes.expert_hidden);
        let down = self.stacked(WEIGHTS, sizes.experts, sizes.hidden, width, sizes.bits[0])?;
        let (pairs, grouped) = self.grouped(&rows, &shape, sizes, tile)?;
        let first = rows.start * sizes.top_k;
        let acts: Vec<f32> = pairs
            .iter()
            .flat_map(|pair| (0..width).map(move |i| ((first + pair) * width + i) as u64))
            .map(|index| self.value(X, index))
            .collect();
        let acts = self.bf16s(&acts, width)?;
        let out = self.output(pairs.len(), sizes.hidden, Dtype::F32)?;
        self.run(expert_qmm_down(&shape, acts, &down, &grouped, out))?;
        self.read(out)
    }

    fn attention(
        &mut self,
        rows: Range<usize>,
        heads: usize,
        kv_heads: usize,
        position: usize,
        chunk: u32,
    ) -> Result<Vec<f32>> {
        let shape = Shape { attention_heads: heads, kv_heads, ..Shape::demo() };
        let width = shape.query_dim();
        let q = self.activations(Q, &rows, width)?;
        let q_gate = self.activations(Q_GATE, &rows, 2 * width)?;
        let context = position + rows.end;
        let pages = context.div_ceil(PAGE_TOKENS);
        let pool = KvPool {
            keys: self.pool(KEYS, kv_heads, context)?,
            values: self.pool(VALUES, kv_heads, context)?,
        };
        let first = position + rows.start;
        let mut chunks = vec![];
        for first_row in (0..rows.len() as u32).step_by(chunk as usize) {
            let rows = chunk.min(rows.len() as u32 - first_row);
            chunks.push(ChunkEntry { first_row, rows, span: 0 });
        }
        let span =
            SpanEntry { rows: rows.len() as u32, position: first as u32, ..SpanEntry::default() };
        let positions: Vec<u32> = (first as u32..context as u32).collect();
        // The last page of the pool is nobody's, and the others lie in reverse.
        let page_table: Vec<u32> = (0..pages as u32).rev().collect();
        let none = self.u32s(&[u32::MAX], 1)?;
        let tables = Tables {
            tokens: none,
            positions: self.u32s(&positions, 1)?,
            row_spans: self.u32s(&vec![0; rows.len()], 1)?,
            spans: self.u32s(bytemuck::cast_slice(&[span]), SpanEntry::WORDS as usize)?,
            pages: self.u32s(&page_table, pages)?,
            checkpoints: none,
            chunks: self.u32s(bytemuck::cast_slice(&chunks), ChunkEntry::WORDS as usize)?,
            outputs: none,
        };
        let out = self.output(rows.len(), width, Dtype::Bf16)?;
        let dispatch = attention_prefill(&shape, q, q_gate, &pool, &tables, context as u32, out);
        self.run(dispatch)?;
        self.read(out)
    }

    /// Keys or values of `context` positions, in pages in reverse order and one more. All else is NaN: nothing may read it.
    fn pool(&mut self, stream: u64, kv_heads: usize, context: usize) -> Result<Tensor> {
        let pages = context.div_ceil(PAGE_TOKENS);
        let page = kv_heads * PAGE_TOKENS * HEAD_DIM;
        let mut values = vec![f32::NAN; (pages + 1) * page];
        for position in 0..context {
            let at = (pages - 1 - position / PAGE_TOKENS) * page;
            for head in 0..kv_heads {
                let to = at + (head * PAGE_TOKENS + position % PAGE_TOKENS) * HEAD_DIM;
                let from = ((position * kv_heads + head) * HEAD_DIM) as u64;
                for (i, value) in (0..).zip(&mut values[to..to + HEAD_DIM]) {
                    *value = self.value(stream, from + i);
                }
            }
        }
        self.bf16s(&values, page)
    }
}

fn shape_of(sizes: &Experts) -> Shape {
    let &Experts { experts, top_k, hidden, expert_hidden, .. } = sizes;
    Shape { experts, top_k, hidden, expert_hidden, ..Shape::demo() }
}

/// Temporaries that are never given back. A failure is kept, as the tensor that there should have been is not used then.
struct Made<'a, 'b> {
    maker: &'a mut Maker<'b>,
    failed: Option<DeviceError>,
}

impl Scratch for Made<'_, '_> {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        self.maker.output(rows as usize, cols as usize, dtype).unwrap_or_else(|error| {
            self.failed = Some(error);
            Tensor::whole(BufferId(u32::MAX), rows, cols, dtype)
        })
    }
}
