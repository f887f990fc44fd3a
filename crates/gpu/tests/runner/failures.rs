//! A step that fails loses nothing: it can be run again. What else fails is said.

use crate::common::TestDevice;
use crate::sequences::{Model, Part, Sequence, State, require_same, runner_size, step, try_step};
use calla_gpu::{
    BoundPlan, BufferId, Device, DeviceError, Dispatch, GpuRunner, PlanId, Range, upload,
};
use calla_ops::{Rows, Runner};

/// A device of which one call fails.
struct Failing {
    device: TestDevice,
    /// Calls that succeed before the one that fails.
    after: Option<usize>,
}

impl Failing {
    /// Whether this call is the one that fails.
    fn fails(&mut self) -> bool {
        match &mut self.after {
            Some(0) => {
                self.after = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }
}

fn failed(what: &str) -> DeviceError {
    DeviceError::Failed { label: what.to_owned(), reason: "it was told to".to_owned() }
}

impl Device for Failing {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        if self.fails() { Err(failed("an allocation")) } else { self.device.allocate(label, bytes) }
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.fails() { Err(failed("a write")) } else { self.device.write(range, bytes) }
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if self.fails() { Err(failed("a read")) } else { self.device.read(range, bytes) }
    }

    /// A run fails after a part of it, more of it each time.
    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        if !self.fails() {
            return self.device.run(dispatches, stages);
        }
        let stages = &stages[..stages.len() * 2 / 3];
        self.device.run(&dispatches[..stages.iter().sum()], stages)?;
        Err(failed("a run"))
    }

    fn replay(&mut self, plan: &BoundPlan) -> Result<(), DeviceError> {
        if self.after == Some(0) {
            return self.run(plan.dispatches(), plan.stages());
        }
        self.fails();
        self.device.replay(plan)
    }

    fn forget(&mut self, plan: PlanId) {
        self.device.forget(plan);
    }
}

fn runner(model: &Model) -> Option<GpuRunner<Failing>> {
    let mut device = Failing { device: crate::common::device()?, after: None };
    let network = upload(&mut device, &model.network(), &model.shape).expect("weights");
    Some(GpuRunner::new(device, "test", &model.shape, network, runner_size()).expect("memory"))
}

/// A step of each kind, and one of both: it is two plans.
fn steps<'a>(a: &'a Sequence, b: &'a Sequence, c: &'a Sequence) -> Vec<Vec<Part<'a>>> {
    vec![
        vec![a.prefill(0..20, &[]), b.prefill(0..3, &[])],
        vec![a.decode(20..21), c.prefill(0..7, &[]), b.decode(3..4)],
        vec![b.decode(4..5), a.decode(21..22), c.decode(7..8)],
    ]
}

fn states(runner: &mut dyn Runner, sequences: &[&Sequence]) -> Vec<State> {
    sequences.iter().map(|sequence| sequence.state(runner)).collect()
}

#[test]
fn a_step_that_failed_can_be_run_again() {
    let model = Model::small(3);
    let Some(mut undisturbed) = runner(&model) else { return };
    let sequences = [model.sequence(1, 0, 30), model.sequence(2, 1, 30), model.sequence(3, 2, 30)];
    let [a, b, c] = &sequences;
    let steps = steps(a, b, c);
    let expected: Vec<(Vec<Rows>, Vec<State>)> = steps
        .iter()
        .map(|parts| {
            let logits = step(&mut undisturbed, parts);
            (logits, states(&mut undisturbed, &[a, b, c]))
        })
        .collect();

    let Some(mut runner) = runner(&model) else { return };
    for (i, (parts, (logits, after))) in steps.iter().zip(&expected).enumerate() {
        let before = states(&mut runner, &[a, b, c]);
        let mut failures = 0;
        let actual = loop {
            runner.device().after = Some(failures);
            match try_step(&mut runner, parts) {
                Err(error) => {
                    assert!(error.to_string().contains("it was told to"), "{error}");
                    runner.device().after = None;
                    // KV of positions that a sequence does not have yet may be there.
                    let now = states(&mut runner, &[a, b, c]);
                    let kept = now.iter().zip(&before).all(|(now, before)| now.slot == before.slot);
                    assert!(kept, "step {i}: state has moved on though call {failures} failed");
                    failures += 1;
                }
                Ok(logits) => break logits,
            }
        };
        runner.device().after = None;
        // Of each plan tables are written, dispatches run and logits read.
        let plans = if i == 1 { 2 } else { 1 };
        assert!(failures >= 3 * plans, "step {i}: {failures} calls could fail");
        for (actual, expected) in actual.iter().zip(logits) {
            require_same(actual, expected, &format!("step {i} after {failures} failures"));
        }
        for (actual, expected) in states(&mut runner, &[a, b, c]).iter().zip(after) {
            actual.require(expected, &format!("step {i} after {failures} failures"));
        }
    }
}

#[test]
fn state_that_could_not_be_moved_is_said_by_the_next_step() {
    let model = Model::small(3);
    let Some(mut runner) = runner(&model) else { return };
    let sequence = model.sequence(1, 0, 10);
    let expected = step(&mut runner, &[sequence.prefill(0..4, &[])]).remove(0);
    type Move = fn(&mut dyn Runner);
    let moves: [(&str, Move); 3] = [
        ("clear_slot", |runner| runner.clear_slot(1)),
        ("copy_slot", |runner| runner.copy_slot(2, 1)),
        ("copy_page", |runner| runner.copy_page(1, 0)),
    ];
    for (name, act) in moves {
        runner.device().after = Some(0);
        act(&mut runner);
        let error = try_step(&mut runner, &[sequence.decode(4..5)]).expect_err(name);
        assert_eq!(error.device, "test");
        assert!(error.reason.contains("it was told to"), "{name}: {error}");
        // It is said once. What to do about it is for the caller to say: here, to begin again.
        sequence.forget(&mut runner);
        let again = step(&mut runner, &[sequence.prefill(0..4, &[])]).remove(0);
        require_same(&again, &expected, name);
    }
    // Nobody needs to run a step to learn of it.
    runner.device().after = Some(0);
    runner.copy_slot(2, 3);
    let error = runner.check_moves().expect_err("a copy that failed");
    assert!(error.reason.contains("it was told to"), "{error}");
    runner.check_moves().expect("it is said once");
    // What a copy should have written is not read out as if it had.
    let mut bytes = vec![];
    runner.device().after = Some(0);
    runner.copy_slot(2, 3);
    assert!(runner.read_slot(3, &mut bytes).is_err());
    runner.device().after = Some(0);
    runner.copy_page(1, 0);
    assert!(runner.read_page(0, &mut bytes).is_err());
    // A slot or page that does not exist is no panic either.
    runner.copy_slot(1, 99);
    let error = try_step(&mut runner, &[sequence.decode(4..5)]).expect_err("no such slot");
    assert!(error.reason.contains("99"), "{error}");
}
