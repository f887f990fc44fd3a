//! An agent's loop of thirty tool calls under the memory budget of the full-size model: what it computes again.

use crate::toy::{Fault, MARKERS, Toy, VOCAB, mix, one_at_a_time};
use calla_engine::step::Arithmetic;
use calla_engine::{Engine, EngineConfig, Output, Request, StateNeeds, Usage};
use calla_model::Shape;

const CONTEXT: usize = 65_536;
/// System prompt and tools of a coding agent.
const SYSTEM_TOKENS: usize = 10_000;
const RESULT_TOKENS: usize = 900;
const REPLY_TOKENS: usize = 50;

struct Agent {
    engine: Engine,
    toy: Toy,
}

impl Agent {
    fn new(arithmetic: Arithmetic, budget: u64) -> Self {
        // bf16, as on a GPU.
        let cache = StateNeeds::one_sequence(CONTEXT, 2).cache_size(&Shape::full(40), budget);
        let engine = Engine::new(EngineConfig {
            slice_rows: 512,
            snapshot_interval: 2048,
            remembered_tokens_max: 1 << 20,
            ..one_at_a_time(cache, CONTEXT, arithmetic)
        });
        Self { engine, toy: Toy::new(cache, arithmetic) }
    }

    fn run(&mut self, prompt: &[u32]) -> (Vec<u32>, Usage) {
        self.engine.submit(Request::new(prompt.to_vec(), REPLY_TOKENS)).unwrap();
        let mut reply = vec![];
        loop {
            if let Some(step) = self.engine.next_step() {
                let result = self.toy.run(&step, Fault::None);
                self.engine.complete(result, Some(1.0));
            }
            while let Some(output) = self.engine.poll() {
                match output {
                    Output::Token { token, .. } => reply.push(token),
                    Output::Finished { usage, .. } => return (reply, usage),
                    Output::Prefill { .. } => {}
                    Output::Failed { failure, .. } => panic!("{failure}"),
                }
            }
        }
    }
}

/// A turn of `len` tokens after its marker.
fn turn(number: u64, marker: u32, len: usize) -> Vec<u32> {
    let token = |i| 4 + (mix(number, i) % (VOCAB as u64 - 4)) as u32;
    std::iter::once(marker).chain((0..len as u64).map(token)).collect()
}

#[test]
fn two_gigabytes_serve_a_loop_of_thirty_calls() {
    // Where decoding rounds differently, the reply is computed once more, from the marker that opens it.
    for (arithmetic, again) in [(Arithmetic::Uniform, 1), (Arithmetic::Split, REPLY_TOKENS + 2)] {
        let mut agent = Agent::new(arithmetic, 2_000_000_000);
        let mut prompt = turn(0, MARKERS[0], SYSTEM_TOKENS);
        prompt.extend(turn(1, MARKERS[0], 100));
        for call in 0..30 {
            prompt.extend([MARKERS[0], 5]);
            let (reply, usage) = agent.run(&prompt);
            if call > 0 {
                let new = prompt.len() - usage.reuse.reused;
                let predicted = 1 + RESULT_TOKENS + 2 + again;
                assert!(new <= predicted, "{arithmetic:?}, call {call}: {new} computed, {usage:?}");
            }
            prompt.extend(reply);
            prompt.extend(turn(2 + call, MARKERS[1], RESULT_TOKENS));
        }
        // A second conversation under the same system prompt still finds that.
        let mut other = turn(0, MARKERS[0], SYSTEM_TOKENS);
        other.extend(turn(99, MARKERS[0], 100));
        let (_, usage) = agent.run(&other);
        assert_eq!(usage.reuse.reused, 1 + SYSTEM_TOKENS, "{usage:?}");
    }
}
