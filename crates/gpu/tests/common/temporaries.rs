//! Temporaries that stay as long as the device: tests are short.

use super::TestDevice;
use calla_gpu::scratch::Scratch;
use calla_gpu::{Dtype, Tensor};

/// A device that gives out temporaries.
pub struct Temporaries<'a>(pub &'a mut TestDevice);

impl Scratch for Temporaries<'_> {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        super::output(self.0, rows as usize, cols as usize, dtype)
    }
}
