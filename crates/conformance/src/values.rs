//! Values on their way to a device and back.
//!
//! Functions here panic where the device fails. [`crate::run`] gives them a device that never does, and asks afterwards.

use calla_gpu::step_tables::{StepTables, TableBuffer};
use calla_gpu::{Device, Dispatch, Dtype, GpuExperts, GpuMatrix, Place, Range, Tables, Tensor};
use calla_model::matrix::MatrixData;
use calla_model::{Experts, Matrix};
use calla_ops::Rows;
use half::bf16;

/// A matrix format that the kernels take.
pub fn format(bits: usize) -> calla_model::AffineFormat {
    calla_model::AffineFormat::new(bits, 64).expect("4 or 8 bits in groups of 64")
}

/// A tensor of undefined values: its bytes are 0xff, which read as NaN.
pub fn output(device: &mut dyn Device, rows: usize, cols: usize, dtype: Dtype) -> Tensor {
    let bytes = rows as u64 * cols as u64 * dtype.size();
    let buffer = device.allocate("output", bytes.max(1)).expect("memory");
    let tensor = Tensor::whole(buffer, rows as u32, cols as u32, dtype);
    device.write(tensor.range, &vec![0xff; bytes as usize]).expect("a write");
    tensor
}

/// Values in f32.
pub fn f32s(device: &mut dyn Device, rows: &Rows) -> Tensor {
    let tensor = output(device, rows.rows(), rows.cols(), Dtype::F32);
    device.write(tensor.range, bytemuck::cast_slice(rows.as_slice())).expect("a write");
    tensor
}

/// A vector in f32 `[1, len]`.
pub fn vector(device: &mut dyn Device, values: &[f32]) -> Tensor {
    f32s(device, &Rows::from_vec(values.len(), values.to_vec()))
}

/// Values in bf16; `rounded` gives what the device then holds.
pub fn bf16s(device: &mut dyn Device, rows: &Rows) -> Tensor {
    let values: Vec<bf16> = rows.as_slice().iter().map(|&v| bf16::from_f32(v)).collect();
    let tensor = output(device, rows.rows(), rows.cols(), Dtype::Bf16);
    device.write(tensor.range, bytemuck::cast_slice(&values)).expect("a write");
    tensor
}

/// Values as bf16 holds them.
pub fn rounded(rows: &Rows) -> Rows {
    let values = rows.as_slice().iter().map(|&v| bf16::from_f32(v).to_f32());
    Rows::from_vec(rows.cols(), values.collect())
}

/// `expected`, but where `actual` is within the rounding of a stored result (see `tolerance::BF16`) it: what is then left
/// between the two is the kernel's own error.
pub fn beyond_rounding(actual: &Rows, expected: &Rows, rounding: f32) -> Rows {
    let pairs = actual.as_slice().iter().zip(expected.as_slice());
    let values = pairs.map(|(&a, &e)| {
        let room = rounding * e.abs();
        if (a - e).abs() <= room { a } else { a + (e - a).signum() * ((e - a).abs() - room) }
    });
    Rows::from_vec(expected.cols(), values.collect())
}

/// Integers `[rows, cols]`.
pub fn u32s(device: &mut dyn Device, values: &[u32], cols: usize) -> Tensor {
    let tensor = output(device, values.len() / cols, cols, Dtype::U32);
    device.write(tensor.range, bytemuck::cast_slice(values)).expect("a write");
    tensor
}

/// A step's tables as a runner puts them; of those that are missing nothing is defined.
pub fn tables(device: &mut dyn Device, tables: &StepTables) -> Tables {
    let bytes = tables.to_bytes();
    let whole = output(device, 1, bytes.len() / 4 + 1, Dtype::U32);
    let Place::Buffer(buffer) = whole.range.place else { panic!("no buffer") };
    let range = Range { len: bytes.len() as u64, ..whole.range };
    device.write(range, &bytes).expect("a write");
    TableBuffer { buffer, bytes: whole.range.len }.tables(tables.counts()).expect("room")
}

/// A 4- or 8-bit matrix.
pub fn matrix(device: &mut dyn Device, matrix: &Matrix) -> GpuMatrix {
    stacked(device, std::slice::from_ref(matrix))
}

/// The matrices of all experts.
pub fn experts(device: &mut dyn Device, experts: &Experts) -> GpuExperts {
    let all: Vec<Matrix> = experts.iter().cloned().collect();
    GpuExperts { count: all.len() as u32, stacked: stacked(device, &all) }
}

fn stacked(device: &mut dyn Device, matrices: &[Matrix]) -> GpuMatrix {
    let mut bytes = [vec![], vec![], vec![]];
    let mut bits = 0;
    for matrix in matrices {
        let MatrixData::Affine { format, packed, scales, biases, .. } = matrix.data() else {
            panic!("{matrix:?} is not quantised")
        };
        bits = format.bits() as u32;
        for (all, part) in bytes.iter_mut().zip([packed, scales, biases]) {
            all.extend_from_slice(part);
        }
    }
    let [packed, scales, biases] = bytes.map(|bytes| {
        let tensor = output(device, 1, bytes.len().div_ceil(4), Dtype::U32);
        let range = Range { len: bytes.len() as u64, ..tensor.range };
        device.write(range, &bytes).expect("a write");
        range
    });
    let rows = matrices.iter().map(Matrix::rows).sum::<usize>() as u32;
    GpuMatrix { rows, cols: matrices[0].cols() as u32, bits, packed, scales, biases }
}

/// Reads a tensor of f32 or bf16.
pub fn rows(device: &mut dyn Device, tensor: Tensor) -> Rows {
    let mut bytes = vec![0; tensor.range.len as usize];
    device.read(tensor.range, &mut bytes).expect("a read");
    let values = match tensor.dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::Bf16 => {
            bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
        }
        Dtype::U32 => panic!("integers"),
    };
    Rows::from_vec(tensor.cols as usize, values)
}

/// Reads a tensor of integers.
pub fn integers(device: &mut dyn Device, tensor: Tensor) -> Vec<u32> {
    let mut bytes = vec![0; tensor.range.len as usize];
    device.read(tensor.range, &mut bytes).expect("a read");
    bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect()
}

/// Runs dispatches one after the other.
pub fn run(device: &mut dyn Device, dispatches: &[Dispatch]) {
    device.run(dispatches, &vec![1; dispatches.len()]).unwrap_or_else(|error| panic!("{error}"));
}

/// Writes integers to a tensor of as many.
pub fn write_u32s(device: &mut dyn Device, tensor: Tensor, values: &[u32]) {
    device.write(tensor.range, bytemuck::cast_slice(values)).expect("a write");
}
