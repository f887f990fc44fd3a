//! The suite that every backend must pass: each operation against the reference, whatever the batch.
//!
//! An [`Operation`] is written once, as what to call on which inputs; the suite runs it on the backend, on
//! the reference, on the backend's own composition where it is coarse, and under different schedules.
//! [`crate::conformance_tests`] mounts all of it as tests of a crate.

use crate::batches::{Cut, Mix, Schedule, Step};
use crate::compare::{self, Mismatch};
use crate::composed::Composed;
use crate::random::Random;
use crate::tolerance::Tolerance;
use crate::weights::{Formats, network};
use crate::{operations, shapes};
use calla_model::network::{Attention, CheckpointParts, DeltaNet, Layer, Mixer};
use calla_model::{LayerKind, Network, Shape};
use calla_ops::route::Routing;
use calla_ops::runner::{Executor, HostOps};
use calla_ops::{Batch, CacheSize, Reference, Rows, Runner};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

/// Row counts around the edges of vectors, tiles and pages.
pub const ROW_COUNTS: [usize; 11] = [1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 200];

/// Operations of a backend that computes on checkpoint views in host memory.
pub type DynOps = dyn HostOps<Parts = CheckpointParts, Routing = Routing>;

type MakeOps = Box<dyn Fn(&Shape, CacheSize) -> Box<DynOps>>;
type MakeRunner = Box<dyn Fn(&Shape, CacheSize, Network<CheckpointParts>) -> Box<dyn Runner>>;

/// A backend under test.
pub struct Suite {
    pub(crate) backend: MakeOps,
    composed: MakeOps,
    pub(crate) runner: MakeRunner,
    /// Drafts where the network can.
    pub(crate) drafting: MakeRunner,
    pub(crate) tolerance: Tolerance,
    pub(crate) longest: usize,
}

/// One operation, written once for all backends.
pub struct Operation {
    /// Name of the method (and of a variant).
    pub name: &'static str,
    /// It has a default body that it must equal.
    pub coarse: bool,
    /// Its bound, or `None` where a check of its own compares it with the reference.
    pub bound: Option<fn(&Tolerance) -> f32>,
    /// Calls it.
    pub run: fn(&mut DynOps, &Inputs<'_>) -> Vec<Rows>,
}

/// A model to test with.
pub struct Model {
    /// Its shape.
    pub shape: Shape,
    /// Formats of its matrices.
    pub formats: Formats,
    /// Seed of its weights and of inputs.
    pub seed: u64,
    /// Its weights.
    pub network: Network<CheckpointParts>,
}

/// What an operation gets in one step: the model, the batch, and inputs that depend only on the seed, a
/// label, and a row's sequence and position.
pub struct Inputs<'a> {
    /// The model.
    pub model: &'a Model,
    /// The batch.
    pub batch: &'a Batch,
    step: &'a Step,
    lengths: &'a [usize],
    drawn: &'a RefCell<HashMap<&'static str, Vec<Rows>>>,
}

impl Model {
    /// A random model. `CALLA_SEED`, a number, moves the seeds of all models, to try other ones.
    ///
    /// # Panics
    /// If `CALLA_SEED` is not a number.
    #[must_use]
    pub fn new(shape: Shape, formats: Formats, seed: u64) -> Self {
        let offset = std::env::var("CALLA_SEED")
            .map_or(0, |text| text.parse::<u64>().expect("CALLA_SEED is a number"));
        Self::with_seed(shape, formats, seed.wrapping_add(offset.wrapping_mul(1000)))
    }

    /// The model of a seed, whatever the environment says.
    #[must_use]
    pub fn with_seed(shape: Shape, formats: Formats, seed: u64) -> Self {
        let network = network(&shape, formats, seed);
        Self { shape, formats, seed, network }
    }

