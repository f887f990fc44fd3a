//! RMS norm of rows: `kernels/rms_norm.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::shape_constants::IN_DIM;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    eps: f32,
}

/// `x / sqrt(mean(x^2) + eps) * scale`: `calla_ops::rms_norm::reference`.
///
/// `x`: f32 `[n, K]`, `scale`: f32 `[1, K]`, `out`: f32 or bf16 `[n, K]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn rms_norm(x: Tensor, scale: Tensor, eps: f32, out: Tensor) -> Dispatch {
    assert_eq!(x.dtype, Dtype::F32, "x");
    assert!(x.cols.is_multiple_of(4), "width {}", x.cols);
    scale.check_width("scale", x.cols, Dtype::F32);
    assert_eq!((out.rows, out.cols), (x.rows, x.cols), "out");
    let entry = match out.dtype {
        Dtype::F32 => entries::RMS_NORM_F32,
        Dtype::Bf16 => entries::RMS_NORM_BF16,
        Dtype::U32 => panic!("out of {:?}", out.dtype),
    };
    Dispatch::new(entry)
        .constant(IN_DIM, x.cols)
        .read(x)
        .read(scale)
        .write(out)
        .params(&Params { eps })
        .grid([x.rows, 1, 1], [256, 1, 1])
        .flops(4 * u64::from(x.rows) * u64::from(x.cols))
}
