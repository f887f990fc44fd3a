//! What a kernel or a dispatch does wrong is reported, and the device goes on.

mod common;
use calla_gpu::{BufferId, Device as _, DeviceError, Dispatch, Dtype, Place, Range, Tensor};
use calla_gpu_host::{HostDevice, Options};
use common::*;

/// The body of a kernel on y, 64 threads, of which each knows its index `i` and its lane.
fn kernel(body: &str) -> String {
    format!(
        "kernel void k(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]],\n\
         uint lane [[thread_index_in_simdgroup]]) {{\n{body}\n}}\n\
         kernel void fine(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {{ y[i] = 1.0f; }}"
    )
}

fn dispatch(y: Tensor) -> Dispatch {
    Dispatch::new("k").read_write(y).grid([3, 1, 1], [64, 1, 1])
}

/// Runs `body` in all orders until it fails, and shows that the device is still of use. `None` where nothing compiles.
fn report(sanitize: bool, body: &str) -> Option<String> {
    let mut device = device(&build(sanitize), &kernel(body))?;
    let y = output(&mut device, 64, Dtype::F32);
    let failures = (0..4).filter_map(|order| {
        device.set_order(order);
        run(&mut device, dispatch(y)).err()
    });
    let failure = failures.last().map(|error| error.to_string()).unwrap_or_default();
    let fine = Dispatch::new("fine").write(y).grid([1; 3], [64, 1, 1]);
    run(&mut device, fine).expect("the next dispatch");
    assert_eq!(get::<f32>(&mut device, y), [1.0; 64]);
    Some(failure)
}

fn check(sanitize: bool, body: &str, expected: &[&str]) {
    let Some(report) = report(sanitize, body) else { return };
    for expected in expected {
        assert!(report.contains(expected), "{expected:?} is not in {report:?}");
    }
}

#[test]
fn lanes_that_part_are_reported_with_their_lines() {
    for sanitize in BUILDS {
        check(
            sanitize,
            "if (lane < 16) y[i] = simd_sum(1.0f);\nelse y[i] = simd_max(1.0f);",
            &[
                "lanes of one simdgroup diverge",
                "simd_sum (test.metal:3)",
                "simd_max (test.metal:4)",
            ],
        );
    }
    check(false, "if (lane == 5) return;\ny[i] = simd_sum(1.0f);", &["return", "test.metal:4"]);
}

#[test]
fn a_barrier_needs_all_threads() {
    let body = "if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = 0.0f;";
    check(false, body, &["simdgroups of one threadgroup diverge", "test.metal:3"]);
}

#[test]
fn matrix_operations_are_for_all_lanes_and_alike() {
    let load = "simdgroup_float8x8 a; simdgroup_load(a, y + (lane == 9 ? 1 : 0), 8);\n\
        simdgroup_store(a, y, 8);";
    check(false, load, &["lanes of one simdgroup differ at simdgroup_load"]);
    let some = "simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);\n\
        if (lane < 31) simdgroup_load(a, y, 8);\nsimdgroup_barrier(mem_flags::mem_none);\n\
        y[i] = 0.0f;";
    check(false, some, &["differ in their simdgroup_matrix operations before simdgroup_barrier"]);
    let empty = "simdgroup_float8x8 a; simdgroup_store(a, y, 8);";
    check(false, empty, &["a simdgroup_matrix that was given no values"]);
}

#[test]
fn threadgroup_memory_is_limited() {
    let body = "threadgroup float t[8192], u; t[i] = 0.0f; u = 0.0f;\n\
        threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = t[i];";
    check(false, body, &["32772 bytes of threadgroup memory with u"]);
}

#[test]
fn a_kernel_that_does_not_end_is_stopped() {
    let text = kernel("volatile uint n = 1; while (n != 0) { n = n | 1; }");
    let options = Options { timeout_s: 1, ..Options::default() };
    let Some(mut device) = device(&options, &text) else { return };
    let y = output(&mut device, 64, Dtype::F32);
    assert_eq!(failure(&mut device, dispatch(y)), "k failed: it did not end within 1 s");
    run(&mut device, Dispatch::new("fine").write(y).grid([1; 3], [64, 1, 1])).unwrap();
}

#[test]
fn the_sanitizer_sees_what_lies_outside() {
    let buffer = "y[i + 1] = 0.0f;";
    let threadgroup =
        "threadgroup float t[64]; threadgroup float* p = t + 1; p[i] = y[i]; y[i] = p[0];";
    let thread = "float t[4] = {}; thread float* p = t; p[i % 5] = y[i]; y[i] = t[i % 4];";
    for body in [buffer, threadgroup, thread] {
        check(true, body, &["AddressSanitizer", "test.metal:3"]);
    }
    let array = "threadgroup float t[64]; t[i + 1] = y[i]; y[i] = t[0];";
    check(true, array, &["index 64 out of bounds", "test.metal:3"]);
    check(true, "y[i] = float(1u << (i + lane));", &["shift exponent"]);
}

