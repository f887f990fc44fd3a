//! The weighted sum of the experts' outputs against the reference.

mod common;

use calla_gpu::combine::combine;
use calla_model::Shape;
use calla_ops::{Rows, experts, route};
use calla_testkit::{Random, compare};
use common::{TestDevice, routed, tolerance};

struct Terms {
    shape: Shape,
    x: Rows,
    routed: Rows,
    routing: route::Routing,
    shared: Rows,
    shared_gate: Rows,
}

impl Terms {
    fn random(seed: u64, rows: usize, shape: Shape) -> Self {
        let mut random = Random::new(seed);
        let (hidden, top_k) = (shape.hidden, shape.top_k);
        let logits = random.rows(rows, shape.experts, 2.0);
        Self {
            x: random.rows(rows, hidden, 1.0),
            routed: random.rows(rows * top_k, hidden, 1.0),
            routing: route::reference(&logits, top_k),
            shared: random.rows(rows, hidden, 1.0),
            shared_gate: random.rows(rows, 1, 3.0),
            shape,
        }
    }

    fn run(&self, device: &mut TestDevice) -> Rows {
        let x = common::f32s(device, &self.x);
        let routed = common::f32s(device, &self.routed);
        let routing = routed::upload(device, &self.routing);
        let shared = common::f32s(device, &self.shared);
        let shared_gate = common::f32s(device, &self.shared_gate);
        common::run(device, &[combine(&self.shape, x, routed, &routing, shared, shared_gate)]);
        common::rows(device, x)
    }

    fn row(&self, row: usize) -> Self {
        let top_k = self.shape.top_k;
        let part = |x: &Rows, rows: std::ops::Range<usize>| {
            Rows::from_vec(x.cols(), rows.flat_map(|row| x.row(row).to_vec()).collect())
        };
        let (one, pairs) = (row..row + 1, row * top_k..(row + 1) * top_k);
        Self {
            shape: self.shape.clone(),
            x: part(&self.x, one.clone()),
            routed: part(&self.routed, pairs.clone()),
            routing: route::Routing {
                top_k,
                experts: self.routing.experts[pairs.clone()].to_vec(),
                weights: self.routing.weights[pairs].to_vec(),
            },
            shared: part(&self.shared, one.clone()),
            shared_gate: part(&self.shared_gate, one),
        }
    }
}

fn shapes() -> [Shape; 4] {
    [
        Shape::demo(),
        Shape { hidden: 192, ..routed::shape(20, 5) },
        Shape { hidden: 2048, ..routed::shape(256, 8) },
        Shape { hidden: 64, ..routed::shape(16, 16) },
    ]
}

#[test]
fn sums_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, shape) in (0..).zip(shapes()) {
        for rows in [1, 7, 33, 200] {
            let terms = Terms::random(seed, rows, shape.clone());
            let mut expected = terms.x.clone();
            let Terms { routed, routing, shared, shared_gate, .. } = &terms;
            experts::combine(&mut expected, routed, routing, shared, shared_gate);
            let actual = terms.run(&mut device);
            match compare::within(&actual, &expected, tolerance::COMBINE) {
                Ok(difference) => worst = worst.max(difference.max_relative),
                Err(error) => panic!("{shape}, {rows} rows: {error}"),
            }
        }
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn a_row_alone_and_any_order_of_threads_give_the_same_bits() {
    let Some(mut device) = common::device() else { return };
    let terms = Terms::random(5, 9, Shape { hidden: 320, ..routed::shape(20, 5) });
    let all = terms.run(&mut device);
    for order in common::ORDERS {
        device.set_order(order);
        compare::identical(&terms.run(&mut device), &all).unwrap_or_else(|error| panic!("{error}"));
    }
    for row in 0..9 {
        let one = terms.row(row).run(&mut device);
        let expected = Rows::from_vec(320, all.row(row).to_vec());
        compare::identical(&one, &expected).unwrap_or_else(|error| panic!("row {row}: {error}"));
    }
}
