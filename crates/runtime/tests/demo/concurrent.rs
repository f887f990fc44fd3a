//! Many requests at once on the demo checkpoint: each gets the reply that it gets alone.

use crate::harness::{Demo, Setup, Text};
use calla_engine::{FinishReason, Grammar, Output, Request, RequestId, Usage};
use calla_runtime::{Driver, Turn};
use calla_text::{Message, RenderOptions, Role};
use std::collections::HashMap;

/// Questions of many kinds, some with a long text before them, some sampled, some held to a grammar.
fn requests(text: &Text) -> Vec<Request> {
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(60);
    let questions = [
        "12 + 30 = ?",
        "What is 47 + 38?",
        "Sort: pear, apple, fig",
        "What is the capital of Kenya?",
        "Reverse: red, green, blue",
        "How do you spell banana?",
    ];
    let mut requests = vec![];
    for (i, question) in questions.iter().enumerate() {
        for system in ["You are a helpful assistant.", &long] {
            let options = RenderOptions {
                add_generation_prompt: true,
                enable_thinking: Some(i % 2 == 0),
                ..RenderOptions::default()
            };
            let messages =
                [Message::new(Role::System, system), Message::new(Role::User, *question)];
            let rendered = text.template.render(&text.tokenizer, &messages, &options).unwrap();
            let mut request = Request {
                stop_ids: text.stop_ids.clone(),
                vocab_used: text.tokenizer.vocab_size(),
                grammar: (i == 5).then(|| Grammar::Regex("[a-z]{4} [a-z]{2}".to_owned())),
                ..Request::new(rendered.ids, 60)
            };
            if i == 3 {
                request.sampling.temperature = 1.0;
                request.sampling.seed = 5;
            }
            requests.push(request);
        }
    }
    requests
}

/// Runs requests to their end, all submitted at once. `cancel` ends one after its first token.
fn run(
    driver: &mut Driver,
    requests: &[Request],
    cancel: Option<usize>,
) -> Vec<(Vec<u32>, FinishReason, Usage)> {
    let ids: Vec<RequestId> =
        requests.iter().map(|r| driver.engine().submit(r.clone()).unwrap()).collect();
    let mut replies: HashMap<RequestId, Vec<u32>> = HashMap::new();
    let mut ends = HashMap::new();
    loop {
        let turn = driver.turn(true);
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { id, token, .. } => {
                    replies.entry(id).or_default().push(token);
                    if cancel.is_some_and(|i| ids[i] == id) {
                        driver.engine().cancel(id);
                    }
                }
                Output::Finished { id, reason, usage } => {
                    ends.insert(id, (reason, usage));
                }
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
        if turn == Turn::Idle {
            break;
        }
    }
    let reply = |id| {
        let (reason, usage) = ends[id];
        (replies.get(id).cloned().unwrap_or_default(), reason, usage)
    };
    ids.iter().map(reply).collect()
}

#[test]
fn requests_that_run_together_get_the_replies_that_they_get_alone() {
    let (mut alone, _, text) = Demo::driver(Setup::default());
    let requests = requests(&text);
    let mut expected = vec![];
    for request in &requests {
        alone.engine().forget();
        expected.extend(run(&mut alone, std::slice::from_ref(request), None));
    }
    for depth in [0, 2] {
        let setup = Setup { more_running: 3, depth, ..Setup::default() };
        let (mut together, ..) = Demo::driver(setup);
        let replies = run(&mut together, &requests, Some(4));
        for (i, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
            if i == 4 {
                assert_eq!(reply.1, FinishReason::Cancelled);
                assert!(!reply.0.is_empty() && expected.0.starts_with(&reply.0));
            } else {
                assert_eq!((&reply.0, reply.1), (&expected.0, expected.1), "request {i}");
            }
        }
    }
}

#[test]
fn a_long_prompt_stalls_nobody() {
    let (mut driver, context, text) = Demo::driver(Setup { more_running: 1, ..Setup::default() });
    let mut requests = requests(&text);
    // One decodes; then a prompt of most of the context arrives.
    let mut long = requests.pop().unwrap();
    let short = Request { max_tokens: 200, ignore_eos: true, ..requests.swap_remove(0) };
    let filler = text.tokenizer.encode_text(&"a b c d e f g h ".repeat(600)).unwrap();
    long.grammar = None;
    long.prompt.splice(1..1, filler.into_iter().take(context / 2));
    let short = driver.engine().submit(short).unwrap();
    let (mut tokens, mut steps, mut long_done) = (0, 0, 0);
    let mut long_id = None;
    while long_done < long.prompt.len() {
        assert_ne!(driver.turn(true), Turn::Idle);
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Token { id, .. } if id == short => tokens += 1,
                Output::Prefill { id, done, .. } if Some(id) == long_id => {
                    // The first one only says that the prompt has its place.
                    steps += usize::from(done > long_done);
                    long_done = done;
                }
                _ => {}
            }
        }
        if tokens == 1 && long_id.is_none() {
            long_id = Some(driver.engine().submit(long.clone()).unwrap());
        }
    }
    assert!(steps >= 10, "{steps} slices are no long prompt");
    assert!(
        tokens > steps,
        "{tokens} tokens of the short reply in {steps} slices of the long prompt"
    );
}