#[test]
fn the_sanitizer_sees_other_parts_of_a_buffer() {
    let text = kernel("y[i] = 0.0f; if (i == 0) y[-8] = 1.0f;");
    let Some(mut device) = device(&build(true), &text) else { return };
    let y = output(&mut device, 128, Dtype::F32);
    let part = Range { start: 256, len: 256, ..y.range };
    let dispatch = Dispatch::new("k").read_write_part(part, 0, 256).grid([1; 3], [64, 1, 1]);
    let failure = failure(&mut device, dispatch);
    assert!(failure.contains("AddressSanitizer: use-after-poison"), "{failure}");
}

#[test]
fn writes_after_the_end_of_a_buffer_show_without_the_sanitizer() {
    check(false, "y[i + 8] = 1.0f;", &["it wrote after the end of the buffer at index 0"]);
}

#[test]
fn what_a_dispatch_writes_is_forgotten_first() {
    let text = kernel("y[i] += 1.0f;");
    for sanitize in BUILDS {
        let options = Options { forget: true, ..build(sanitize) };
        let Some(mut device) = device(&options, &text) else { return };
        let y = f32s(&mut device, &[2.0; 64]);
        run(&mut device, Dispatch::new("k").read_write(y).grid([1; 3], [64, 1, 1])).unwrap();
        assert_eq!(get::<f32>(&mut device, y), [3.0; 64]);
        run(&mut device, Dispatch::new("k").write(y).grid([1; 3], [64, 1, 1])).unwrap();
        assert!(get::<f32>(&mut device, y).iter().all(|v| v.is_nan()));
    }
}

#[test]
fn memory_that_nobody_wrote_reads_as_nan() {
    let text = kernel("threadgroup float t[64]; y[i] = t[i] + y[i];");
    let Some(mut device) = device(&build(false), &text) else { return };
    let y = output(&mut device, 64, Dtype::F32);
    assert!(get::<f32>(&mut device, y).iter().all(|v| v.is_nan()));
    device.write(y.range, &[0; 256]).unwrap();
    run(&mut device, dispatch(y)).unwrap();
    assert!(get::<f32>(&mut device, y).iter().all(|v| v.is_nan()));
}

#[test]
fn a_barrier_left_out_shows_in_some_order() {
    let body = "threadgroup float t[64]; t[i] = 1.0f; y[i] = t[63 - i];";
    let Some(mut device) = device(&build(false), &kernel(body)) else { return };
    let y = output(&mut device, 64, Dtype::F32);
    let shows = (0..4).filter(|&order| {
        device.set_order(order);
        run(&mut device, dispatch(y)).unwrap();
        get::<f32>(&mut device, y).iter().any(|v| v.is_nan())
    });
    assert_eq!(shows.count(), 4);
}

const TYPED: &str = "struct P { uint n; float scale; };
    constant uint WIDTH [[function_constant(0)]];
    constant bool MAYBE [[function_constant(17)]];
    constant bool IS = is_function_constant_defined(MAYBE) && MAYBE;
    kernel void k(device const float4* x [[buffer(0)]], device float* y [[buffer(1)]], constant P& p [[buffer(2)]],
        uint i [[thread_position_in_grid]]) { y[i] = x[i % 4].y * p.scale + float(p.n + WIDTH + (IS ? 100 : 0)); }";

struct Typed {
    device: HostDevice,
    x: Tensor,
    y: Tensor,
}

fn typed() -> Option<Typed> {
    let mut device = device(&build(false), TYPED)?;
    let x = f32s(&mut device, &[3.0; 20]);
    let y = output(&mut device, 32, Dtype::F32);
    Some(Typed { device, x, y })
}

const PARAMS: [u32; 2] = [7, 0x4000_0000];

#[test]
fn parameters_and_constants_arrive() {
    let Some(Typed { mut device, x, y }) = typed() else { return };
    let plain = Dispatch::new("k").constant(0, 1000).read(x).write(y).params(&PARAMS);
    run(&mut device, plain.clone().constant(3, 5)).unwrap();
    assert_eq!(get::<f32>(&mut device, y), [1013.0; 32]);
    run(&mut device, plain.clone().constant(17, 1)).unwrap();
    assert_eq!(get::<f32>(&mut device, y), [1113.0; 32]);
    run(&mut device, plain).unwrap();
    assert_eq!(get::<f32>(&mut device, y), [1013.0; 32]);
}

