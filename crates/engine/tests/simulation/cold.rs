//! A request alone, in a world without history, files, drafts and faults: what its reply has to be.

use crate::requests::compile;
use crate::toy::{Fault, Toy, one_at_a_time};
use calla_engine::step::{Arithmetic, Effect};
use calla_engine::{Engine, Failure, FinishReason, Output, Request, TokenLogprobs};
use calla_ops::CacheSize;

/// A whole reply.
pub(crate) struct Cold {
    pub(crate) reply: Vec<u32>,
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
    pub(crate) end: Result<FinishReason, Failure>,
}

pub(crate) fn cold_run(request: &Request, arithmetic: Arithmetic) -> Cold {
    let cache = CacheSize { pages: 40, slots: 1 };
    let mut toy = Toy::new(cache, arithmetic);
    // Every slice ends at the next cut, so that no result here depends on the cuts that a span names.
    let mut engine = Engine::new(one_at_a_time(cache, 40 * 64, arithmetic));
    engine.submit(request.clone()).unwrap();
    let (mut reply, mut all_logprobs) = (vec![], vec![]);
    loop {
        while let Some(Effect::Compile { id, grammar }) = engine.next_effect() {
            engine.compiled(id, compile(&grammar));
        }
        if let Some(step) = engine.next_step() {
            let result = toy.run(&step, Fault::None);
            engine.complete(result, Some(1.0));
        }
        while let Some(output) = engine.poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { token, logprobs, .. } => {
                    reply.push(token);
                    all_logprobs.push(logprobs);
                }
                Output::Finished { reason, .. } => {
                    return Cold { reply, logprobs: all_logprobs, end: Ok(reason) };
                }
                Output::Failed { failure, .. } => {
                    return Cold { reply, logprobs: all_logprobs, end: Err(failure) };
                }
            }
        }
    }
}
