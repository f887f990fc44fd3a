//! Temporaries of operations that take several dispatches.

use crate::tensor::{Dtype, Tensor};

/// Gives out tensors that live as long as the dispatches that use them.
pub trait Scratch {
    /// A tensor of undefined values.
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor;
}
