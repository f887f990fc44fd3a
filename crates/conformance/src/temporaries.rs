//! Temporaries that stay as long as the device: tests are short.

use calla_gpu::scratch::Scratch;
use calla_gpu::{Device, Dtype, Tensor};

/// A device that gives out temporaries.
pub struct Temporaries<'a>(
    /// Where they lie.
    pub &'a mut dyn Device,
);

impl Scratch for Temporaries<'_> {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        crate::values::output(self.0, rows as usize, cols as usize, dtype)
    }
}
