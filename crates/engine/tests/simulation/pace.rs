//! Slices that follow a simulated device's speed: steps come to take the time that they may, and replies stay the same.

use crate::random::Random;
use crate::toy::{Fault, MARKERS, Toy, VOCAB, mix, one_at_a_time};
use calla_engine::step::{Arithmetic, Run, Step};
use calla_engine::{Engine, EngineConfig, Output, Request};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{CacheSize, SpanKind};

const CONTEXT: usize = 16_384;
const ROWS_MAX: usize = 2048;
const TARGET: f64 = 0.2;

/// Seconds that a device takes.
#[derive(Clone, Copy, Debug)]
struct Speed {
    step: f64,
    row: f64,
    /// For each row and token before it.
    context: f64,
}

/// A step with rows of a prompt.
#[derive(Debug)]
struct Slice {
    rows: usize,
    seconds: f64,
}

impl Speed {
    fn slice(self, step: &Step) -> Slice {
        let Run::Batch(batch) = &step.run else { return Slice { rows: 0, seconds: 1e-3 } };
        let prefill = || batch.spans().iter().filter(|span| span.kind == SpanKind::Prefill);
        let seen = prefill().map(|span| span.rows.len() * span.position).sum::<usize>();
        let seconds = self.step + self.row * batch.rows() as f64 + self.context * seen as f64;
        Slice { rows: prefill().map(|span| span.rows.len()).sum(), seconds }
    }
}

/// The reply to a prompt, and the slices that it was computed in. The first steps, `prepared` of them, take as long as kernels
/// take to compile.
fn run(
    prompt: &[u32],
    seconds: Option<f64>,
    speed: Speed,
    prepared: usize,
) -> (Vec<u32>, Vec<Slice>) {
    let cache = CacheSize { pages: CONTEXT / PAGE_TOKENS, slots: 2 };
    let mut toy = Toy::new(cache, Arithmetic::Split);
    let mut engine = Engine::new(EngineConfig {
        slice_rows: ROWS_MAX,
        slice_seconds: seconds,
        ..one_at_a_time(cache, CONTEXT, Arithmetic::Split)
    });
    engine.submit(Request::new(prompt.to_vec(), 20)).unwrap();
    let (mut reply, mut slices) = (vec![], vec![]);
    let mut steps = 0;
    loop {
        if let Some(step) = engine.next_step() {
            let slice = speed.slice(&step);
            let result = toy.run(&step, Fault::None);
            steps += 1;
            engine.complete(result, (steps > prepared).then_some(slice.seconds));
            if slice.rows > 0 {
                slices.push(slice);
            }
        }
        while let Some(output) = engine.poll() {
            match output {
                Output::Token { token, .. } => reply.push(token),
                Output::Finished { .. } => return (reply, slices),
                Output::Prefill { .. } => {}
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
    }
}

#[test]
fn steps_take_the_time_that_they_may() {
    // One message, so that only the budget ends a slice.
    let token = |i| 4 + (mix(1, i) % (VOCAB as u64 - 4)) as u32;
    let prompt: Vec<u32> = std::iter::once(MARKERS[0]).chain((0..15_000).map(token)).collect();
    let mut random = Random { seed: 1, count: 0 };
    for case in 0..12 {
        // From 700 to 40,000 rows a second.
        let row = 2.5e-5 * f64::powf(56.0, random.below(100) as f64 / 100.0);
        let step = [0.0, 0.02][random.below(2)];
        // At the end of the prompt a row takes up to twice as long as at its start.
        let context = if case % 2 == 0 { 0.0 } else { row / 15_000.0 };
        let speed = Speed { step, row, context };
        let (fixed_reply, fixed) = run(&prompt, None, speed, 0);
        let (reply, slices) = run(&prompt, Some(TARGET), speed, 0);
        assert_eq!(reply, fixed_reply, "{speed:?}");
        assert!(fixed.iter().all(|slice| slice.rows <= ROWS_MAX));
        // Two steps to know the speed, and two wherever a budget has become too large.
        let late = slices.iter().filter(|slice| slice.seconds > TARGET).count();
        assert!(late <= 4, "{speed:?}: {late} of {slices:?}");
        // More than half of what may be used is, where there are rows enough.
        let ends = slices.len() - 1;
        let idle = slices[..ends].iter().skip(4);
        let idle = idle.filter(|s| s.rows < ROWS_MAX && s.seconds < 0.35 * TARGET).count();
        assert_eq!(idle, 0, "{speed:?}: {slices:?}");
        let mut sizes: Vec<usize> = slices[..ends].iter().map(|slice| slice.rows).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() <= 6, "a plan for each of {sizes:?}");
    }
}

#[test]
fn what_is_prepared_for_tells_no_speed() {
    let token = |i| 4 + (mix(2, i) % (VOCAB as u64 - 4)) as u32;
    let prompt: Vec<u32> = std::iter::once(MARKERS[0]).chain((0..15_000).map(token)).collect();
    // All rows of the maximum fit.
    let speed = Speed { step: 0.0, row: 0.5 * TARGET / ROWS_MAX as f64, context: 0.0 };
    for prepared in [0, 2, 5] {
        let (_, slices) = run(&prompt, Some(TARGET), speed, prepared);
        let (_, ends) = slices.split_last().unwrap();
        assert!(ends.iter().all(|slice| slice.rows == ROWS_MAX), "{slices:?}");
    }
    // Where they do not, it is only known later.
    let slow = Speed { row: 2.0 * TARGET / ROWS_MAX as f64, ..speed };
    let (_, slices) = run(&prompt, Some(TARGET), slow, 3);
    let late = slices.iter().filter(|slice| slice.seconds > TARGET).count();
    assert_eq!(late, 5, "{slices:?}");
}