    /// The shapes and formats that operations are tested with: all have both kinds of layers.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut random = Random::new(2024);
        let any = std::iter::repeat_with(|| shapes::random(&mut random))
            .find(has_both_kinds)
            .expect("one of endlessly many");
        vec![
            Self::new(shapes::small(), Formats::Published, 1),
            Self::new(shapes::odd(), Formats::Published, 2),
            Self::new(shapes::odd(), Formats::Mixed, 3),
            Self::new(shapes::tiny(), Formats::Mixed, 4),
            Self::new(any, Formats::Mixed, 5),
        ]
    }

    /// The first DeltaNet layer.
    #[must_use]
    pub fn delta(&self) -> (&Layer<CheckpointParts>, &DeltaNet<CheckpointParts>) {
        let mut layers = self.network.layers.iter();
        let find = layers.find_map(|layer| match &layer.mixer {
            Mixer::DeltaNet(weights) => Some((layer, weights)),
            Mixer::Attention(_) => None,
        });
        find.expect("a DeltaNet layer")
    }

    /// The first attention layer.
    #[must_use]
    pub fn attention(&self) -> (&Layer<CheckpointParts>, &Attention<CheckpointParts>) {
        let mut layers = self.network.layers.iter();
        let find = layers.find_map(|layer| match &layer.mixer {
            Mixer::Attention(weights) => Some((layer, weights)),
            Mixer::DeltaNet(_) => None,
        });
        find.expect("an attention layer")
    }
}

fn has_both_kinds(shape: &Shape) -> bool {
    shape.layers_of(LayerKind::DeltaNet) > 0 && shape.layers_of(LayerKind::Attention) > 0
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}; seed {}", self.shape, self.formats, self.seed)
    }
}

impl Inputs<'_> {
    /// Shape of the model.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.model.shape
    }

    /// Rows of deviation `scale`.
    #[must_use]
    pub fn rows(&self, label: &'static str, cols: usize, scale: f32) -> Rows {
        let mut drawn = self.drawn.borrow_mut();
        let values = drawn.entry(label).or_insert_with(|| {
            let draw = |(i, &len): (usize, &usize)| {
                Random::labelled(self.model.seed, &format!("{label} {i}")).rows(len, cols, scale)
            };
            self.lengths.iter().enumerate().map(draw).collect()
        });
        Schedule::gather(self.step, values)
    }

    /// `top_k` rows for each row, as expert activations are.
    #[must_use]
    pub fn pair_rows(&self, label: &'static str, cols: usize) -> Rows {
        let rows = self.rows(label, cols * self.shape().top_k, 1.0);
        Rows::from_vec(cols, rows.into_vec())
    }

    /// Router logits.
    #[must_use]
    pub fn router_logits(&self) -> Rows {
        self.rows("router logits", self.shape().experts, 2.0)
    }

    /// The reference's choice of experts.
    #[must_use]
    pub fn routing(&self) -> Routing {
        calla_ops::route::reference(&self.router_logits(), self.shape().top_k)
    }
}

impl Suite {
    /// A suite for the backend that `make` makes.
    pub fn new<B>(
        make: impl Fn(&Shape, CacheSize) -> B + Clone + 'static,
        tolerance: Tolerance,
    ) -> Self
    where
        B: HostOps<Parts = CheckpointParts, Routing = Routing> + 'static,
    {
        let (backend, composed, drafting) = (make.clone(), make.clone(), make.clone());
        Self {
            backend: Box::new(move |shape, cache| Box::new(backend(shape, cache))),
            composed: Box::new(move |shape, cache| Box::new(Composed(composed(shape, cache)))),
            runner: Box::new(move |shape, cache, network| {
                Box::new(Executor::new(make(shape, cache), network))
            }),
            drafting: Box::new(move |shape, cache, network| {
                let runner = Executor::new(drafting(shape, cache), network).with_drafts();
                Box::new(runner.unwrap_or_else(|e| panic!("{e}")))
            }),
            tolerance,
            longest: 300,
        }
    }

    /// Longest sequence that whole networks are fed (300 if nothing is said): for slow backends.
    #[must_use]
    pub fn longest(self, longest: usize) -> Self {
        Self { longest, ..self }
    }

    /// One operation against the reference (and its composition) and under every schedule.
    ///
    /// # Panics
    /// If it does not conform: names the operation, model, schedule, row and values.
    pub fn operation(&self, name: &str) {
        self.agrees(name);
        for model in Model::all() {
            self.is_invariant(&operations::named(name), &model);
        }
    }

    /// One operation against the reference (and its composition) only.
    ///
    /// # Panics
    /// As [`Suite::operation`].
    pub fn agrees(&self, name: &str) {
        let operation = operations::named(name);
        let mut worst = 0.0_f32;
        for model in Model::all() {
            let found = self.check(&operation, &model).unwrap_or_else(|error| panic!("{error}"));
            worst = worst.max(found);
        }
        if let Some(bound) = operation.bound {
            println!("{name}: off by at most {worst:.1e}, allowed {:.1e}", bound(&self.tolerance));
        }
    }

