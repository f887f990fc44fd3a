//! Causal attention over paged keys and values, with a running softmax over pages.
//!
//! A row goes through its pages in order, 64 keys at a time, whatever else is in the batch; so its result
//! does not depend on how its sequence was cut. The query heads of one kv head share loads of keys and
//! values, four at a time.

use crate::simd::{AvailableIsa, Block, Kernel, LANES, Simd, math};
use crate::threads::Threads;
use calla_model::Shape;
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS};
use calla_ops::attention::SCORE_SCALE;
use calla_ops::cache::KvPool;
use calla_ops::{Batch, Rows, Span};

/// Vectors in a head.
const HEAD_BLOCKS: usize = HEAD_DIM / LANES;
/// Query heads that share loads.
const HEADS: usize = 4;

/// The query heads of one kv head, for one row.
struct AttendHeads<'a> {
    /// `[heads, 256]`.
    q: &'a [f32],
    /// `[heads, 256]`.
    o: &'a mut [f32],
    pages: &'a [usize],
    /// Keys that the row sees.
    keys: usize,
    kv: &'a KvPool,
    /// Width of a token in the pool.
    stride: usize,
    /// Where the kv head starts in it.
    offset: usize,
}

impl Kernel for AttendHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let o = std::mem::take(&mut self.o);
        for (q, o) in self.q.chunks(HEADS * HEAD_DIM).zip(o.chunks_mut(HEADS * HEAD_DIM)) {
            match q.len() / HEAD_DIM {
                4 => self.heads::<S, 4>(simd, q, o),
                3 => self.heads::<S, 3>(simd, q, o),
                2 => self.heads::<S, 2>(simd, q, o),
                _ => self.heads::<S, 1>(simd, q, o),
            }
        }
    }
}

/// Scores, then weights, of one head over one page.
type PageScores = [f32; PAGE_TOKENS];
type Head = [Block; HEAD_BLOCKS];

impl AttendHeads<'_> {
    #[inline(always)]
    fn heads<S: Simd, const H: usize>(&self, simd: S, q: &[f32], o: &mut [f32]) {
        let mut queries: [&[Block]; H] = [&[]; H];
        for (query, q) in queries.iter_mut().zip(q.chunks_exact(HEAD_DIM)) {
            *query = q.as_chunks().0;
        }
        let mut sums: [Head; H] = [[[0.0; LANES]; HEAD_BLOCKS]; H];
        let mut maximum = [f32::NEG_INFINITY; H];
        let mut total = [0.0_f32; H];
        for (page, seen) in (0..self.keys).step_by(PAGE_TOKENS).enumerate() {
            let count = (self.keys - seen).min(PAGE_TOKENS);
            let first = self.pages[page] * PAGE_TOKENS * self.stride + self.offset;
            // Keys that the row does not see weigh e^-inf = 0.
            let mut scores = [[f32::NEG_INFINITY; PAGE_TOKENS]; H];
            self.scores(simd, queries, first, count, &mut scores);
            let mut keep = [0.0; H];
            for h in 0..H {
                keep[h] = softmax_page(simd, &mut scores[h], &mut maximum[h], &mut total[h]);
            }
            self.add_values(simd, first, count, &scores, keep, &mut sums);
        }
        for (h, o) in o.chunks_exact_mut(HEAD_DIM).enumerate() {
            for (o, sum) in o.iter_mut().zip(sums[h].as_flattened()) {
                *o = sum / total[h];
            }
        }
    }

    /// `scores[head][key] = q . k / 16` of the first `count` keys of a page.
    #[inline(always)]
    fn scores<S: Simd, const H: usize>(
        &self,
        simd: S,
        queries: [&[Block]; H],
        first: usize,
        count: usize,
        scores: &mut [PageScores; H],
    ) {
        for start in (0..count).step_by(4) {
            let mut keys: [&[Block]; 4] = [&[]; 4];
            for (i, key) in keys.iter_mut().enumerate() {
                // Beyond the last key, its score is computed again and dropped.
                let token = (start + i).min(count - 1);
                *key = self.kv.keys[first + token * self.stride..][..HEAD_DIM].as_chunks().0;
            }
            let valid = (count - start).min(4);
            if S::TILE_ROWS >= H {
                let acc = simd.dot_tile(keys, queries);
                for h in 0..H {
                    store_scores(&mut scores[h][start..start + valid], simd.sum4(acc[h]));
                }
            } else {
                for h in 0..H {
                    let acc = simd.dot_tile(keys, [queries[h]]);
                    store_scores(&mut scores[h][start..start + valid], simd.sum4(acc[0]));
                }
            }
        }
    }

    /// `sums[head] = keep[head] * sums[head] + weights[head] . values` over the first `count` keys.
    #[inline(always)]
    fn add_values<S: Simd, const H: usize>(
        &self,
        simd: S,
        first: usize,
        count: usize,
        weights: &[PageScores; H],
        keep: [f32; H],
        sums: &mut [Head; H],
    ) {
        match S::WIDTH {
            4 => self.add_strips::<S, H, 4>(simd, first, count, weights, keep, sums),
            2 if H > 2 => {
                self.add_strips::<S, H, 1>(simd, first, count, weights, keep, sums);
            }
            2 => self.add_strips::<S, H, 2>(simd, first, count, weights, keep, sums),
            _ => self.add_strips::<S, H, 1>(simd, first, count, weights, keep, sums),
        }
    }

    /// The same, `W` vectors of all heads in registers at a time.
    #[inline(always)]
    fn add_strips<S: Simd, const H: usize, const W: usize>(
        &self,
        simd: S,
        first: usize,
        count: usize,
        weights: &[PageScores; H],
        keep: [f32; H],
        sums: &mut [Head; H],
    ) {
        for start in (0..HEAD_BLOCKS).step_by(W) {
            let mut acc = [[simd.splat(0.0); W]; H];
            for h in 0..H {
                for n in 0..W {
                    acc[h][n] = simd.mul(simd.splat(keep[h]), simd.load(&sums[h][start + n]));
                }
            }
            let values = &self.kv.values[first + start * LANES..];
            for key in 0..count {
                let strip = &values[key * self.stride..][..W * LANES].as_chunks().0[..W];
                let mut v = [simd.splat(0.0); W];
                for n in 0..W {
                    v[n] = simd.load(&strip[n]);
                }
                for h in 0..H {
                    let weight = simd.splat(weights[h][key]);
                    for n in 0..W {
                        acc[h][n] = simd.mul_add(weight, v[n], acc[h][n]);
                    }
                }
            }
            for h in 0..H {
                for n in 0..W {
                    simd.store(acc[h][n], &mut sums[h][start + n]);
                }
            }
        }
    }
}

