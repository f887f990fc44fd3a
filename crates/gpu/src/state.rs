//! Where the state of sequences lies on a device: KV pages and slots of recurrent state.

use crate::tensor::Tensor;

/// Keys and values of one attention layer. A page is `[kv heads, 64 tokens, 256]` in bf16, so that the tile of
/// a head and page is contiguous.
#[derive(Clone, Copy, Debug)]
pub struct KvPool {
    /// Keys after norm and RoPE, bf16 `[pages, kv heads * 64 * 256]`.
    pub keys: Tensor,
    /// Values, bf16 `[pages, kv heads * 64 * 256]`.
    pub values: Tensor,
}

/// Recurrent state of one DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaSlots {
    /// States, f32 `[slots, value heads * 128 (key) * 128 (value)]`.
    pub states: Tensor,
    /// Last three rows before the convolution, oldest first, bf16 `[slots, 3 * channels]`.
    pub windows: Tensor,
}
