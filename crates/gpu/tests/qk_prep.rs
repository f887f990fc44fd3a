//! Norm and rotation of queries and keys, and the append to pages, against the reference.

mod common;

use calla_gpu::qk_prep::qk_prep;
use calla_gpu::{Dtype, GpuMatrix, GpuParts, Range as Bytes, Rotations};
use calla_model::Shape;
use calla_model::network::{Attention, CheckpointParts, Mixer};
use calla_ops::{Batch, CacheSize, Rows, attention, cache};
use calla_testkit::{Random, compare, weights};
use common::TestDevice;
use common::paged::{self, Layout};
use common::tolerance;
use std::ops::Range;

/// What leaves the projections of some rows.
struct Inputs {
    q_gate: Rows,
    k: Rows,
    v: Rows,
}

/// What is left of them: queries, and the pool.
struct Results {
    q: Rows,
    pool: cache::KvPool,
}

/// What positions of the pool hold that are not written: no result is as large. Not NaN, as what a dispatch declares to
/// write alone becomes before it runs.
const UNTOUCHED: f32 = 65536.0;

fn pool(layout: &Layout, shape: &Shape) -> cache::KvPool {
    let mut pool = layout.reference_pool(shape);
    pool.keys.fill(UNTOUCHED);
    pool.values.fill(UNTOUCHED);
    pool
}

fn layer(shape: &Shape, seed: u64) -> Attention<CheckpointParts> {
    let mut network = weights::network(shape, weights::Formats::Published, seed);
    match network.layers.remove(0).mixer {
        Mixer::Attention(attention) => attention,
        Mixer::DeltaNet(_) => panic!("not an attention layer"),
    }
}

fn prepared(
    device: &mut TestDevice,
    shape: &Shape,
    weights: &Attention<CheckpointParts>,
    layout: &Layout,
    inputs: &Inputs,
    dtype: Dtype,
) -> Results {
    let mut upload = |rows: &Rows| match dtype {
        Dtype::F32 => common::f32s(device, rows),
        _ => common::bf16s(device, rows),
    };
    let (q_gate, k, v) = (upload(&inputs.q_gate), upload(&inputs.k), upload(&inputs.v));
    let (q_norm, k_norm) =
        (common::vector(device, &weights.q_norm), common::vector(device, &weights.k_norm));
    // No matrix is read.
    let none = Bytes { len: 0, ..q_norm.range };
    let matrix = GpuMatrix { rows: 0, cols: 64, bits: 4, packed: none, scales: none, biases: none };
    let weights: Attention<GpuParts> = Attention {
        q_proj: matrix,
        k_proj: matrix,
        v_proj: matrix,
        q_norm,
        k_norm,
        o_proj: matrix,
    };
    let rotations = Rotations::upload(device, shape).expect("memory");
    assert!(rotations.positions() > shape.max_positions as u64);
    let tables = layout.tables(device, || 64);
    let mut pool = pool(layout, shape);
    let paged = paged::upload(device, shape, &pool);
    let q = common::output(device, layout.rows(), shape.query_dim(), dtype);
    let dispatch = qk_prep(shape, q_gate, k, v, &weights, &rotations, &tables, &paged, q);
    common::run(device, &[dispatch]);
    pool.keys.copy_from_slice(&paged::download(device, shape, paged.keys));
    pool.values.copy_from_slice(&paged::download(device, shape, paged.values));
    Results { q: common::rows(device, q), pool }
}

fn reference(
    shape: &Shape,
    weights: &Attention<CheckpointParts>,
    layout: &Layout,
    inputs: &Inputs,
) -> Results {
    let spans = layout.spans.iter().enumerate();
    let spans = spans.map(|(slot, span)| calla_ops::Span { slot, ..span.clone() }).collect();
    let size = CacheSize { pages: layout.pages, slots: layout.spans.len() };
    let tokens = vec![0; layout.rows()];
    let batch = Batch::new(tokens, spans, vec![], shape.vocab_size, size).expect("a batch");
    let turned = calla_ops::qk_prep::reference(shape, &inputs.q_gate, &inputs.k, weights, &batch);
    let mut pool = pool(layout, shape);
    for span in batch.spans() {
        attention::append(&turned.k, &inputs.v, span, &mut pool);
    }
    Results { q: turned.q, pool }
}

fn inputs(random: &mut Random, shape: &Shape, rows: usize, rounded: bool) -> Inputs {
    let mut make = |cols: usize| {
        let rows = random.rows(rows, cols, 2.0);
        if rounded { common::rounded(&rows) } else { rows }
    };
    let width = shape.query_dim();
    Inputs { q_gate: make(2 * width), k: make(shape.kv_dim()), v: make(shape.kv_dim()) }
}

/// Keys or values that have been written, a head a row; others are untouched on both sides.
fn written(actual: &[f32], expected: &[f32]) -> (Rows, Rows) {
    let pairs = actual.iter().zip(expected);
    let mut heads = (vec![], vec![]);
    for (&a, &e) in pairs {
        assert_eq!(a == UNTOUCHED, e == UNTOUCHED, "another position was written, or one was not");
        if e != UNTOUCHED {
            heads.0.push(a);
            heads.1.push(e);
        }
    }
    (Rows::from_vec(256, heads.0), Rows::from_vec(256, heads.1))
}

