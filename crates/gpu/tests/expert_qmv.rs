//! Experts for decoded rows against the reference: each row by itself, and the rows that an expert has together.

mod common;

use calla_gpu::combine::combine as combine_dispatch;
use calla_gpu::expert_qmv::{expert_qmv_down, expert_qmv_up};
use calla_gpu::expert_qmv_grouped::{expert_qmv_grouped_down, expert_qmv_grouped_up};
use calla_gpu::top_k::top_k;
use calla_gpu::{Dtype, Routing};
use calla_model::{Experts, Matrix, Shape};
use calla_ops::experts::{ExpertInput, combine, expert_linear};
use calla_ops::{Rows, linear, rms_norm, route, swiglu};
use calla_testkit::{Random, compare};
use common::{TestDevice, quantised, routed, tolerance};

/// Far larger than in models, so that it counts.
const EPS: f32 = 0.5;

/// An MoE layer, and what it is given.
struct Layer {
    shape: Shape,
    norm: Vec<f32>,
    gate: Experts,
    up: Experts,
    down: Experts,
    shared_down: Matrix,
}

/// Bits of gate, up, down and shared down.
type Bits = [usize; 4];

struct Inputs {
    x: Rows,
    logits: Rows,
    shared_acts: Rows,
    shared_gate: Rows,
}

/// What the kernels give.
struct Results {
    routing: route::Routing,
    acts: Rows,
    x: Rows,
}

impl Layer {
    fn random(random: &mut Random, shape: Shape, bits: Bits) -> Self {
        let (hidden, inner, count) = (shape.hidden, shape.expert_hidden, shape.experts);
        let [gate, up, down, shared] = bits;
        Self {
            norm: (0..hidden).map(|_| random.uniform(0.5, 1.5)).collect(),
            gate: quantised::experts(random, count, inner, hidden, gate),
            up: quantised::experts(random, count, inner, hidden, up),
            down: quantised::experts(random, count, hidden, inner, down),
            shared_down: quantised::matrix(random, hidden, shape.shared_hidden, shared),
            shape,
        }
    }

    fn inputs(&self, random: &mut Random, rows: usize) -> Inputs {
        Inputs {
            x: random.rows(rows, self.shape.hidden, 3.0),
            logits: random.rows(rows, self.shape.experts, 2.0),
            shared_acts: random.rows(rows, self.shape.shared_hidden, 1.0),
            shared_gate: random.rows(rows, 1, 2.0),
        }
    }

    fn reference(&self, inputs: &Inputs) -> Results {
        let routing = route::reference(&inputs.logits, self.shape.top_k);
        let y = rms_norm::reference(&inputs.x, &self.norm, EPS);
        let gate = expert_linear(&y, ExpertInput::PerRow, &routing, &self.gate);
        let up = expert_linear(&y, ExpertInput::PerRow, &routing, &self.up);
        let acts = swiglu::reference(&gate, &up);
        let x = self.reference_down(inputs, &routing, &acts);
        Results { routing, acts, x }
    }

    fn reference_down(&self, inputs: &Inputs, routing: &route::Routing, acts: &Rows) -> Rows {
        let outputs = expert_linear(acts, ExpertInput::PerPair, routing, &self.down);
        let shared = linear::reference(&inputs.shared_acts, &self.shared_down);
        let mut x = inputs.x.clone();
        combine(&mut x, &outputs, routing, &shared, &inputs.shared_gate);
        x
    }

    fn up(&self, device: &mut TestDevice, inputs: &Inputs) -> (route::Routing, Rows) {
        let (rows, shape) = (inputs.x.rows(), &self.shape);
        let routing = routed::undefined(device, rows, shape.top_k);
        let acts = common::output(device, rows * shape.top_k, shape.expert_hidden, Dtype::F32);
        let x = common::f32s(device, &inputs.x);
        let norm = common::vector(device, &self.norm);
        let logits = common::f32s(device, &inputs.logits);
        let gate = common::experts(device, &self.gate);
        let up = common::experts(device, &self.up);
        let dispatch = expert_qmv_up(shape, x, norm, EPS, logits, &gate, &up, &routing, acts);
        common::run(device, &[dispatch]);
        (routed::read(device, &routing), common::rows(device, acts))
    }

