//! The Gated DeltaNet recurrence, token by token.
//!
//! With `d = e^g`: `r = d (S^T k)`, `w = beta (v - r)`, `S <- d S + k (x) w`, and, as `S^T q` of the new
//! state, `o = d (S^T q) + (k . q) w`. So a token reads the state twice and writes it once; columns of the
//! state are independent of each other, and a strip of them stays in the first-level cache over all tokens
//! of a span.

use crate::columns::Columns;
use crate::simd::{AvailableIsa, Block, Kernel, LANES, Simd, math};
use crate::threads::Threads;
use calla_model::Shape;
use calla_model::shape::DELTA_HEAD_DIM as D;
use calla_ops::cache::DeltaSlots;
use calla_ops::ops::DeltaTerms;
use calla_ops::{Batch, Rows, Span};

/// One head of one span.
struct HeadTask<'a> {
    span: &'a Span,
    head: usize,
    /// `[128 (key), 128 (value)]`.
    state: &'a mut [f32],
    /// The same of each checkpoint.
    checkpoints: Vec<&'a mut [f32]>,
}

struct GatedDelta<'a, 'b> {
    task: &'a mut HeadTask<'b>,
    terms: &'a DeltaTerms<Rows>,
    key_head: usize,
    o: &'a Columns<'a>,
}

/// Vectors in a row of the state.
const ROW_BLOCKS: usize = D / LANES;
type State = [[Block; ROW_BLOCKS]];

impl Kernel for GatedDelta<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let state = self.task.state.as_chunks_mut::<LANES>().0.as_chunks_mut::<ROW_BLOCKS>().0;
        assert_eq!(state.len(), D, "rows of a head's state");
        let (rows, head) = (self.task.span.rows.clone(), self.task.head);
        for start in (0..ROW_BLOCKS).step_by(S::WIDTH) {
            for (i, row) in rows.clone().enumerate() {
                let token = Token {
                    q: &self.terms.q.row(row)[self.key_head * D..][..D],
                    k: &self.terms.k.row(row)[self.key_head * D..][..D],
                    v: &self.terms.v.row(row)[head * D..][..D],
                    beta: self.terms.beta.row(row)[head],
                    decay: self.terms.log_decay.row(row)[head].exp(),
                };
                // SAFETY: a task is the only one with its rows and head, and holds one piece at a time.
                let o = unsafe { self.o.piece(row, head * D..(head + 1) * D) };
                match S::WIDTH {
                    4 => step::<S, 4>(simd, state, &token, start, o),
                    2 => step::<S, 2>(simd, state, &token, start, o),
                    _ => step::<S, 1>(simd, state, &token, start, o),
                }
                if let Some(checkpoint) = self.task.checkpoints.get_mut(i) {
                    let strip = start * LANES..(start + S::WIDTH) * LANES;
                    for (to, from) in checkpoint.chunks_exact_mut(D).zip(state.iter()) {
                        to[strip.clone()].copy_from_slice(&from.as_flattened()[strip.clone()]);
                    }
                }
            }
        }
    }
}

/// Terms of one row and head.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
}

/// Vectors `start .. start + W` of each row of the state, moved on by one token.
#[inline(always)]
fn step<S: Simd, const W: usize>(
    simd: S,
    state: &mut State,
    t: &Token<'_>,
    start: usize,
    o: &mut [f32],
) {
    let kq = math::dot(simd, t.k, t.q);
    let mut read = [simd.splat(0.0); W];
    let mut seen = [simd.splat(0.0); W];
    for i in 0..D {
        let (k, q) = (simd.splat(t.k[i]), simd.splat(t.q[i]));
        let strip: &[Block; W] = state[i][start..].first_chunk().expect("W divides the row");
        for n in 0..W {
            let s = simd.load(&strip[n]);
            read[n] = simd.mul_add(s, k, read[n]);
            seen[n] = simd.mul_add(s, q, seen[n]);
        }
    }
    let (decay, beta, kq) = (simd.splat(t.decay), simd.splat(t.beta), simd.splat(kq));
    let v = &t.v.as_chunks().0[start..][..W];
    let o = &mut o.as_chunks_mut().0[start..][..W];
    let mut write = read;
    for n in 0..W {
        write[n] = simd.mul(beta, simd.sub(simd.load(&v[n]), simd.mul(decay, read[n])));
        simd.store(simd.mul_add(kq, write[n], simd.mul(decay, seen[n])), &mut o[n]);
    }
    for i in 0..D {
        let k = simd.splat(t.k[i]);
        let strip: &mut [Block; W] =
            state[i][start..].first_chunk_mut().expect("W divides the row");
        for n in 0..W {
            let s = simd.mul(decay, simd.load(&strip[n]));
            simd.store(simd.mul_add(k, write[n], s), &mut strip[n]);
        }
    }
}

/// Runs the recurrence of every span; the states of their slots move on.
pub(crate) fn gated_delta(
    isa: AvailableIsa,
    threads: &Threads,
    shape: &Shape,
    terms: &DeltaTerms<Rows>,
    state: &mut DeltaSlots,
    batch: &Batch,
) -> Rows {
    let per_key_head = shape.delta_value_heads / shape.delta_key_heads;
    let mut o = Rows::zeros(terms.v.rows(), terms.v.cols());
    let nanoseconds = o.as_slice().len() * D / 8;
    let mut slots: Vec<Option<&mut [f32]>> = state.states.entries_mut().map(Some).collect();
    let mut take = |slot: usize| {
        let state = slots[slot].take().expect("a batch uses a slot once");
        state.chunks_exact_mut(D * D)
    };
    let mut tasks: Vec<HeadTask<'_>> = vec![];
    for span in batch.spans() {
        let mut checkpoints: Vec<_> = span.checkpoints.iter().map(|&slot| take(slot)).collect();
        for (head, state) in take(span.slot).enumerate() {
            let checkpoints = checkpoints.iter_mut().filter_map(Iterator::next).collect();
            tasks.push(HeadTask { span, head, state, checkpoints });
        }
    }
    let columns = Columns::new(&mut o);
    threads.for_each_mut(&mut tasks, nanoseconds, |_, task| {
        let key_head = task.head / per_key_head;
        isa.run(GatedDelta { task, terms, key_head, o: &columns });
    });
    o
}