    /// An operation of one model against the reference, and its composition: the largest difference from the former,
    /// relative as in [`compare::within`].
    ///
    /// # Errors
    /// If it does not conform: names the operation, model, schedule, row and values.
    pub fn check(&self, operation: &Operation, model: &Model) -> Result<f32, String> {
        let mut worst = 0.0_f32;
        for schedule in tile_edges(model) {
            worst = worst.max(self.conforms(operation, model, &schedule)?);
        }
        Ok(worst)
    }

    /// How far results may be off.
    #[must_use]
    pub fn tolerance(&self) -> &Tolerance {
        &self.tolerance
    }

    fn conforms(
        &self,
        operation: &Operation,
        model: &Model,
        schedule: &Schedule,
    ) -> Result<f32, String> {
        let mut backend = (self.backend)(&model.shape, schedule.cache);
        let actual = run(operation, backend.as_mut(), model, schedule);
        let check = |expected: &[Vec<Rows>], bound: f32, against: &str| {
            let mut worst = 0.0_f32;
            for (output, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                for (sequence, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                    match compare::within(actual, expected, bound) {
                        Ok(difference) => worst = worst.max(difference.max_relative),
                        Err(mismatch) => {
                            return Err(format!(
                                "{} against {against}: {mismatch}\n  output {output}, sequence \
                                 {sequence}; {schedule}\n  {model}",
                                operation.name
                            ));
                        }
                    }
                }
            }
            Ok(worst)
        };
        let Some(bound) = operation.bound else { return Ok(0.0) };
        let mut reference = Reference::new(model.shape.clone(), schedule.cache).unwrap();
        let expected = run(operation, &mut reference, model, schedule);
        let worst = check(&expected, bound(&self.tolerance), "the reference")?;
        if operation.coarse {
            let mut composed = (self.composed)(&model.shape, schedule.cache);
            let expected = run(operation, composed.as_mut(), model, schedule);
            check(&expected, self.tolerance.fused, "its composition")?;
        }
        Ok(worst)
    }

    /// The bits of a row do not depend on the batch, the cut or the neighbours.
    fn is_invariant(&self, operation: &Operation, model: &Model) {
        let lengths = [1, 9, 64, 65, 150];
        let results: Vec<(Schedule, Vec<Vec<Rows>>)> = ways(model, &lengths)
            .into_iter()
            .map(|schedule| {
                let mut backend = (self.backend)(&model.shape, schedule.cache);
                let result = run(operation, backend.as_mut(), model, &schedule);
                (schedule, result)
            })
            .collect();
        let (first, expected) = &results[0];
        for (schedule, actual) in &results[1..] {
            for (output, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                for (sequence, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                    if let Err(mismatch) = compare::identical(actual, expected) {
                        let name = operation.name;
                        panic!(
                            "{name} depends on the batch: {mismatch}\n  output {output}, sequence \
                             {sequence}; {schedule}\n  instead of {first}\n  {model}"
                        );
                    }
                }
            }
        }
    }

    /// Runs `check` for every model, with a mismatch reported under `name`.
    pub(crate) fn each_model(
        &self,
        name: &str,
        check: impl Fn(&Self, &Model) -> Result<(), Mismatch>,
    ) {
        for model in Model::all() {
            if let Err(mismatch) = check(self, &model) {
                panic!("{name}: {mismatch}\n  {model}");
            }
        }
    }
}

/// Outputs of an operation over a schedule: `[output][sequence]`.
fn run(
    operation: &Operation,
    ops: &mut DynOps,
    model: &Model,
    schedule: &Schedule,
) -> Vec<Vec<Rows>> {
    let drawn = RefCell::default();
    let mut results: Vec<Vec<Rows>> = Vec::new();
    for step in &schedule.steps {
        let (batch, lengths) = (&step.batch, schedule.lengths.as_slice());
        let inputs = Inputs { model, batch, step, lengths, drawn: &drawn };
        let outputs = (operation.run)(ops, &inputs);
        results.resize(outputs.len(), vec![]);
        for (output, result) in outputs.into_iter().zip(&mut results) {
            schedule.scatter(step, output, result);
        }
    }
    results
}

