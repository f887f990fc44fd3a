//! Measures multiply-adds a second of two kernels like those that take the time in tests: a tiled product on simdgroup
//! matrices, and a product of a 4-bit matrix with a vector.
//!
//! `cargo run -p calla-gpu-host --example speed`

use calla_gpu::{Device as _, Dispatch, Dtype, Tensor};
use calla_gpu_host::{HostDevice, Options};
use std::time::Instant;

const TILED: &str = "
using namespace metal;
constant constexpr uint TILE = 32, LD = TILE + 4;
struct Params { uint n, k; };
kernel void tiled(device const bfloat* x [[buffer(0)]], device const bfloat* w [[buffer(1)]],
                  device float* y [[buffer(2)]], constant Params& p [[buffer(3)]],
                  uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                  uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup float xs[TILE * LD];
    threadgroup float ws[TILE * LD];
    const uint m0 = group.y * TILE, n0 = group.x * TILE, sm = (sg / 2) * 16, sn = (sg % 2) * 16;
    simdgroup_float8x8 acc[2][2];
    for (uint i = 0; i < 2; i++) for (uint j = 0; j < 2; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k0 = 0; k0 < p.k; k0 += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < TILE * TILE; i += 128) {
            const uint r = i / TILE, c = i % TILE;
            xs[r * LD + c] = float(x[(m0 + r) * p.k + k0 + c]);
            ws[r * LD + c] = float(w[(n0 + r) * p.k + k0 + c]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < TILE; kk += 8) {
            simdgroup_float8x8 a[2], b[2];
            for (uint i = 0; i < 2; i++) simdgroup_load(a[i], xs + (sm + 8 * i) * LD + kk, LD);
            for (uint j = 0; j < 2; j++) simdgroup_load(b[j], ws + (sn + 8 * j) * LD + kk, LD, ulong2(0), true);
            for (uint i = 0; i < 2; i++) for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
        }
    }
    for (uint i = 0; i < 2; i++) for (uint j = 0; j < 2; j++)
        simdgroup_store(acc[i][j], y + (m0 + sm + 8 * i) * p.n + n0 + sn + 8 * j, p.n);
}";

const VECTOR: &str = "
using namespace metal;
struct Params { uint n, k; };
kernel void vector(device const float* x [[buffer(0)]], device const uint* w [[buffer(1)]],
                   device float* y [[buffer(2)]], constant Params& p [[buffer(3)]],
                   uint group [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
    const uint row = group * 2 + sg;
    float sum = 0.0f;
    for (uint word = lane; word < p.k / 8; word += 32) {
        const uint q = w[row * (p.k / 8) + word];
        for (uint i = 0; i < 8; i++) sum = fma(float((q >> (4 * i)) & 15u), x[8 * word + i], sum);
    }
    sum = simd_sum(sum);
    if (lane == 0) y[row] = sum;
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sources = [("tiled.metal", TILED), ("vector.metal", VECTOR)];
    let mut device = HostDevice::with_sources(&Options::from_env(), &sources)?;
    let (m, n, k) = (64u32, 2048u32, 2048u32);
    let mut ones = |count: u64, dtype: Dtype, byte: u8| -> Result<Tensor, calla_gpu::DeviceError> {
        let buffer = device.allocate("values", count * dtype.size())?;
        let tensor = Tensor::whole(buffer, 1, u32::try_from(count).unwrap_or(u32::MAX), dtype);
        device.write(tensor.range, &vec![byte; (count * dtype.size()) as usize])?;
        Ok(tensor)
    };
    let (m64, n64, k64) = (u64::from(m), u64::from(n), u64::from(k));
    let x = ones(m64 * k64, Dtype::Bf16, 0x3f)?;
    let w = ones(n64 * k64, Dtype::Bf16, 0x3f)?;
    let y = ones(m64 * n64, Dtype::F32, 0)?;
    let packed = ones(n64 * k64 / 8, Dtype::U32, 0x37)?;
    let vector = ones(k64, Dtype::F32, 0x3f)?;
    let tiled = Dispatch::new("tiled").read(x).read(w).write(y).params(&[n, k]);
    let tiled = tiled.grid([n / 32, m / 32, 1], [128, 1, 1]);
    let row = Dispatch::new("vector").read(vector).read(packed).write(y).params(&[n, k]);
    let row = row.grid([n / 2, 1, 1], [64, 1, 1]);
    for (dispatch, products) in [(tiled, m64 * n64 * k64), (row, n64 * k64)] {
        // The first compiles.
        device.run(std::slice::from_ref(&dispatch), &[1])?;
        let seconds = (0..5).map(|_| {
            let start = Instant::now();
            device
                .run(std::slice::from_ref(&dispatch), &[1])
                .map(|()| start.elapsed().as_secs_f64())
        });
        let seconds = seconds.collect::<Result<Vec<f64>, _>>()?;
        let best = seconds.into_iter().fold(f64::INFINITY, f64::min);
        let rate = products as f64 / best / 1e9;
        println!("{}: {:.2} ms, {rate:.2} G multiply-adds/s", dispatch.entry, best * 1e3);
    }
    Ok(())
}
