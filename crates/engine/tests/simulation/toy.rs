//! A toy hybrid backend: hashes instead of a network, with a recurrent state and paged keys and values.
//!
//! A row's result depends on every token before it (through the state and through every KV page it reads),
//! on nothing else, and, in split arithmetic, on whether it was computed by prefill from the last cut or by
//! decoding. So a wrong page, slot, position or cut changes the logits.

use calla_engine::step::{Arithmetic, StateOp, Step};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, CacheSize, Rows, Span, SpanKind, StepError};

pub(crate) const VOCAB: usize = 48;
/// Tokens 0 and 1 open turns.
pub(crate) const MARKERS: [u32; 2] = [0, 1];
/// Token 2 ends a reply.
pub(crate) const STOP: u32 = 2;

pub(crate) struct Toy {
    arithmetic: Arithmetic,
    /// Per slot: the state, as of all tokens seen.
    slots: Vec<u64>,
    /// Per token place of the pool: what attention would read.
    kv: Vec<u64>,
}

impl Toy {
    pub(crate) fn new(size: CacheSize, arithmetic: Arithmetic) -> Self {
        // Poison, so that reading what was never written shows.
        let kv = (0..size.pages * PAGE_TOKENS).map(|i| mix(0xdead, i as u64)).collect();
        Self { arithmetic, slots: vec![0xbad; size.slots], kv }
    }

    /// Runs a step; `fail` makes the device report an error after moving state.
    pub(crate) fn run(&mut self, step: &Step, fail: bool) -> Option<Result<Rows, StepError>> {
        for op in &step.state {
            match *op {
                StateOp::ClearSlot { slot } => self.slots[slot] = 0,
                StateOp::CopySlot { from, to } => self.slots[to] = self.slots[from],
                StateOp::CopyPage { from, to } => {
                    let from = from * PAGE_TOKENS;
                    self.kv.copy_within(from..from + PAGE_TOKENS, to * PAGE_TOKENS);
                }
            }
        }
        let batch = step.batch.as_ref()?;
        if fail {
            return Some(Err(StepError { device: "toy", reason: "injected".into() }));
        }
        Some(Ok(self.forward(batch)))
    }

    fn forward(&mut self, batch: &Batch) -> Rows {
        let mut results = vec![0; batch.rows()];
        for span in batch.spans() {
            self.span(span, batch.tokens(), &mut results);
        }
        let logits = batch.outputs().iter().flat_map(|&row| logits(results[row]));
        Rows::from_vec(VOCAB, logits.collect())
    }

    fn span(&mut self, span: &Span, tokens: &[u32], results: &mut [u64]) {
        let mut state = self.slots[span.slot];
        // In split arithmetic every row of a chunk is computed from the state at its start.
        let (mut chunk_start, mut chunk_rows) = (state, 0_u64);
        let mut chunk_tokens = 0_u64;
        for row in span.rows.clone() {
            let token = u64::from(tokens[row]);
            let split = self.arithmetic == Arithmetic::Split;
            state = match span.kind {
                SpanKind::Prefill if split => {
                    let new_chunk = MARKERS.contains(&tokens[row]) || chunk_rows == 64;
                    if new_chunk && chunk_rows > 0 {
                        (chunk_start, chunk_rows, chunk_tokens) = (state, 0, 0);
                    }
                    chunk_rows += 1;
                    chunk_tokens = mix(chunk_tokens, token);
                    mix(mix(chunk_start, chunk_rows), chunk_tokens)
                }
                SpanKind::Decode if split => mix(mix(state, 0xdec0de), token),
                _ => mix(state, token),
            };
            let position = span.position_of(row);
            self.kv[span.kv_index(position)] = mix(state, position as u64);
            results[row] = (0..=position).fold(state, |sum, p| mix(sum, self.kv[span.kv_index(p)]));
        }
        self.slots[span.slot] = state;
    }
}

fn logits(result: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB as u64).map(move |token| (mix(result, token) >> 40) as f32 / (1 << 20) as f32)
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