#[test]
fn a_dispatch_has_to_fit_its_kernel() {
    let Some(Typed { mut device, x, y }) = typed() else { return };
    let whole = Dispatch::new("k").constant(0, 1).read(x).write(y).params(&PARAMS);
    let with = |change: fn(&mut Dispatch)| {
        let mut dispatch = whole.clone();
        change(&mut dispatch);
        dispatch
    };
    let new = || Dispatch::new("k").constant(0, 1);
    for (dispatch, expected) in [
        (Dispatch::new("nobody"), "no kernel has this name"),
        (with(|d| d.constants.clear()), "function constant 0 (WIDTH) is not set"),
        (with(|d| d.constants.push((20, 1))), "function constant 20 is set; test.metal has none"),
        (new().read(x).params(&PARAMS), "1 buffers are bound; test.metal takes 2"),
        (new().read(x).write(y), "parameters are 0 bytes; test.metal takes 8"),
        (new().read(x).write(y).params(&[1u32; 3]), "parameters are 12 bytes; test.metal takes 8"),
        (new().write(x).write(y).params(&PARAMS), "buffer 0: it is bound to be written"),
        (new().read(x).read(y).params(&PARAMS), "buffer 1: it is bound to be read"),
        (with(|d| d.bindings[0].range.start = 4), "bytes from 4 on end after its 80 bytes"),
        (
            with(|d| d.bindings[0].range = Range { start: 4, len: 16, ..d.bindings[0].range }),
            "not at a multiple of 16",
        ),
        (
            with(|d| d.bindings[1].range.place = Place::Buffer(BufferId(9))),
            "buffer 1: there is no buffer 9",
        ),
        (
            with(|d| d.bindings[1].range = d.bindings[0].range),
            "buffer 1 is only written and is buffer 0 too",
        ),
        (with(|d| d.threads = [48, 1, 1]), "a multiple of 32, at most 256"),
        (with(|d| d.threads = [512, 1, 1]), "a multiple of 32, at most 256"),
        (with(|d| d.grid = [0, 1, 1]), "there is at least one"),
    ] {
        let failure = failure(&mut device, dispatch);
        assert!(failure.contains(expected), "{expected:?} is not in {failure:?}");
    }
    run(&mut device, whole).unwrap();
}

#[test]
fn dispatches_of_a_stage_leave_each_other_alone() {
    let Some(mut device) = device(&build(false), &kernel("y[i] = 2.0f;")) else { return };
    let y = output(&mut device, 192, Dtype::F32);
    let part = |start| {
        let range = Range { start, len: 256, ..y.range };
        Dispatch::new("k")
            .write_part(range, 256)
            .grid([1; 3], [64, 1, 1])
            .label(format!("at {start}"))
    };
    device.run(&[part(0), part(256)], &[2]).unwrap();
    device.run(&[part(0), part(128)], &[1, 1]).unwrap();
    let error = device.run(&[part(0), part(512), part(128)], &[3]).unwrap_err();
    assert!(
        matches!(&error, DeviceError::Kernel { reason, .. } if reason.contains("at 0 and at 128")),
        "{error}"
    );
    assert!(device.run(&[part(0)], &[1, 1]).is_err());
}

#[test]
fn what_does_not_compile_is_reported_where_it_stands() {
    for (body, expected) in [
        ("threadgroup float t[64]; device float* p = t; y[i] = p[0];", "test.metal:3:"),
        ("const float w = undeclared; y[i] = w;", "test.metal:3:"),
        ("y[i] = float(bfloat(1.0f) + float4(1.0f, 2.0f, 3.0f));", "wrong number of components"),
        ("bfloat b = y[i] * 2.0f; y[i] = float(b);", "implicit conversion loses"),
        ("double d = 1.0; y[i] = d;", "test.metal:3: double"),
    ] {
        let Some(mut device) = device(&build(false), &kernel(body)) else { return };
        let y = output(&mut device, 64, Dtype::F32);
        let failure = failure(&mut device, dispatch(y));
        assert!(failure.contains(expected), "{expected:?} is not in {failure:?}");
    }
}

#[test]
fn writes_and_reads_stay_in_their_buffers() {
    let Some(mut device) = device(&build(false), &kernel("")) else { return };
    let y = output(&mut device, 4, Dtype::F32);
    let beyond = Range { start: 8, len: 16, ..y.range };
    assert!(device.write(beyond, &[0; 16]).is_err());
    assert!(device.read(beyond, &mut [0; 16]).is_err());
    assert!(device.write(y.range, &[0; 15]).is_err());
    assert!(device.read(Range { start: u64::MAX, ..y.range }, &mut [0; 16]).is_err());
    assert!(device.allocate("too much", u64::MAX).is_err());
}

#[test]
fn a_released_buffer_is_gone_and_its_neighbours_are_not() {
    let Some(mut device) = device(&build(false), &kernel("y[i] = 1.0f;")) else { return };
    let values = [[1.0; 64], [2.0; 64], [3.0; 64]].map(|values| f32s(&mut device, &values));
    let Place::Buffer(buffer) = values[1].range.place else { panic!("no buffer") };
    device.release(buffer).unwrap();
    for (value, tensor) in [(1.0, values[0]), (3.0, values[2])] {
        assert_eq!(get::<f32>(&mut device, tensor), [value; 64]);
        device.run(&[dispatch(tensor)], &[1]).unwrap();
        assert_eq!(get::<f32>(&mut device, tensor), [1.0; 64]);
    }
    let errors = [
        device.read(values[1].range, &mut [0; 256]),
        device.write(values[1].range, &[0; 256]),
        device.run(&[dispatch(values[1])], &[1]),
        device.release(buffer),
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("buffer 1 was released"), "{error}");
    }
    assert!(device.release(BufferId(3)).is_err());
}
