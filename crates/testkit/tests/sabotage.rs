//! The suite finds faults: backends that are wrong on purpose must fail it, each where its fault is.

use calla_model::Shape;
use calla_model::network::{Attention, CheckpointParts, DeltaNet};
use calla_model::{Experts, Matrix};
use calla_ops::experts::ExpertInput;
use calla_ops::ops::{AttentionInputs, DeltaTerms, QueriesKeys};
use calla_ops::route::Routing;
use calla_ops::runner::HostOps;
use calla_ops::{Batch, HostCache, Ops, Reference, Rows};
use calla_testkit::conformance::Suite;
use calla_testkit::tolerance::F32;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The last value of the largest tile is NaN.
    NanInLastTile,
    /// Rows of large batches are rounded differently, well within the tolerance.
    RowsDependOnTheirNumber,
    /// The convolution forgets the window between batches.
    ForgetsTheWindow,
    /// A cleared slot keeps its state.
    ClearingDoesNothing,
    /// Keys and values change places in the fused projection.
    FusedSwapsKeysAndValues,
    /// Of equal router logits the last is chosen.
    TiesGoToTheLast,
    /// Expert weights do not sum to 1.
    WeightsAreNotNormalised,
    /// The newest value of a sequence is lost.
    AppendLosesTheLastValue,
    /// A checkpoint gets the recurrent state as it is a row later.
    CheckpointsAreLate,
    /// A checkpoint gets no convolution window.
    CheckpointsLackTheWindow,
    /// A checkpoint gets no hidden row for drafting.
    CheckpointsLackTheHiddenRow,
    /// No slot keeps the hidden row that drafts start from.
    HiddenRowsAreNotKept,
    /// Copying a slot leaves out the hidden row.
    CopiesLackTheHiddenRow,
    /// Copying a page leaves out the draft layer.
    CopiesLackTheDraftLayer,
}

/// The reference with a fault.
struct Sabotaged {
    inner: Reference,
    fault: Fault,
    /// Checkpoints of the batch that runs.
    checkpoints: Vec<usize>,
}

impl Sabotaged {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Undoes what a step kept in some slots to draft from.
    fn forget_hidden_rows(&mut self, slots: impl IntoIterator<Item = usize>) {
        if let Some(hidden) = &mut self.inner.cache_mut().hidden {
            slots.into_iter().for_each(|slot| hidden.entry_mut(slot).fill(0.0));
        }
    }
}

impl HostOps for Sabotaged {
    fn cache(&self) -> &HostCache {
        self.inner.cache()
    }

    fn cache_mut(&mut self) -> &mut HostCache {
        self.inner.cache_mut()
    }

    fn arithmetic(&self) -> String {
        "sabotaged".to_owned()
    }

    fn clear_slot(&mut self, slot: usize) {
        if !self.has(Fault::ClearingDoesNothing) {
            self.inner.clear_slot(slot);
        }
    }

    fn copy_slot(&mut self, from: usize, to: usize) {
        self.inner.copy_slot(from, to);
        if self.has(Fault::CopiesLackTheHiddenRow) {
            self.forget_hidden_rows([to]);
        }
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        let cache = self.inner.cache_mut();
        let draft_layer = cache.attention.last().expect("the draft layer").clone();
        self.inner.copy_page(from, to);
        if self.has(Fault::CopiesLackTheDraftLayer) {
            *self.inner.cache_mut().attention.last_mut().expect("the draft layer") = draft_layer;
        }
    }
}