    fn down(
        &self,
        device: &mut TestDevice,
        inputs: &Inputs,
        routing: &route::Routing,
        acts: &Rows,
    ) -> Rows {
        let routing: Routing = routed::upload(device, routing);
        let acts = common::f32s(device, acts);
        let shared_acts = common::f32s(device, &inputs.shared_acts);
        let shared_gate = common::f32s(device, &inputs.shared_gate);
        let down = common::experts(device, &self.down);
        let shared = common::matrix(device, &self.shared_down);
        let x = common::f32s(device, &inputs.x);
        let dispatch = expert_qmv_down(
            &self.shape,
            acts,
            &routing,
            shared_acts,
            shared_gate,
            &down,
            &shared,
            x,
        );
        common::run(device, &[dispatch]);
        common::rows(device, x)
    }

    fn run(&self, device: &mut TestDevice, inputs: &Inputs) -> Results {
        let (routing, acts) = self.up(device, inputs);
        let x = self.down(device, inputs, &routing, &acts);
        Results { routing, acts, x }
    }

    /// The same by experts.
    fn run_grouped(&self, device: &mut TestDevice, inputs: &Inputs) -> Results {
        let (rows, shape) = (inputs.x.rows(), &self.shape);
        let routing = routed::undefined(device, rows, shape.top_k);
        let acts = common::output(device, rows * shape.top_k, shape.expert_hidden, Dtype::F32);
        let outputs = common::output(device, rows * shape.top_k, shape.hidden, Dtype::F32);
        let shared_outputs = common::output(device, rows, shape.hidden, Dtype::F32);
        let x = common::f32s(device, &inputs.x);
        let norm = common::vector(device, &self.norm);
        let logits = common::f32s(device, &inputs.logits);
        let shared_acts = common::f32s(device, &inputs.shared_acts);
        let shared_gate = common::f32s(device, &inputs.shared_gate);
        let [gate, up, down] =
            [&self.gate, &self.up, &self.down].map(|experts| common::experts(device, experts));
        let shared = common::matrix(device, &self.shared_down);
        let dispatches = [
            top_k(shape, logits, &routing),
            expert_qmv_grouped_up(shape, x, norm, EPS, &routing, &gate, &up, acts),
            expert_qmv_grouped_down(
                shape,
                acts,
                &routing,
                shared_acts,
                &down,
                &shared,
                outputs,
                shared_outputs,
            ),
            combine_dispatch(shape, x, outputs, &routing, shared_outputs, shared_gate),
        ];
        common::run(device, &dispatches);
        let routing = routed::read(device, &routing);
        Results { routing, acts: common::rows(device, acts), x: common::rows(device, x) }
    }
}

impl Results {
    fn is_same(&self, other: &Self, what: &str) {
        assert_eq!(self.routing, other.routing, "{what}");
        for (part, actual, expected) in
            [("acts", &self.acts, &other.acts), ("x", &self.x, &other.x)]
        {
            compare::identical(actual, expected)
                .unwrap_or_else(|error| panic!("{what}: {part}: {error}"));
        }
    }
}

impl Inputs {
    fn row(&self, row: usize) -> Self {
        let one = |x: &Rows| Rows::from_vec(x.cols(), x.row(row).to_vec());
        Self {
            x: one(&self.x),
            logits: one(&self.logits),
            shared_acts: one(&self.shared_acts),
            shared_gate: one(&self.shared_gate),
        }
    }
}

fn shape(hidden: usize, inner: usize, shared: usize, experts: usize, top_k: usize) -> Shape {
    Shape { hidden, expert_hidden: inner, shared_hidden: shared, ..routed::shape(experts, top_k) }
}

/// Rows, shape and bits: the demo's, the published widths, and odd ones. 512 values are one step of a simdgroup, 2048 of
/// `x` lie in threadgroup memory at a time.
fn cases() -> Vec<(usize, Shape, Bits)> {
    vec![
        (5, Shape::demo(), [4, 4, 4, 4]),
        (1, Shape::demo(), [8, 8, 8, 8]),
        (2, shape(2048, 512, 512, 12, 8), [4, 4, 4, 4]),
        (1, shape(2048, 512, 512, 9, 8), [8, 8, 8, 8]),
        (7, shape(192, 64, 128, 20, 5), [4, 8, 8, 4]),
        (3, shape(320, 128, 64, 40, 3), [8, 4, 4, 8]),
        (9, shape(64, 64, 64, 16, 16), [4, 4, 8, 8]),
        (2, shape(2112, 64, 640, 3, 1), [4, 4, 4, 4]),
        (1, shape(4160, 576, 1088, 2, 2), [8, 4, 4, 4]),
        (33, shape(128, 64, 192, 70, 9), [4, 4, 4, 8]),
        (37, shape(64, 64, 64, 4, 4), [4, 4, 4, 4]),
    ]
}

