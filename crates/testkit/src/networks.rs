//! Whole random networks: against the reference, and against themselves fed in other ways.

use crate::batches::{Cut, Mix, Schedule};
use crate::compare;
use crate::conformance::{Model, Suite, ways};
use crate::random::Random;
use crate::shapes;
use crate::weights::{Formats, network};
use calla_eval::{Position, ReferenceLogits, Summary};
use calla_ops::runner::Executor;
use calla_ops::{Batch, Reference, Rows, Runner};

/// Logits of every sequence of a schedule `[length, vocabulary]`.
///
/// # Panics
/// If the device fails.
pub fn logits(runner: &mut dyn Runner, schedule: &Schedule) -> Vec<Rows> {
    for slot in 0..schedule.cache.slots {
        runner.clear_slot(slot);
    }
    let mut values = Vec::new();
    for step in &schedule.steps {
        let rows = runner.step(&step.batch).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        schedule.scatter(step, rows, &mut values);
    }
    values
}

impl Suite {
    fn runner_of(&self, model: &Model, schedule: &Schedule) -> Box<dyn Runner> {
        let network = network(&model.shape, model.formats, model.seed);
        (self.runner)(&model.shape, schedule.cache, network)
    }

    /// Logits of random networks, fed in random batches, agree with the reference's: mean divergence below
    /// the bound, and the same first token wherever the reference is sure.
    ///
    /// # Panics
    /// If they do not: names the model and the schedule.
    pub fn networks_agree(&self) {
        let mut models = Model::all();
        let mut random = Random::new(99);
        for seed in 100..104 {
            models.push(Model::new(shapes::random(&mut random), Formats::Mixed, seed));
        }
        for model in models {
            let mut random = Random::labelled(model.seed, "networks agree");
            let vocab = model.shape.vocab_size;
            let sequences: Vec<_> = [1, 37, 100].map(|len| random.tokens(len, vocab)).to_vec();
            let schedule =
                Schedule::new(&mut random, &sequences, vocab, Cut::Random, Mix::Together);
            let actual = logits(self.runner_of(&model, &schedule).as_mut(), &schedule);

            let network = network(&model.shape, model.formats, model.seed);
            let ops = Reference::new(model.shape.clone(), schedule.cache).unwrap();
            let expected = logits(&mut Executor::new(ops, network), &schedule);

            let mut summary = Summary::new(self.tolerance.sure_margin);
            for (actual, expected) in actual.iter().zip(expected) {
                let reference = ReferenceLogits::Full(expected);
                for (position, logits) in actual.iter().enumerate() {
                    let compared = Position::compare(&reference, position, logits, None);
                    summary
                        .add(&compared.unwrap_or_else(|e| panic!("{e}\n  {schedule}\n  {model}")));
                }
            }
            let metrics = summary.metrics().expect("positions were compared");
            println!("{model}: mean divergence {:.1e}", metrics.kl_mean);
            assert!(
                metrics.kl_mean <= self.tolerance.kl_mean,
                "mean divergence {:.2e}, allowed {:.2e}\n  {metrics:?}\n  {schedule}\n  {model}",
                metrics.kl_mean,
                self.tolerance.kl_mean,
            );
            assert!(
                metrics.top1_margin.is_none_or(|fraction| fraction == 1.0),
                "another first token where the reference is sure (margin above {})\n  {metrics:?}\n  \
                 {schedule}\n  {model}",
                self.tolerance.sure_margin,
            );
        }
    }

    /// Logits of a sequence are the same bits whether it is prefilled whole, in random pieces or decoded
    /// token by token, alone or with others, over whichever pages; and whichever rows' logits are wanted.
    ///
    /// # Panics
    /// If they are not: names the model and both schedules.
    pub fn networks_are_invariant(&self) {
        let models = [
            Model::new(shapes::small(), Formats::Published, 11),
            Model::new(shapes::odd(), Formats::Mixed, 12),
            Model::new(shapes::tiny(), Formats::Mixed, 13),
        ];
        for model in models {
            let mut random = Random::labelled(model.seed, "networks are invariant");
            let lengths = [1, random.range(2..=40), self.longest.min(64), self.longest];
            let mut schedules = ways(&model, &lengths).into_iter();
            let whole = schedules.next().expect("at least one way");
            let expected = logits(self.runner_of(&model, &whole).as_mut(), &whole);
            for schedule in schedules {
                let actual = logits(self.runner_of(&model, &schedule).as_mut(), &schedule);
                for (sequence, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                    if let Err(mismatch) = compare::identical(actual, expected) {
                        panic!(
                            "{mismatch}\n  sequence {sequence}; {schedule}\n  instead of {whole}\n  \
                             {model}"
                        );
                    }
                }
            }
            self.outputs_are_rows(&model, &whole, &expected);
        }
    }

    /// A batch that wants logits of some rows, or of none, gets those rows' and goes on the same.
    fn outputs_are_rows(&self, model: &Model, schedule: &Schedule, expected: &[Rows]) {
        let mut runner = self.runner_of(model, schedule);
        for (sequence, step) in schedule.steps.iter().enumerate() {
            let batch = &step.batch;
            let rows = batch.rows();
            for outputs in [vec![], vec![0, rows / 2, rows - 1]] {
                let mut outputs: Vec<usize> = outputs;
                outputs.dedup();
                let wanted = Batch::new(
                    batch.tokens().to_vec(),
                    batch.spans().to_vec(),
                    outputs.clone(),
                    model.shape.vocab_size,
                    schedule.cache,
                );
                let wanted = wanted.unwrap_or_else(|e| panic!("a batch of the suite: {e}"));
                runner.clear_slot(batch.spans()[0].slot);
                let actual = runner.step(&wanted).unwrap_or_else(|e| panic!("{model}: {e}"));
                let data =
                    outputs.iter().flat_map(|&r| expected[sequence].row(r)).copied().collect();
                let due = Rows::from_vec(model.shape.vocab_size, data);
                if let Err(mismatch) = compare::identical(&actual, &due) {
                    panic!("outputs {outputs:?} of {rows} rows: {mismatch}\n  {model}");
                }
            }
        }
    }

    /// A slot that is cleared holds nothing of the sequence before.
    ///
    /// # Panics
    /// If it does.
    pub fn clears_slots(&self) {
        for model in Model::all() {
            let mut random = Random::labelled(model.seed, "clears slots");
            let vocab = model.shape.vocab_size;
            let sequences = vec![random.tokens(40, vocab)];
            let schedule = Schedule::new(&mut random, &sequences, vocab, Cut::Random, Mix::Alone);
            let mut runner = self.runner_of(&model, &schedule);
            let first = logits(runner.as_mut(), &schedule);
            let second = logits(runner.as_mut(), &schedule);
            if let Err(mismatch) = compare::identical(&second[0], &first[0]) {
                panic!("after clear_slot: {mismatch}\n  {schedule}\n  {model}");
            }
        }
    }
}
