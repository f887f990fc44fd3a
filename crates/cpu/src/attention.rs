//! Causal attention over paged keys and values, with a running softmax over pages.
//!
//! A row goes through its pages in order, 64 keys at a time, whatever else is in the batch; so its result
//! does not depend on how its sequence was cut. Four query heads of one kv head share loads of keys and
//! values, and four rows of a sequence go through a page together, which then comes from the first-level
//! cache.

use crate::columns::Columns;
use crate::simd::{AvailableIsa, Block, Kernel, LANES, Simd, math};
use crate::threads::Threads;
use calla_model::Shape;
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS};
use calla_ops::attention::SCORE_SCALE;
use calla_ops::cache::KvPool;
use calla_ops::{Batch, Rows, Span};
use std::ops::Range;

/// Vectors in a head.
const HEAD_BLOCKS: usize = HEAD_DIM / LANES;
/// Query heads that share loads.
const HEADS: usize = 4;
/// Rows that share a page in the cache.
const ROWS: usize = 4;

/// The query heads of one kv head, for a few rows of one span.
struct AttendRows<'a> {
    q: &'a Rows,
    /// Where results go: this task's rows and heads of it are its own.
    o: &'a Columns<'a>,
    /// Gates to multiply results by.
    q_gate: Option<&'a Rows>,
    span: &'a Span,
    /// At most [`ROWS`] rows of the span.
    rows: Range<usize>,
    /// Query heads of the kv head.
    heads: Range<usize>,
    kv: &'a KvPool,
    /// Width of a token in the pool.
    stride: usize,
    /// Where the kv head starts in it.
    offset: usize,
}

impl Kernel for AttendRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for first in self.heads.clone().step_by(HEADS) {
            match self.heads.end - first {
                1 => self.heads::<S, 1>(simd, first),
                2 => self.heads::<S, 2>(simd, first),
                3 => self.heads::<S, 3>(simd, first),
                _ => self.heads::<S, 4>(simd, first),
            }
        }
    }
}

/// Scores, then weights, of one head over one page.
type PageScores = [f32; PAGE_TOKENS];
type Head = [Block; HEAD_BLOCKS];

/// What one row's heads have summed up so far.
#[derive(Clone, Copy)]
struct Running<const H: usize> {
    /// Values, weighted.
    sums: [Head; H],
    /// Largest score.
    maximum: [f32; H],
    /// Sum of weights, each `e^(score - maximum)`.
    total: [f32; H],
}

/// One page of keys and values as one row sees it.
#[derive(Clone, Copy)]
struct Page<const H: usize> {
    /// Keys that the row sees; 0 on a page that begins after it.
    count: usize,
    scores: [PageScores; H],
    /// What earlier sums shrink by.
    keep: [f32; H],
}

