//! Angles of rotary embedding, as tables on the device.

use crate::device::{Device, DeviceError};
use crate::tensor::{Dtype, Tensor};
use calla_model::Shape;
use calla_model::shape::ROTARY_DIM;
use calla_ops::qk_prep::Rotation;

/// Positions of the fine table.
pub const FINE: usize = 512;

/// Cosines and sines of positions `512 a + b`: the device adds the angles of both tables. Each row has 32 cosines, then
/// 32 sines, in f32, computed in f64: an f32 angle at position 262,143 would be off by 0.01.
#[derive(Clone, Copy, Debug)]
pub struct Rotations {
    /// Of positions `512 a`, f32 `[a, 64]`.
    pub coarse: Tensor,
    /// Of positions `b < 512`, f32 `[512, 64]`.
    pub fine: Tensor,
}

impl Rotations {
    /// Tables for all positions of a shape, and up to 512 beyond.
    ///
    /// # Errors
    /// If the device has not the memory, or failed.
    pub fn upload(device: &mut dyn Device, shape: &Shape) -> Result<Self, DeviceError> {
        let mut table = |label: &str, rows: usize, step: usize| {
            let values: Vec<f32> =
                (0..rows).flat_map(|row| turn(row * step, shape.rope_theta)).collect();
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            let buffer = device.allocate(label, bytes.len() as u64)?;
            // A context is far below 2^32 positions: `Config` bounds it.
            let rows = u32::try_from(rows).expect("rows of a checked shape");
            let tensor = Tensor::whole(buffer, rows, ROTARY_DIM as u32, Dtype::F32);
            device.write(tensor.range, bytes)?;
            Ok(tensor)
        };
        Ok(Self {
            coarse: table(
                "rotations of every 512th position",
                shape.max_positions / FINE + 1,
                FINE,
            )?,
            fine: table("rotations of 512 positions", FINE, 1)?,
        })
    }

    /// Positions that the tables cover.
    #[must_use]
    pub fn positions(&self) -> u64 {
        u64::from(self.coarse.rows) * FINE as u64
    }
}

/// Cosines, then sines.
fn turn(position: usize, theta: f32) -> impl Iterator<Item = f32> {
    let rotation = Rotation::new(position, theta);
    let angles = *rotation.angles();
    let cosines = angles.into_iter().map(|(cos, _)| cos);
    cosines.chain(angles.into_iter().map(|(_, sin)| sin))
}