#[inline(always)]
fn store_scores(to: &mut [f32], dots: [f32; 4]) {
    for (score, dot) in to.iter_mut().zip(dots) {
        *score = dot * SCORE_SCALE;
    }
}

/// Turns scores into `e^(score - maximum)` under the new running maximum, adds them to the running total,
/// and returns the factor that brings earlier sums under that maximum.
#[inline(always)]
fn softmax_page<S: Simd>(
    simd: S,
    scores: &mut PageScores,
    maximum: &mut f32,
    total: &mut f32,
) -> f32 {
    let blocks = scores.as_chunks_mut::<LANES>().0;
    let mut new = *maximum;
    for &score in blocks.as_flattened() {
        new = if new > score { new } else { score };
    }
    let limit = simd.splat(new);
    let mut sum = simd.splat(0.0);
    for block in blocks {
        let weight = math::exp(simd, simd.sub(simd.load(block), limit));
        simd.store(weight, block);
        sum = simd.add(sum, weight);
    }
    let mut keep = [0.0; LANES];
    simd.store(math::exp(simd, simd.splat(*maximum - new)), &mut keep);
    *total = total.mul_add(keep[0], simd.sum(sum));
    *maximum = new;
    keep[0]
}

/// Multiplies by the sigmoid of a gate.
struct Gate<'a> {
    o: &'a mut [f32],
    /// `[heads, 512]`, the gate being the second half of each.
    q_gate: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let heads = self.o.chunks_exact_mut(HEAD_DIM);
        for (o, q_gate) in heads.zip(self.q_gate.chunks_exact(2 * HEAD_DIM)) {
            let gate = &q_gate[HEAD_DIM..];
            math::map_blocks!(o, gate, |o, g, simd| simd.mul(o, math::sigmoid(simd, g)));
        }
    }
}

/// Attention of every row, gated where `q_gate` is given: `[rows, heads * 256]`.
pub(crate) fn attention(
    isa: AvailableIsa,
    threads: &Threads,
    shape: &Shape,
    q: &Rows,
    q_gate: Option<&Rows>,
    kv: &KvPool,
    batch: &Batch,
) -> Rows {
    let rows: Vec<(&Span, usize)> = batch
        .spans()
        .iter()
        .flat_map(|span| span.rows.clone().map(move |row| (span, span.position_of(row) + 1)))
        .collect();
    let heads = shape.attention_heads / shape.kv_heads;
    let width = heads * HEAD_DIM;
    let pairs: usize = rows.iter().map(|(_, keys)| keys).sum::<usize>() * shape.attention_heads;
    let mut o = Rows::zeros(q.rows(), q.cols());
    threads.for_each_chunk(o.as_mut_slice(), width, pairs * HEAD_DIM / 16, |task, o| {
        let (row, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let (span, keys) = rows[row];
        isa.run(AttendHeads {
            q: &q.row(row)[kv_head * width..][..width],
            o,
            pages: &span.pages,
            keys,
            kv,
            stride: shape.kv_dim(),
            offset: kv_head * HEAD_DIM,
        });
        if let Some(q_gate) = q_gate {
            let q_gate = &q_gate.row(row)[2 * kv_head * width..][..2 * width];
            isa.run(Gate { o, q_gate });
        }
    });
    o
}

/// `o * sigmoid(gate)`.
pub(crate) fn attention_gate(
    isa: AvailableIsa,
    threads: &Threads,
    o: &Rows,
    q_gate: &Rows,
) -> Rows {
    let mut y = o.clone();
    threads.for_each_chunk(y.as_mut_slice(), o.cols(), 2 * o.as_slice().len(), |row, o| {
        isa.run(Gate { o, q_gate: q_gate.row(row) });
    });
    y
}
