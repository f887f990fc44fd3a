//! A request alone, in a world without history, files, drafts and faults: what its reply has to be.

use crate::requests::compile;
use crate::toy::{Fault, MARKERS, Toy, VOCAB};
use calla_engine::step::{Arithmetic, Effect};
use calla_engine::{CutRule, Engine, EngineConfig, Failure, FinishReason, Output, Request};
use calla_engine::{Speculation, TokenLogprobs};
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
    let mut engine = Engine::new(EngineConfig {
        cache,
        vocab_size: VOCAB,
        context: 40 * 64,
        running_max: 1,
        queue_max: 1,
        // Every slice ends at the next cut, so that no result here depends on the cuts that a span names.
        slice_rows: 1,
        slice_seconds: None,
        rule: CutRule::new(MARKERS.to_vec()),
        arithmetic,
        fast_cache: false,
        snapshot_interval: 1 << 20,
        remembered_tokens_max: 0,
        speculation: Speculation::Off,
        checkpoint_slots: 0,
        file_tokens_min: None,
    });
    engine.submit(request.clone()).unwrap();
    let (mut reply, mut all_logprobs) = (vec![], vec![]);
    loop {
        while let Some(Effect::Compile { id, grammar }) = engine.next_effect() {
            engine.compiled(id, compile(&grammar));
        }
        if let Some(step) = engine.next_step() {
            let result = toy.run(&step, Fault::None);
            engine.complete(result, 1.0);
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
