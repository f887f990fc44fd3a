//! Kernels compute what Metal says, in both builds and in every order of lanes.

mod common;
use calla_gpu::{Dispatch, Dtype};
use common::*;
use half::bf16;

/// Runs `text`'s kernel `k(x, y)` on 64 threads in both builds and four orders, and gives y: always the same.
fn compute(text: &str, x: &[f32], n: u32) -> Option<Vec<u32>> {
    let mut first: Option<Vec<u32>> = None;
    for sanitize in BUILDS {
        let mut device = device(&build(sanitize), text)?;
        let x = f32s(&mut device, x);
        for order in 0..4 {
            device.set_order(order);
            let y = output(&mut device, n, Dtype::U32);
            let dispatch = Dispatch::new("k").read(x).write(y).grid([1; 3], [64, 1, 1]);
            run(&mut device, dispatch).unwrap_or_else(|error| panic!("{error}"));
            let values = get(&mut device, y);
            assert_eq!(*first.get_or_insert(values.clone()), values, "order {order}");
        }
    }
    first
}

fn floats(values: Vec<u32>) -> Vec<f32> {
    values.into_iter().map(f32::from_bits).collect()
}

#[test]
fn simdgroup_functions_see_all_lanes() {
    let text = "kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
        const float v = x[i];
        y[i] = simd_sum(v);
        y[64 + i] = simd_shuffle_xor(v, 5);
        y[128 + i] = simd_shuffle_down(v, 3);
        y[192 + i] = simd_prefix_exclusive_sum(v);
        y[256 + i] = simd_max(v) - simd_min(v);
        const ulong set = ulong(simd_ballot(lane % 3 == 0));
        y[320 + i] = float(popcount(set) + (simd_all(v >= 0.0f) ? 100 : 0) + (simd_any(v > 62.0f) ? 1000 : 0));
        y[384 + i] = simd_broadcast(v, 7);
    }";
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let Some(y) = compute(text, &x, 448).map(floats) else { return };
    for i in 0..64usize {
        let (start, lane) = (i / 32 * 32, i % 32);
        let sum: usize = (start..start + 32).sum();
        assert_eq!(y[i], sum as f32);
        assert_eq!(y[64 + i], (start + (lane ^ 5)) as f32);
        assert_eq!(y[128 + i], (if lane + 3 < 32 { i + 3 } else { i }) as f32);
        assert_eq!(y[192 + i], (start..i).sum::<usize>() as f32);
        assert_eq!(y[256 + i], 31.0);
        assert_eq!(y[320 + i], 11.0 + 100.0 + if start > 0 { 1000.0 } else { 0.0 });
        assert_eq!(y[384 + i], (start + 7) as f32);
    }
}

#[test]
fn bfloats_round_to_nearest_even() {
    let text = "kernel void k(device const float* x [[buffer(0)]], device uint* y [[buffer(1)]],
        uint i [[thread_position_in_grid]]) {
        const bfloat2 pair = bfloat2(x[i], -x[i]);
        y[i] = as_type<uint>(pair);
        const float2 wide = float2(pair);
        const bfloat4 four = bfloat4(pair, bfloat(1.0f), bfloat(2.0f));
        y[64 + i] = as_type<uint>(wide.x + float(four.y) + float(four.w));
    }";
    let mut x: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 / 1024.0).collect();
    x[60..].copy_from_slice(&[f32::INFINITY, f32::MAX, 1e-40, -0.0]);
    let Some(y) = compute(text, &x, 128) else { return };
    for (i, &v) in x.iter().enumerate() {
        let expected = [bf16::from_f32(v), bf16::from_f32(-v)].map(bf16::to_bits);
        assert_eq!(y[i], u32::from(expected[0]) | u32::from(expected[1]) << 16, "{v}");
        if v.is_finite() && bf16::from_f32(v).is_finite() {
            assert_eq!(f32::from_bits(y[64 + i]), 2.0);
        }
    }
}

