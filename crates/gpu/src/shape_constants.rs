//! The network's shape as function constants: indices 0 to 8, as `kernels/shape.h` names them.

use crate::dispatch::Dispatch;
use calla_model::Shape;

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
        let set = |dispatch: Self, (index, value): (u32, usize)| {
            // A shape's widths are far below 2^32: `Config` bounds them.
            dispatch.constant(index, u32::try_from(value).expect("a width of a checked shape"))
        };
        (0..).zip(values).fold(self, set)
    }
}
