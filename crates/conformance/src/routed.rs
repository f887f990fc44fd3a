//! Routing on its way to the device and back.

use crate::values::{integers, output, rows, u32s};
use calla_gpu::{Device, Dtype, Routing, Tensor};
use calla_model::Shape;
use calla_ops::route;

/// The demo's shape with other experts.
pub fn shape(experts: usize, top_k: usize) -> Shape {
    Shape { experts, top_k, ..Shape::demo() }
}

/// A routing of undefined values.
pub fn undefined(device: &mut dyn Device, rows: usize, top_k: usize) -> Routing {
    Routing {
        experts: output(device, rows, top_k, Dtype::U32),
        weights: output(device, rows, top_k, Dtype::F32),
    }
}

/// A routing that the device reads.
pub fn upload(device: &mut dyn Device, routing: &route::Routing) -> Routing {
    let weights = output(device, routing.rows(), routing.top_k, Dtype::F32);
    device.write(weights.range, bytemuck::cast_slice(&routing.weights)).expect("a write");
    Routing { experts: u32s(device, &routing.experts, routing.top_k), weights }
}

/// What the device has chosen.
pub fn read(device: &mut dyn Device, routing: &Routing) -> route::Routing {
    route::Routing {
        top_k: routing.experts.cols as usize,
        experts: integers(device, routing.experts),
        weights: rows(device, routing.weights).into_vec(),
    }
}

/// Bits of a tensor, whatever is in it.
pub fn bits(device: &mut dyn Device, tensor: Tensor) -> Vec<u32> {
    integers(device, tensor)
}
