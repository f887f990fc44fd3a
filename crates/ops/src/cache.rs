//! State of sequences in host memory: a pool of KV pages and slots of recurrent state.

use calla_model::shape::{LayerKind, PAGE_TOKENS, Shape};

/// How much state a backend holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// KV pages of 64 tokens, shared by all sequences.
    pub pages: usize,
    /// Sequences whose recurrent state is held at once.
    pub slots: usize,
}

impl CacheSize {
    /// Enough for one sequence of `tokens`.
    #[must_use]
    pub fn one_sequence(tokens: usize) -> Self {
        Self { pages: tokens.div_ceil(PAGE_TOKENS), slots: 1 }
    }
}

/// KV pages and recurrent state, all f32.
#[derive(Clone, Debug)]
pub struct HostCache {
    /// What it was made for.
    pub size: CacheSize,
    /// Per attention layer.
    pub attention: Vec<KvPool>,
    /// Per DeltaNet layer.
    pub delta: Vec<DeltaSlots>,
}

/// Keys and values of one attention layer.
#[derive(Clone, Debug)]
pub struct KvPool {
    /// Keys `[pages * 64, kv heads * 256]`, after norm and RoPE.
    pub keys: Vec<f32>,
    /// Values `[pages * 64, kv heads * 256]`.
    pub values: Vec<f32>,
}

/// Recurrent state of one DeltaNet layer.
#[derive(Clone, Debug)]
pub struct DeltaSlots {
    /// States `[slots, value heads, 128 (key), 128 (value)]`.
    pub states: Vec<f32>,
    /// Last three rows before the convolution, oldest first: `[slots, 3, channels]`.
    pub windows: Vec<f32>,
}

impl HostCache {
    /// Zeroed state.
    #[must_use]
    pub fn new(shape: &Shape, size: CacheSize) -> Self {
        let kv = size.pages * PAGE_TOKENS * shape.kv_dim();
        let pool = || KvPool { keys: vec![0.0; kv], values: vec![0.0; kv] };
        let slots = || DeltaSlots {
            states: vec![0.0; size.slots * shape.delta_state_len()],
            windows: vec![0.0; size.slots * shape.conv_state_len()],
        };
        Self {
            size,
            attention: (0..shape.layers_of(LayerKind::Attention)).map(|_| pool()).collect(),
            delta: (0..shape.layers_of(LayerKind::DeltaNet)).map(|_| slots()).collect(),
        }
    }

    /// Forgets the recurrent state of a slot: the state of a sequence without tokens.
    pub fn clear_slot(&mut self, slot: usize) {
        for layer in &mut self.delta {
            layer.slot_state(self.size.slots, slot).fill(0.0);
            layer.slot_window(self.size.slots, slot).fill(0.0);
        }
    }

    /// Makes one slot a copy of another.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        for layer in &mut self.delta {
            for part in [&mut layer.states, &mut layer.windows] {
                let len = part.len() / self.size.slots;
                part.copy_within(from * len..(from + 1) * len, to * len);
            }
        }
    }

    /// Makes one KV page a copy of another.
    pub fn copy_page(&mut self, from: usize, to: usize) {
        for layer in &mut self.attention {
            for part in [&mut layer.keys, &mut layer.values] {
                let len = part.len() / self.size.pages;
                part.copy_within(from * len..(from + 1) * len, to * len);
            }
        }
    }
}

impl DeltaSlots {
    /// State of one of `slots` slots.
    pub fn slot_state(&mut self, slots: usize, slot: usize) -> &mut [f32] {
        let len = self.states.len() / slots;
        &mut self.states[slot * len..][..len]
    }

    /// Convolution window of one of `slots` slots.
    pub fn slot_window(&mut self, slots: usize, slot: usize) -> &mut [f32] {
        let len = self.windows.len() / slots;
        &mut self.windows[slot * len..][..len]
    }
}
