//! Multi-step decode beside single steps: the same outputs in the same order, and no more steps than time and replies
//! allow.

use crate::toy::{Fault, LIMITS, MARKERS, STOP, Toy, VOCAB, mix, one_at_a_time};
use calla_engine::step::{Arithmetic, Run, Step};
use calla_engine::{
    Engine, EngineConfig, FinishReason, MultiStepConfig, Output, Request, Sampling, Thinking,
};
use calla_ops::CacheSize;

const CONTEXT: usize = 256;

struct Simulated {
    engine: Engine,
    toy: Toy,
    /// Seconds of a decode step.
    seconds: f64,
    /// Steps of each multi-step decode so far.
    sizes: Vec<usize>,
}

impl Simulated {
    fn new(seconds_max: Option<f64>, seconds: f64, running_max: usize) -> Self {
        let cache = CacheSize { pages: 4 * running_max, slots: running_max };
        let multi_step =
            seconds_max.map(|seconds_max| MultiStepConfig { limits: LIMITS, seconds_max });
        let engine = Engine::new(EngineConfig {
            running_max,
            queue_max: 8,
            slice_rows: 256,
            multi_step,
            ..one_at_a_time(cache, CONTEXT, Arithmetic::Split)
        });
        Self { engine, toy: Toy::new(cache, Arithmetic::Split), seconds, sizes: vec![] }
    }

    /// Runs a step, and gives what came of it; nothing when there is none to run.
    fn step(&mut self) -> Option<(Step, Vec<Output>)> {
        let step = self.engine.next_step()?;
        let mut seconds = self.seconds;
        if let Run::MultiStep(run) = &step.run {
            self.sizes.push(run.steps);
            seconds *= run.steps as f64;
        }
        let result = self.toy.run(&step, Fault::None);
        self.engine.complete(result, Some(seconds));
        Some((step, std::iter::from_fn(|| self.engine.poll()).collect()))
    }

    /// All that comes of requests that are submitted at once.
    fn run(&mut self, requests: &[Request]) -> Vec<Output> {
        for request in requests {
            self.engine.submit(request.clone()).unwrap();
        }
        let mut all = vec![];
        while let Some((_, outputs)) = self.step() {
            all.extend(outputs);
        }
        all
    }
}

/// A request with a prompt of its own.
fn request(number: u64, max_tokens: usize) -> Request {
    let token = |i| 4 + (mix(number, i) % (VOCAB as u64 - 4)) as u32;
    Request::new(std::iter::once(MARKERS[0]).chain((0..20).map(token)).collect(), max_tokens)
}

fn drawn(number: u64, max_tokens: usize) -> Request {
    let sampling = Sampling { temperature: 1.0, top_k: 20, seed: number, ..Sampling::greedy() };
    Request { sampling, stop_ids: vec![STOP], ..request(number, max_tokens) }
}

#[test]
fn outputs_are_those_of_single_steps_in_their_order() {
    let mut stopped = 0;
    for first in 0..40 {
        // They run together from the start, so that nobody is let in earlier or later.
        let requests = [drawn(first, 40), request(first + 100, 30), drawn(first + 200, 200)];
        let single = Simulated::new(None, 0.001, 3).run(&requests);
        let mut simulated = Simulated::new(Some(0.03), 0.001, 3);
        assert_eq!(simulated.run(&requests), single, "requests {first}");
        assert!(!simulated.sizes.is_empty());
        let stop = |output: &&Output| {
            matches!(output, Output::Finished { reason: FinishReason::Stop, .. })
        };
        stopped += single.iter().filter(stop).count();
    }
    assert!(stopped >= 20, "{stopped} stopped");
}

#[test]
fn steps_take_the_time_for_which_a_token_may_wait() {
    for (seconds, size) in [(0.0021, 14), (0.011, 2), (0.000_1, LIMITS.steps_max)] {
        let mut simulated = Simulated::new(Some(0.03), seconds, 1);
        simulated.run(&[request(1, 100)]);
        // The first token is prefill's; two steps are measured; then what is left is less than there is time for.
        let sizes = &simulated.sizes;
        assert_eq!(sizes[..2], [1, 1], "{sizes:?}");
        assert!(sizes[2..sizes.len() - 1].iter().all(|&n| n == size), "{sizes:?}");
        assert!((1..=size).contains(&sizes[sizes.len() - 1]), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 100 - 1);
    }
    let mut slow = Simulated::new(Some(0.03), 0.02, 1);
    slow.run(&[request(1, 100)]);
    assert_eq!(slow.sizes, [1; 99], "two steps would take too long");
}

#[test]
fn steps_end_where_replies_contexts_and_budgets_of_thinking_do() {
    let sizes_of = |requests: &[Request]| {
        let mut simulated = Simulated::new(Some(f64::INFINITY), 0.001, requests.len());
        simulated.run(requests);
        simulated.sizes
    };
    // Two steps of each number of rows are measured first.
    assert_eq!(sizes_of(&[request(1, 3 + 5)]), [1, 1, 5]);
    assert_eq!(sizes_of(&[request(1, 3 + 1)]), [1, 1, 1]);
    // The context has a token's room for each position behind the prompt, and one more is chosen from the last.
    assert_eq!(sizes_of(&[request(1, 1000)]).iter().sum::<usize>(), CONTEXT + 1 - 21 - 1);
    assert_eq!(sizes_of(&[request(1, 3 + 4), request(2, 3 + 12)])[2], 4);
    let thinking =
        Thinking { end_id: 40, budget: Some(10), forced_end: vec![41, 40], separator: vec![] };
    let request = Request {
        thinking: Some(thinking),
        // So that it does not end by itself.
        vocab_used: 40,
        ..request(1, 10 + 2 + 6)
    };
    // After what forces the end comes a step of several rows.
    assert_eq!(sizes_of(&[request]), [1, 1, 7, 5]);
}

#[test]
fn whoever_needs_the_host_has_single_steps_for_all() {
    let held = [
        Request { top_logprobs: Some(1), ..request(2, 30) },
        Request { banned_ids: vec![7], ..request(2, 30) },
        Request { ignore_eos: true, ..drawn(2, 30) },
        Request { min_tokens: 30, ..drawn(2, 30) },
        Request { vocab_used: 30, ..request(2, 30) },
        Request {
            sampling: Sampling { presence_penalty: 0.5, ..Sampling::greedy() },
            ..request(2, 30)
        },
        Request {
            sampling: Sampling { temperature: 1.0, top_k: 0, ..Sampling::greedy() },
            ..request(2, 30)
        },
    ];
    for held in held {
        let mut simulated = Simulated::new(Some(f64::INFINITY), 0.001, 2);
        simulated.run(&[request(1, 30), held.clone()]);
        assert_eq!(simulated.sizes, [0; 0], "{held:?}");
        // Alone the other one has them.
        simulated.run(&[request(1, 30)]);
        assert_eq!(simulated.sizes.iter().sum::<usize>(), 30 - 1);
    }
}

#[test]
fn a_prompt_that_comes_is_computed_next() {
    let mut simulated = Simulated::new(Some(f64::INFINITY), 0.001, 2);
    simulated.engine.submit(request(1, 200)).unwrap();
    while simulated.sizes.len() < 4 {
        simulated.step().unwrap();
    }
    simulated.engine.submit(request(2, 5)).unwrap();
    let (step, outputs) = simulated.step().unwrap();
    assert!(matches!(step.run, Run::Batch(_)), "{:?}", step.run);
    assert!(outputs.iter().any(|output| matches!(output, Output::Prefill { done: 21, .. })));
}