impl Ops for Sabotaged {
    type Parts = CheckpointParts;
    type Tensor = Rows;
    type Routing = Routing;

    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32]) -> Rows {
        self.inner.embed(table, tokens)
    }

    fn select_rows(&mut self, x: &Rows, rows: &[usize]) -> Rows {
        // The first operation after a step kept its rows.
        if self.has(Fault::HiddenRowsAreNotKept) {
            self.forget_hidden_rows(0..self.cache_size().slots);
        }
        if self.has(Fault::CheckpointsLackTheHiddenRow) {
            self.forget_hidden_rows(self.checkpoints.clone());
        }
        self.inner.select_rows(x, rows)
    }

    fn rms_norm(&mut self, x: &Rows, scale: &Vec<f32>) -> Rows {
        let mut y = self.inner.rms_norm(x, scale);
        if self.has(Fault::NanInLastTile) && y.rows() == 200 {
            *y.as_mut_slice().last_mut().unwrap() = f32::NAN;
        }
        y
    }

    fn linear(&mut self, x: &Rows, weight: &Matrix) -> Rows {
        let mut y = self.inner.linear(x, weight);
        if self.has(Fault::RowsDependOnTheirNumber) && y.rows() >= 8 {
            y.as_mut_slice().iter_mut().for_each(|v| *v *= 1.0 + 1e-6);
        }
        y
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        self.inner.add(x, y);
    }

    fn conv_silu(&mut self, qkv: &Rows, taps: &Vec<f32>, layer: usize, batch: &Batch) -> Rows {
        if self.has(Fault::ForgetsTheWindow) {
            self.inner.cache_mut().delta[layer].windows.fill(0.0);
        }
        let y = self.inner.conv_silu(qkv, taps, layer, batch);
        if self.has(Fault::CheckpointsLackTheWindow) {
            let windows = &mut self.inner.cache_mut().delta[layer].windows;
            let checkpoints = batch.spans().iter().flat_map(|span| &span.checkpoints);
            checkpoints.for_each(|&slot| windows.entry_mut(slot).fill(0.0));
        }
        y
    }

    fn delta_prep(
        &mut self,
        qkv: &Rows,
        b: &Rows,
        a: &Rows,
        weights: &DeltaNet<CheckpointParts>,
    ) -> DeltaTerms<Rows> {
        self.inner.delta_prep(qkv, b, a, weights)
    }

    fn gated_delta(&mut self, terms: &DeltaTerms<Rows>, layer: usize, batch: &Batch) -> Rows {
        let o = self.inner.gated_delta(terms, layer, batch);
        self.checkpoints = batch.spans().iter().flat_map(|span| span.checkpoints.clone()).collect();
        if self.has(Fault::CheckpointsAreLate) {
            let states = &mut self.inner.cache_mut().delta[layer].states;
            for span in batch.spans() {
                let later = span.checkpoints.iter().skip(1).chain([&span.slot]);
                span.checkpoints.iter().zip(later).for_each(|(&to, &from)| states.copy(from, to));
            }
        }
        o
    }

    fn gated_norm(&mut self, o: &Rows, z: &Rows, scale: &Vec<f32>) -> Rows {
        self.inner.gated_norm(o, z, scale)
    }

    fn qk_prep(
        &mut self,
        q_gate: &Rows,
        k: &Rows,
        weights: &Attention<CheckpointParts>,
        batch: &Batch,
    ) -> QueriesKeys<Rows> {
        self.inner.qk_prep(q_gate, k, weights, batch)
    }

    fn kv_append(&mut self, k: &Rows, v: &Rows, layer: usize, batch: &Batch) {
        self.inner.kv_append(k, v, layer, batch);
        if self.has(Fault::AppendLosesTheLastValue) {
            let pool = &mut self.inner.cache_mut().attention[layer];
            let span = batch.spans().last().unwrap();
            let at = span.kv_index(span.position + span.rows.len() - 1) * v.cols();
            pool.values[at..at + v.cols()].fill(0.0);
        }
    }

    fn attention(&mut self, q: &Rows, layer: usize, batch: &Batch) -> Rows {
        self.inner.attention(q, layer, batch)
    }

    fn attention_gate(&mut self, o: &Rows, q_gate: &Rows) -> Rows {
        self.inner.attention_gate(o, q_gate)
    }

    fn top_k_softmax(&mut self, router_logits: &Rows) -> Routing {
        let mut logits = router_logits.clone();
        if self.has(Fault::TiesGoToTheLast) {
            logits.iter_mut().for_each(<[f32]>::reverse);
        }
        let mut routing = self.inner.top_k_softmax(&logits);
        if self.has(Fault::TiesGoToTheLast) {
            let last = router_logits.cols() as u32 - 1;
            routing.experts.iter_mut().for_each(|e| *e = last - *e);
        }
        if self.has(Fault::WeightsAreNotNormalised) {
            routing.weights.iter_mut().for_each(|w| *w *= 0.99);
        }
        routing
    }

    fn expert_linear(
        &mut self,
        x: &Rows,
        input: ExpertInput,
        routing: &Routing,
        weights: &Experts,
    ) -> Rows {
        self.inner.expert_linear(x, input, routing, weights)
    }

    fn swiglu(&mut self, gate: &Rows, up: &Rows) -> Rows {
        self.inner.swiglu(gate, up)
    }

    fn combine(
        &mut self,
        x: &mut Rows,
        routed: &Rows,
        routing: &Routing,
        shared: &Rows,
        shared_gate: &Rows,
    ) {
        self.inner.combine(x, routed, routing, shared, shared_gate);
    }

    fn attention_in_proj(
        &mut self,
        x: &Rows,
        norm: &Vec<f32>,
        weights: &Attention<CheckpointParts>,
    ) -> AttentionInputs<Rows> {
        let mut inputs = self.inner.attention_in_proj(x, norm, weights);
        if self.has(Fault::FusedSwapsKeysAndValues) {
            std::mem::swap(&mut inputs.k, &mut inputs.v);
        }
        inputs
    }
}