/// One batch of each of [`ROW_COUNTS`], of up to four new sequences, and one schedule of several steps.
fn tile_edges(model: &Model) -> Vec<Schedule> {
    let mut random = Random::labelled(model.seed, "tile edges");
    let vocab = model.shape.vocab_size;
    let mut schedules: Vec<Schedule> = ROW_COUNTS
        .iter()
        .map(|&rows| {
            let mut lengths = vec![rows];
            for _ in 0..random.range(0..=3) {
                let last = lengths.len() - 1;
                if lengths[last] > 1 {
                    let first = random.range(1..=lengths[last] - 1);
                    lengths.insert(last, first);
                    lengths[last + 1] -= first;
                }
            }
            let sequences: Vec<_> = lengths.iter().map(|&len| random.tokens(len, vocab)).collect();
            let mut schedule =
                Schedule::new(&mut random, &sequences, vocab, Cut::Whole, Mix::Together);
            while schedule.steps.len() > 1 {
                schedule = Schedule::new(&mut random, &sequences, vocab, Cut::Whole, Mix::Together);
            }
            schedule
        })
        .collect();
    let sequences: Vec<_> = [70, 1, 130].iter().map(|&len| random.tokens(len, vocab)).collect();
    schedules.push(Schedule::new(&mut random, &sequences, vocab, Cut::Random, Mix::Together));
    schedules
}

/// Different schedules over the same sequences; in the first each is alone and whole.
pub(crate) fn ways(model: &Model, lengths: &[usize]) -> Vec<Schedule> {
    let mut random = Random::labelled(model.seed, "ways");
    let vocab = model.shape.vocab_size;
    let sequences: Vec<_> = lengths.iter().map(|&len| random.tokens(len, vocab)).collect();
    [
        (Cut::Whole, Mix::Alone),
        (Cut::Whole, Mix::Together),
        (Cut::Single, Mix::Alone),
        (Cut::Random, Mix::Alone),
        (Cut::Random, Mix::Together),
        (Cut::PrefillThenDecode, Mix::Together),
    ]
    .into_iter()
    .map(|(cut, mix)| Schedule::new(&mut random, &sequences, vocab, cut, mix))
    .collect()
}

/// Mounts the suite as tests: one per operation, and those of whole networks.
#[macro_export]
macro_rules! conformance_tests {
    ($suite:expr) => {
        $crate::conformance_tests!(@operations $suite;
            embed, rms_norm, linear, add, conv_silu, delta_prep, gated_delta, gated_norm, qk_prep,
            attention, attention_gate, top_k_softmax, expert_linear_per_row, expert_linear_per_pair,
            swiglu, combine, delta_in_proj, delta_step, delta_out_proj, attention_in_proj, attend,
            out_proj, route, experts_up, experts_down, lm_head
        );

        #[test]
        fn rows_are_selected_in_any_order() {
            $suite.selects_rows();
        }

        #[test]
        fn every_stored_format_multiplies() {
            $suite.multiplies_every_format();
        }

        #[test]
        fn experts_are_chosen_by_their_logits() {
            $suite.chooses_experts();
        }

        #[test]
        fn positions_far_out_are_rotated_exactly() {
            $suite.rotates_far_positions();
        }

        #[test]
        fn extreme_values_stay_finite() {
            $suite.survives_extremes();
        }

        #[test]
        fn a_shared_prefix_page_is_read_by_both() {
            $suite.shares_prefix_pages();
        }

        #[test]
        fn a_cleared_slot_starts_anew() {
            $suite.clears_slots();
        }

        #[test]
        fn rows_that_are_taken_back_leave_no_trace() {
            $suite.keeps_checkpoints();
        }

        #[test]
        fn drafts_are_those_of_the_draft_layer() {
            $suite.drafts();
        }

        #[test]
        fn networks_agree_with_the_reference() {
            $suite.networks_agree();
        }

        #[test]
        fn networks_do_not_depend_on_the_batch() {
            $suite.networks_are_invariant();
        }
    };
    (@operations $suite:expr; $($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                $suite.operation(stringify!($name));
            }
        )*

        #[test]
        fn every_operation_has_a_test() {
            let tested = [$(stringify!($name)),*];
            let all: Vec<&str> =
                $crate::operations::all().iter().map(|operation| operation.name).collect();
            assert_eq!(all, tested);
        }
    };
}