impl AttendRows<'_> {
    /// Heads `first .. first + H`.
    #[inline(always)]
    fn heads<S: Simd, const H: usize>(&self, simd: S, first: usize) {
        let cols = first * HEAD_DIM..(first + H) * HEAD_DIM;
        let mut queries: [[&[Block]; H]; ROWS] = [[&[]; H]; ROWS];
        for (queries, row) in queries.iter_mut().zip(self.rows.clone()) {
            let q = self.q.row(row)[cols.clone()].chunks_exact(HEAD_DIM);
            for (query, q) in queries.iter_mut().zip(q) {
                *query = q.as_chunks().0;
            }
        }
        let mut running = [Running {
            sums: [[[0.0; LANES]; HEAD_BLOCKS]; H],
            maximum: [f32::NEG_INFINITY; H],
            total: [0.0; H],
        }; ROWS];
        let rows = self.rows.len();
        let end = self.span.position_of(self.rows.end - 1) + 1;
        for (page, seen) in (0..end).step_by(PAGE_TOKENS).enumerate() {
            let start = self.span.pages[page] * PAGE_TOKENS * self.stride + self.offset;
            // Keys that a row does not see weigh e^-inf = 0.
            let scores = [[f32::NEG_INFINITY; PAGE_TOKENS]; H];
            let mut pages = [Page { count: 0, scores, keep: [0.0; H] }; ROWS];
            for (page, row) in pages.iter_mut().zip(self.rows.clone()) {
                let keys = self.span.position_of(row) + 1;
                page.count = keys.saturating_sub(seen).min(PAGE_TOKENS);
            }
            self.scores(simd, start, &queries, &mut pages[..rows]);
            for (page, row) in pages.iter_mut().zip(&mut running).take(rows) {
                if page.count > 0 {
                    for h in 0..H {
                        let (maximum, total) = (&mut row.maximum[h], &mut row.total[h]);
                        page.keep[h] = softmax_page(simd, &mut page.scores[h], maximum, total);
                    }
                }
            }
            self.add_values(simd, start, &pages[..rows], &mut running);
        }
        for (row, running) in self.rows.clone().zip(&running) {
            // SAFETY: a task is the only one with its rows and heads, and holds one piece at a time.
            let o = unsafe { self.o.piece(row, cols.clone()) };
            for (h, o) in o.chunks_exact_mut(HEAD_DIM).enumerate() {
                for (o, sum) in o.iter_mut().zip(running.sums[h].as_flattened()) {
                    *o = sum / running.total[h];
                }
            }
            if let Some(q_gate) = self.q_gate {
                gate_heads(simd, o, &q_gate.row(row)[2 * cols.start..2 * cols.end]);
            }
        }
    }

    /// `scores[head][key] = q . k / 16` of the keys that each row sees of the page at `start`.
    #[inline(always)]
    fn scores<S: Simd, const H: usize>(
        &self,
        simd: S,
        start: usize,
        queries: &[[&[Block]; H]; ROWS],
        pages: &mut [Page<H>],
    ) {
        // The last row sees the most.
        let count = pages.last().map_or(0, |page| page.count);
        for first in (0..count).step_by(4) {
            let mut keys: [&[Block]; 4] = [&[]; 4];
            for (i, key) in keys.iter_mut().enumerate() {
                // Beyond the last key, its score is computed again and dropped.
                let token = (first + i).min(count - 1);
                *key = self.kv.keys[start + token * self.stride..][..HEAD_DIM].as_chunks().0;
            }
            for (page, queries) in pages.iter_mut().zip(queries) {
                let valid = page.count.saturating_sub(first).min(4);
                if valid == 0 {
                    continue;
                }
                if S::TILE_ROWS >= H {
                    let acc = simd.dot_tile(keys, *queries);
                    for h in 0..H {
                        store_scores(&mut page.scores[h][first..first + valid], simd.sum4(acc[h]));
                    }
                } else {
                    for h in 0..H {
                        let [acc] = simd.dot_tile(keys, [queries[h]]);
                        store_scores(&mut page.scores[h][first..first + valid], simd.sum4(acc));
                    }
                }
            }
        }
    }

    /// `sums[head] = keep[head] * sums[head] + weights[head] . values` over the keys that each row sees.
    #[inline(always)]
    fn add_values<S: Simd, const H: usize>(
        &self,
        simd: S,
        start: usize,
        pages: &[Page<H>],
        running: &mut [Running<H>; ROWS],
    ) {
        // As many accumulators as there are registers for.
        match S::WIDTH {
            4 => self.add_strips::<S, H, 4>(simd, start, pages, running),
            2 if H <= 2 => self.add_strips::<S, H, 2>(simd, start, pages, running),
            _ => self.add_strips::<S, H, 1>(simd, start, pages, running),
        }
    }

    /// The same, `W` vectors of all heads in registers at a time.
    #[inline(always)]
    fn add_strips<S: Simd, const H: usize, const W: usize>(
        &self,
        simd: S,
        start: usize,
        pages: &[Page<H>],
        running: &mut [Running<H>; ROWS],
    ) {
        for first in (0..HEAD_BLOCKS).step_by(W) {
            let values = &self.kv.values[start + first * LANES..];
            for (page, running) in pages.iter().zip(running.iter_mut()) {
                if page.count == 0 {
                    continue;
                }
                let sums = &mut running.sums;
                let mut acc = [[simd.splat(0.0); W]; H];
                for h in 0..H {
                    for n in 0..W {
                        let sum = simd.load(&sums[h][first + n]);
                        acc[h][n] = simd.mul(simd.splat(page.keep[h]), sum);
                    }
                }
                for key in 0..page.count {
                    let strip = &values[key * self.stride..][..W * LANES].as_chunks().0[..W];
                    let mut v = [simd.splat(0.0); W];
                    for n in 0..W {
                        v[n] = simd.load(&strip[n]);
                    }
                    for h in 0..H {
                        let weight = simd.splat(page.scores[h][key]);
                        for n in 0..W {
                            acc[h][n] = simd.mul_add(weight, v[n], acc[h][n]);
                        }
                    }
                }
                for h in 0..H {
                    for n in 0..W {
                        simd.store(acc[h][n], &mut sums[h][first + n]);
                    }
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

/// `o * sigmoid(gate)`; `q_gate` is `[heads, 512]`, the gate being the second half of each.
#[inline(always)]
fn gate_heads<S: Simd>(simd: S, o: &mut [f32], q_gate: &[f32]) {
    for (o, q_gate) in o.chunks_exact_mut(HEAD_DIM).zip(q_gate.chunks_exact(2 * HEAD_DIM)) {
        let gate = &q_gate[HEAD_DIM..];
        math::map_blocks!(o, gate, |o, g, simd| simd.mul(o, math::sigmoid(simd, g)));
    }
}

struct Gate<'a> {
    o: &'a mut [f32],
    q_gate: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        gate_heads(simd, self.o, self.q_gate);
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
    let heads = shape.attention_heads / shape.kv_heads;
    let mut tasks: Vec<(&Span, Range<usize>, usize)> = vec![];
    let mut keys = 0;
    for span in batch.spans() {
        for start in span.rows.clone().step_by(ROWS) {
            let rows = start..(start + ROWS).min(span.rows.end);
            keys += rows.len() * span.position_of(rows.end);
            tasks.extend((0..shape.kv_heads).map(|kv_head| (span, rows.clone(), kv_head)));
        }
    }
    let mut o = Rows::zeros(q.rows(), q.cols());
    let columns = Columns::new(&mut o);
    let nanoseconds = keys * shape.attention_heads * HEAD_DIM / 16;
    threads.for_each(tasks.len(), nanoseconds, |task| {
        let (span, rows, kv_head) = &tasks[task];
        isa.run(AttendRows {
            q,
            o: &columns,
            q_gate,
            span,
            rows: rows.clone(),
            heads: kv_head * heads..(kv_head + 1) * heads,
            kv,
            stride: shape.kv_dim(),
            offset: kv_head * HEAD_DIM,
        });
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