fn suite(fault: Fault) -> Suite {
    let make = move |shape: &Shape, size| Sabotaged {
        inner: Reference::new(shape.clone(), size).unwrap(),
        fault,
        checkpoints: vec![],
    };
    Suite::new(make, F32).longest(40)
}

/// The message with which a check fails for a fault; it must pass without one.
#[track_caller]
fn failure(fault: Fault, check: impl Fn(&Suite)) -> String {
    check(&suite(Fault::None));
    let panic = catch_unwind(AssertUnwindSafe(|| check(&suite(fault))))
        .expect_err(&format!("the suite does not find {fault:?}"));
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[track_caller]
fn expect(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "\"{message}\" does not say \"{part}\"");
    }
}

#[test]
fn nan_is_found_and_placed() {
    let message = failure(Fault::NanInLastTile, |suite| suite.operation("rms_norm"));
    expect(&message, &["rms_norm", "actual row", "column 127 is NaN", "seed 1", "4 layers"]);
}

#[test]
fn dependence_on_the_number_of_rows_is_found() {
    let message = failure(Fault::RowsDependOnTheirNumber, |suite| suite.operation("linear"));
    expect(&message, &["linear depends on the batch", "values differ in bits"]);
}

#[test]
fn lost_state_is_found() {
    let message = failure(Fault::ForgetsTheWindow, |suite| suite.operation("conv_silu"));
    expect(&message, &["conv_silu against the reference", "of the row's rms, allowed"]);
    let message = failure(Fault::ClearingDoesNothing, Suite::clears_slots);
    expect(&message, &["after clear_slot"]);
    let message = failure(Fault::AppendLosesTheLastValue, |suite| suite.operation("attention"));
    expect(&message, &["attention against the reference"]);
}

#[test]
fn a_wrong_fusion_is_found() {
    let message =
        failure(Fault::FusedSwapsKeysAndValues, |suite| suite.operation("attention_in_proj"));
    expect(&message, &["attention_in_proj against the reference", "output 1"]);
}

#[test]
fn wrong_routing_is_found() {
    let message = failure(Fault::TiesGoToTheLast, Suite::chooses_experts);
    expect(&message, &["of equals", "rank"]);
    let message = failure(Fault::WeightsAreNotNormalised, Suite::chooses_experts);
    expect(&message, &["weight", "instead of"]);
}

#[test]
fn checkpoints_that_lack_something_are_found() {
    for fault in [
        Fault::CheckpointsAreLate,
        Fault::CheckpointsLackTheWindow,
        Fault::CheckpointsLackTheHiddenRow,
    ] {
        let message = failure(fault, Suite::keeps_checkpoints);
        expect(&message, &["2 decoded rows", "the state after row 0 is another", "seed 21"]);
    }
}

#[test]
fn drafts_from_wrong_state_are_found() {
    let message = failure(Fault::HiddenRowsAreNotKept, Suite::drafts);
    expect(&message, &["drafts are the reference's"]);
    for fault in [Fault::CopiesLackTheHiddenRow, Fault::CopiesLackTheDraftLayer] {
        let message = failure(fault, Suite::drafts);
        expect(&message, &["a copy of slot and pages", "seed 21"]);
    }
}

#[test]
fn whole_networks_show_faults_too() {
    let message = failure(Fault::RowsDependOnTheirNumber, Suite::networks_are_invariant);
    expect(&message, &["differ in bits", "instead of sequences"]);
    let message = failure(Fault::ForgetsTheWindow, Suite::networks_agree);
    expect(&message, &["mean divergence"]);
}
