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

#[test]
fn matrices_of_half_and_bfloat_round_their_elements() {
    let text = "template <typename T> inline void product(device const float* x, device float* y, uint lane) {
        threadgroup_barrier(mem_flags::mem_none);
        simdgroup_matrix<T, 8, 8> a, b, d;
        const uint row = (lane >> 4) * 4 + ((lane >> 1) & 3), col = ((lane >> 3) & 1) * 4 + (lane & 1) * 2;
        for (uint i = 0; i < 2; i++) {
            a.thread_elements()[i] = T(x[8 * row + col + i]);
            b.thread_elements()[i] = T(x[64 + 8 * row + col + i]);
        }
        simdgroup_multiply(d, a, b);
        for (uint i = 0; i < 2; i++) y[8 * row + col + i] = float(d.thread_elements()[i]);
    }
    kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
        uint sg [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
        product<half>(x, y + 128 * sg, lane);
        product<bfloat>(x, y + 128 * sg + 64, lane);
    }";
    let x: Vec<f32> = (0..128).map(|i| ((i * 5) % 17) as f32 - 7.5).collect();
    let Some(y) = compute(text, &x, 256).map(floats) else { return };
    for r in 0..8 {
        for c in 0..8 {
            let sum: f32 = (0..8).map(|k| x[8 * r + k] * x[64 + 8 * k + c]).sum();
            for sg in 0..2 {
                let at = 128 * sg + 8 * r + c;
                assert_eq!(y[at], half::f16::from_f32(sum).to_f32());
                assert_eq!(y[at + 64], bf16::from_f32(sum).to_f32());
            }
        }
    }
}

#[test]
fn a_barrier_left_out_after_a_store_shows() {
    let text =
        "kernel void k(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
        threadgroup float t[64];
        simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8, 8>(3.0f);
        simdgroup_store(a, t, 8);
        y[i] = t[63 - i];
    }";
    let Some(mut device) = device(&build(false), text) else { return };
    let y = output(&mut device, 32, Dtype::F32);
    run(&mut device, Dispatch::new("k").write(y)).unwrap();
    assert!(get::<f32>(&mut device, y).iter().any(|v| v.is_nan()));
}

#[test]
fn numbers_and_vectors() {
    let text = "struct Pair { float2 v; uint n; };
    constant float TABLE[4] = {1.0f, 2.0f, 4.0f, 8.0f};
    constant constexpr uint SHIFT = 3;
    inline float area(thread const Pair& p) { return p.v.x * p.v.y + float(p.n); }
    kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
        threadgroup float4 tile[16];
        if (i < 16) tile[i] = *reinterpret_cast<device const float4*>(x + 4 * i);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const float4 v = tile[i / 4];
        y[i] = dot(v, float4(1.0f, 0.5f, float2(0.25f))) + max(v.xyzw, v.wzyx).y;
        const Pair p = {v.yz, i};
        y[64 + i] = area(p) + TABLE[i % 4];
        const ulong wide = (ulong(i) << 33) + 5;
        y[128 + i] = float(uint(wide >> 33)) + float(popcount(i)) + float(ctz(i)) + float(clz(i)) + float(i >> SHIFT);
        y[192 + i] = select(-1.0f, clamp(x[i], 2.0f, 9.0f), isfinite(x[i])) + fma(x[i], 2.0f, 1.0f) + precise::sqrt(x[i]);
        y[256 + i] = exp(-x[i]) + fast::log(x[i] + 1.0f) + exp2(0.5f) + log2(x[i] + 1.0f) + rsqrt(x[i] + 1.0f) + sin(x[i]) + cos(x[i]) + tanh(x[i]);
        y[320 + i] = (i == 7 ? -INFINITY : numeric_limits<float>::max()) / (abs(-3) + 1);
        const uchar4 bytes = as_type<uchar4>(0x04030201u * (i & 1));
        const uint4 w = uint4(bytes) << uint4(1, 2, 3, 4);
        y[384 + i] = float(w.x + w.y + w.z + w.w);
    }";
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let Some(y) = compute(text, &x, 448).map(floats) else { return };
    for i in 0..64u32 {
        let at = i as usize;
        let v: Vec<f32> = (0..4).map(|k| (i / 4 * 4 + k) as f32).collect();
        assert_eq!(y[at], v[0] + 0.5 * v[1] + 0.25 * v[2] + 0.25 * v[3] + v[2]);
        assert_eq!(y[64 + at], v[1] * v[2] + i as f32 + (1 << (i % 4)) as f32);
        let bits = i.count_ones() + i.trailing_zeros() + i.leading_zeros() + (i >> 3);
        assert_eq!(y[128 + at], (i + bits) as f32);
        let f = i as f32;
        assert_eq!(y[192 + at], f.clamp(2.0, 9.0) + (2.0 * f + 1.0) + f.sqrt());
        let sum =
            (-f).exp() + (f + 1.0).ln() + 0.5f32.exp2() + (f + 1.0).log2() + 1.0 / (f + 1.0).sqrt();
        let expected = sum + f.sin() + f.cos() + f.tanh();
        assert!((y[256 + at] - expected).abs() < 1e-5, "{} {expected}", y[256 + at]);
        assert_eq!(y[320 + at], if i == 7 { f32::NEG_INFINITY } else { f32::MAX / 4.0 });
        assert_eq!(y[384 + at], if i % 2 == 1 { 98.0 } else { 0.0 });
    }
}