fn shape(heads: usize, kv_heads: usize) -> Shape {
    // Large enough that the epsilon counts.
    Shape { rms_norm_eps: 0.5, max_positions: 262_144, ..paged::shape(heads, kv_heads) }
}

/// Around the edges of pages and of the tables of angles, up to the last position there may be.
#[test]
fn queries_keys_and_pages_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let heads = [(1, 1), (3, 1), (8, 2), (16, 2), (12, 3)];
    let mut worst = 0.0_f32;
    for (seed, (heads, kv_heads)) in (0..).zip(heads) {
        let random = &mut Random::new(seed);
        let shape = shape(heads, kv_heads);
        let weights = layer(&shape, seed);
        let spans = [0..1, 63..66, 510..514, 262_142..262_144, 0..31, 1023..1025];
        let layout = Layout::without_history(random, &spans);
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let rounded = dtype == Dtype::Bf16;
            let inputs = inputs(random, &shape, layout.rows(), rounded);
            let actual = prepared(&mut device, &shape, &weights, &layout, &inputs, dtype);
            let expected = reference(&shape, &weights, &layout, &inputs);
            let mut check = |actual: &Rows, expected: &Rows, rounded: bool, what: &str| {
                let due = common::beyond_rounding(actual, expected, tolerance::BF16);
                let due = if rounded { &due } else { expected };
                let by_head = |rows: &Rows| Rows::from_vec(256, rows.as_slice().to_vec());
                let (actual, due) = (by_head(actual), by_head(due));
                let difference = compare::within(&actual, &due, tolerance::QK_PREP)
                    .unwrap_or_else(|error| panic!("{heads}/{kv_heads} heads, {what}: {error}"));
                worst = worst.max(difference.max_relative);
            };
            check(&actual.q, &expected.q, rounded, "queries");
            let (keys, due) = written(&actual.pool.keys, &expected.pool.keys);
            check(&keys, &due, true, "keys");
            let (values, due) = written(&actual.pool.values, &expected.pool.values);
            compare::identical(&values, &common::rounded(&due)).unwrap();
        }
    }
    println!("worst: {worst:.1e}");
}

/// The angles of positions far out are those of f64.
#[test]
fn tables_add_up_to_the_references_angles() {
    let Some(mut device) = common::device() else { return };
    let shape = shape(1, 1);
    let rotations = Rotations::upload(&mut device, &shape).expect("memory");
    let coarse = common::rows(&mut device, rotations.coarse);
    let fine = common::rows(&mut device, rotations.fine);
    for position in [0, 1, 511, 512, 100_000, 262_143] {
        let (a, b) = (coarse.row(position / 512), fine.row(position % 512));
        let mut head = vec![0.0; 256];
        head[..32].fill(1.0);
        calla_ops::qk_prep::Rotation::new(position, shape.rope_theta).apply(&mut head);
        for i in 0..32 {
            let cos = a[i] * b[i] - a[i + 32] * b[i + 32];
            let sin = a[i + 32] * b[i] + a[i] * b[i + 32];
            let off = (cos - head[i]).abs().max((sin - head[i + 32]).abs());
            assert!(off < 3e-7, "position {position}, pair {i}: {off}");
        }
    }
}

#[test]
fn neighbours_pages_and_order_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    let random = &mut Random::new(11);
    let shape = shape(3, 1);
    let weights = layer(&shape, 11);
    let positions: [Range<usize>; 3] = [60..68, 511..513, 5..6];
    let layout = Layout::without_history(random, &positions);
    let inputs = inputs(random, &shape, layout.rows(), false);
    let all = prepared(&mut device, &shape, &weights, &layout, &inputs, Dtype::F32);
    for order in common::ORDERS {
        device.set_order(order);
        let again = prepared(&mut device, &shape, &weights, &layout, &inputs, Dtype::F32);
        compare::identical(&again.q, &all.q).unwrap();
        let (keys, due) = written(&again.pool.keys, &all.pool.keys);
        compare::identical(&keys, &due).unwrap();
    }
    for (span, range) in layout.spans.iter().zip(&positions) {
        let alone = Layout::without_history(random, std::slice::from_ref(range));
        let part = |rows: &Rows| {
            let range = span.rows.start * rows.cols()..span.rows.end * rows.cols();
            Rows::from_vec(rows.cols(), rows.as_slice()[range].to_vec())
        };
        let inputs =
            Inputs { q_gate: part(&inputs.q_gate), k: part(&inputs.k), v: part(&inputs.v) };
        let results = prepared(&mut device, &shape, &weights, &alone, &inputs, Dtype::F32);
        compare::identical(&results.q, &part(&all.q)).unwrap();
        for position in range.clone() {
            let key = |pool: &cache::KvPool, span: &calla_ops::Span| {
                pool.keys[span.kv_index(position) * 256..][..256].to_vec()
            };
            assert_eq!(key(&results.pool, &alone.spans[0]), key(&all.pool, span));
        }
    }
}
