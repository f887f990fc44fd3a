//! Function constants: the network's shape, indices 0 to 8 as `kernels/shape.h` names them, and those that kernels of
//! quantised matrices share.

use crate::dispatch::Dispatch;
use calla_model::Shape;

/// Bits of the first matrix, 4 or 8.
pub(crate) const BITS: u32 = 16;
/// Input width.
pub(crate) const IN_DIM: u32 = 17;
/// Bits of the second matrix, where a kernel takes two that may differ.
pub(crate) const OTHER_BITS: u32 = 18;

/// A width of a shape, as kernels take it.
pub(crate) fn width(width: usize) -> u32 {
    // A shape's widths are far below 2^32: `Config` bounds them.
    u32::try_from(width).expect("a width of a checked shape")
}

impl Dispatch {
    /// Sets all function constants of the shape. Kernels use those that they need.
    #[must_use]
    pub fn shape(self, shape: &Shape) -> Self {
        let values = [
            shape.hidden,
            shape.attention_heads,
            shape.kv_heads,
            shape.delta_key_heads,
            shape.delta_value_heads,
            shape.experts,
            shape.top_k,
            shape.expert_hidden,
            shape.shared_hidden,
        ];
        (0..)
            .zip(values)
            .fold(self, |dispatch, (index, value)| dispatch.constant(index, width(value)))
    }
}