#[test]
fn threads_know_where_they_are() {
    let text = "kernel void k(device const float* x [[buffer(0)]], device uint* y [[buffer(1)]],
        uint3 at [[thread_position_in_grid]], uint3 group [[threadgroup_position_in_grid]],
        ushort2 local [[thread_position_in_threadgroup]], uint2 size [[threads_per_threadgroup]],
        uint3 groups [[threadgroups_per_grid]], uint index [[thread_index_in_threadgroup]],
        ushort sg [[simdgroup_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
        uint sgs [[simdgroups_per_threadgroup]]) {
        const uint flat = (group.z * groups.y + group.y) * groups.x + group.x;
        const bool right = at.x == group.x * size.x + local.x && at.y == group.y * size.y + local.y
            && index == uint(local.y) * size.x + local.x && uint(sg) * 32 + lane == index && sgs == 2 && x[0] == 1.0f;
        y[flat * 64 + index] = right ? at.x + 1000 * at.y + 1000000 * at.z : 0xffffffffu;
    }";
    let Some(mut device) = device(&build(false), text) else { return };
    let x = f32s(&mut device, &[1.0]);
    let y = output(&mut device, 64 * 12, Dtype::U32);
    run(&mut device, Dispatch::new("k").read(x).write(y).grid([2, 3, 2], [16, 4, 1])).unwrap();
    let values: Vec<u32> = get(&mut device, y);
    for (flat, group) in values.chunks(64).enumerate() {
        let (gx, gy, gz) = (flat % 2, flat / 2 % 3, flat / 6);
        for (i, &value) in group.iter().enumerate() {
            let expected = gx * 16 + i % 16 + 1000 * (gy * 4 + i / 16) + 1_000_000 * gz;
            assert_eq!(value as usize, expected);
        }
    }
}

#[test]
fn threadgroup_memory_and_barriers() {
    let text = "kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint i [[thread_index_in_threadgroup]]) {
        threadgroup float t[64];
        threadgroup float pairs[2][32], total;
        t[63 - i] = x[i];
        pairs[i % 2][i / 2] = x[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i == 40) total = t[0] + pairs[1][3];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = t[i] + total;
    }";
    let x: Vec<f32> = (0..64).map(|i| (i * i) as f32).collect();
    let Some(y) = compute(text, &x, 64).map(floats) else { return };
    for i in 0..64 {
        assert_eq!(y[i], x[63 - i] + x[63] + x[7]);
    }
}

#[test]
fn matrices_multiply_and_show_their_elements() {
    let text = "kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
        threadgroup float tile[2][64];
        simdgroup_float8x8 a, b, acc = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
        simdgroup_load(a, x + 64 * sg, 8);
        simdgroup_load(b, x + 128, 8, ulong2(0), true);
        for (uint n = 0; n < 3; n++) simdgroup_multiply_accumulate(acc, a, b, acc);
        simdgroup_float8x8 kept = acc;
        acc.thread_elements() *= 2.0f;
        const uint row = (lane >> 4) * 4 + ((lane >> 1) & 3), col = ((lane >> 3) & 1) * 4 + (lane & 1) * 2;
        acc.thread_elements()[1] += float(row * 8 + col + 1);
        simdgroup_multiply_accumulate(acc, a, b, acc);
        simdgroup_store(acc, &tile[sg][0], 8);
        simdgroup_store(kept, y + 128 + 64 * sg, 8, ulong2(0), true);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < 64; i += 32) y[64 * sg + i] = tile[1 - sg][i];
    }";
    let x: Vec<f32> = (0..192).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
    let Some(y) = compute(text, &x, 256).map(floats) else { return };
    for sg in 0..2 {
        for r in 0..8 {
            for c in 0..8 {
                let product: f32 =
                    (0..8).map(|k| x[64 * sg + 8 * r + k] * x[128 + 8 * c + k]).sum();
                let kept = 1.0 + 3.0 * product;
                assert_eq!(y[128 + 64 * sg + 8 * c + r], kept);
                let added = if c % 2 == 1 { (8 * r + c) as f32 } else { 0.0 };
                assert_eq!(y[64 * (1 - sg) + 8 * r + c], 2.0 * kept + added + product);
            }
        }
    }
}

#[test]
fn atomics_count_across_threads_and_threadgroups() {
    let text = "kernel void k(device atomic_uint* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
        threadgroup atomic_uint count;
        if (i % 64 == 0) atomic_store_explicit(&count, 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit(&count, i % 2, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i % 64 == 0) atomic_fetch_add_explicit(&y[0], atomic_load_explicit(&count, memory_order_relaxed), memory_order_relaxed);
        atomic_fetch_max_explicit(&y[1], i, memory_order_relaxed);
    }";
    let Some(mut device) = device(&build(false), text) else { return };
    let y = u32s(&mut device, &[0, 0]);
    run(&mut device, Dispatch::new("k").read_write(y).grid([100, 1, 1], [64, 1, 1])).unwrap();
    assert_eq!(get::<u32>(&mut device, y), [3200, 6399]);
}