#[test]
fn results_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut worst = [0.0_f32; 2];
    for (seed, (rows, shape, bits)) in (0..).zip(cases()) {
        let mut random = Random::new(seed);
        let layer = Layer::random(&mut random, shape, bits);
        let inputs = layer.inputs(&mut random, rows);
        let expected = layer.reference(&inputs);
        let actual = layer.run(&mut device, &inputs);
        let case = format!("{}, {rows} rows, {bits:?}", layer.shape);
        layer.run_grouped(&mut device, &inputs).is_same(&actual, &format!("{case}, by experts"));
        assert_eq!(actual.routing.experts, expected.routing.experts, "{case}");
        let top_k = layer.shape.top_k;
        compare::routing(&actual.routing, &inputs.logits, top_k, 0.0, tolerance::ROUTING)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let close = |actual: &Rows, expected: &Rows, bound: f32| {
            compare::within(actual, expected, bound)
                .unwrap_or_else(|error| panic!("{case}: {error}"))
                .max_relative
        };
        worst[0] = worst[0].max(close(&actual.acts, &expected.acts, tolerance::EXPERT_QMV_UP));
        // Down by itself: from the same activations.
        let x = layer.reference_down(&inputs, &actual.routing, &actual.acts);
        worst[1] = worst[1].max(close(&actual.x, &x, tolerance::EXPERT_QMV_DOWN));
    }
    println!("worst: up {:.1e}, down {:.1e}", worst[0], worst[1]);
}

#[test]
fn a_row_alone_and_any_order_of_threads_give_the_same_bits() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(11);
    for (shape, bits) in [
        (Shape::demo(), [4, 4, 4, 4]),
        (shape(192, 128, 64, 20, 5), [8, 4, 4, 8]),
        (shape(2112, 64, 64, 2, 1), [4, 8, 8, 4]),
    ] {
        let layer = Layer::random(&mut random, shape, bits);
        let inputs = layer.inputs(&mut random, 6);
        let all = layer.run(&mut device, &inputs);
        let same = |actual: &Rows, expected: &Rows, what: &str| {
            compare::identical(actual, expected).unwrap_or_else(|error| panic!("{what}: {error}"));
        };
        for order in common::ORDERS {
            device.set_order(order);
            layer.run(&mut device, &inputs).is_same(&all, "again");
            layer.run_grouped(&mut device, &inputs).is_same(&all, "by experts");
        }
        let (top_k, hidden) = (layer.shape.top_k, layer.shape.hidden);
        for row in 0..6 {
            let one = layer.run(&mut device, &inputs.row(row));
            let pairs = row * top_k..(row + 1) * top_k;
            assert_eq!(one.routing.weights, all.routing.weights[pairs.clone()]);
            let acts = pairs.flat_map(|pair| all.acts.row(pair).to_vec()).collect();
            same(&one.acts, &Rows::from_vec(all.acts.cols(), acts), "acts of a row");
            same(&one.x, &Rows::from_vec(hidden, all.x.row(row).to_vec()), "a row of x");
        }
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(12);
    let layer = Layer::random(&mut random, Shape::demo(), [4, 4, 4, 4]);
    let mut inputs = layer.inputs(&mut random, 3);
    let clean = layer.run(&mut device, &inputs);
    inputs.x.row_mut(1)[5] = f32::NAN;
    inputs.logits.row_mut(1).fill(f32::NAN);
    let (routing, acts) = layer.up(&mut device, &inputs);
    assert_eq!(routing.experts[8..16], [0, 1, 2, 3, 4, 5, 6, 7]);
    let x = layer.down(&mut device, &inputs, &routing, &acts);
    let grouped = layer.run_grouped(&mut device, &inputs);
    assert_eq!(grouped.routing.experts, routing.experts);
    assert!(grouped.x.row(1).iter().all(|value| value.is_nan()));
    assert!(x.row(1).iter().all(|value| value.is_nan()));
    for row in [0, 2] {
        assert_eq!(x.row(row), clean.x.row(row));
        assert_eq!(grouped.x.row(row), clean.x.row(row));
    }
}
