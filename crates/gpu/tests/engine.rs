//! The engine on the plan and the kernels, from text to text: what is batched, cut, taken up again, saved, cancelled,
//! drafted or chosen by the device gives the replies of a cold run alone, token for token.

mod common;

use calla_engine::step::Arithmetic;
use calla_engine::{CutRule, FinishReason, Level, MultiStepConfig, Output, Request, RequestId};
use calla_engine::{Speculation, Usage};
use calla_gpu::RunnerSize;
use calla_ops::{CacheSize, Runner};
use calla_runtime::{
    CacheLevels, Driver, Limits, PressureLevel, SavedUse, Turn, engine_config, store_sizes,
};
use calla_store::Store;
use calla_testkit::places;
use calla_text::{ChatTemplate, GenerationDefaults, Message, RenderOptions, Role, Tokenizer};
use calla_weights::Checkpoint;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

const CONTEXT: usize = 512;
const RUNNING_MAX: usize = 3;
const REPLY_TOKENS_MAX: usize = 14;
/// A temperature at which the demo, sure of what it says, says something else.
const HOT: f32 = 4.0;
/// Small, so that a prompt takes several.
const SLICE_ROWS: usize = 40;

/// An engine on the device of tests, and the demo's text side.
struct Demo {
    driver: Driver,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
}

impl Demo {
    /// Decodes step by step. `None`, with the reason printed, where there is no device.
    fn load(depth: usize, disk: Option<&Path>) -> Option<Self> {
        Self::with_levels(depth, None, 0, disk)
    }

    /// Runs as many steps as follow one another without the host in `seconds_max`, where given; keeps saved prefixes in
    /// `host_bytes` of host memory and on `disk`.
    fn with_levels(
        depth: usize,
        seconds_max: Option<f64>,
        host_bytes: u64,
        disk: Option<&Path>,
    ) -> Option<Self> {
        let dir = places::demo();
        let tokenizer = Tokenizer::load(&dir).expect("a tokenizer");
        let checkpoint = Checkpoint::open(&dir).expect("a checkpoint");
        let defaults = GenerationDefaults::load(&dir).expect("generation_config.json");
        let stop_ids = tokenizer.eos_ids(&checkpoint.config().eos_token_ids, &defaults);
        let size = RunnerSize {
            // With a level behind them, so few that snapshots of one conversation give way to those of the next.
            cache: CacheSize {
                pages: 40,
                slots: if host_bytes > 0 { RUNNING_MAX * (1 + depth) } else { 24 },
            },
            sequences: RUNNING_MAX,
            drafting: depth > 0,
        };
        let (shape, network) = common::network::checkpoint(&dir);
        let runner = common::network::runner(&shape, &network, size)?;
        assert_eq!(runner.can_draft(), depth > 0);
        let markers = ["<|im_start|>", "<tool_response>"];
        let markers = markers.map(|m| tokenizer.token_id(m).expect("a marker")).to_vec();
        let limits = Limits {
            context: CONTEXT,
            running_max: RUNNING_MAX,
            queue_max: 8,
            speculation: if depth > 0 { Speculation::Fixed(depth) } else { Speculation::Off },
            fast_cache: false,
        };
        let mut config = engine_config(&runner, CutRule::new(markers), limits);
        assert_eq!(config.arithmetic, Arithmetic::Split);
        config.slice_rows = SLICE_ROWS;
        config.file_tokens_min = Some(16);
        let usual = config.multi_step.expect("the runner chooses tokens");
        config.multi_step = seconds_max.map(|seconds_max| MultiStepConfig { seconds_max, ..usual });
        let store = disk.map(|dir| {
            let limits = calla_store::Limits { bytes: 1 << 30, age: Duration::from_secs(3600) };
            let (version, sizes) = (runner.arithmetic(), store_sizes(&runner));
            Store::open(dir, &version, sizes, limits, SystemTime::now()).expect("a folder")
        });
        let compile = Box::new(|_: &_| Err("no grammars here".to_owned()));
        let driver =
            Driver::new(Box::new(runner), config, compile, CacheLevels { host_bytes, store })
                .expect("threads");
        let template = ChatTemplate::load(&dir).expect("a template");
        Some(Self { driver, tokenizer, template, stop_ids })
    }

    /// A request for a reply without thinking.
    fn request(&self, messages: &[Message]) -> Request {
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: Some(false),
            ..RenderOptions::default()
        };
        let rendered = self.template.render(&self.tokenizer, messages, &options).expect("a prompt");
        Request {
            stop_ids: self.stop_ids.clone(),
            vocab_used: self.tokenizer.vocab_size(),
            ..Request::new(rendered.ids, REPLY_TOKENS_MAX)
        }
    }

    /// The replies to requests that are submitted at once. `cancel` ends one after its second token.
    fn run(&mut self, requests: &[Request], cancel: Option<usize>) -> Vec<Reply> {
        let engine = self.driver.engine();
        let ids: Vec<RequestId> =
            requests.iter().map(|r| engine.submit(r.clone()).expect("a request")).collect();
        let mut replies: HashMap<RequestId, Reply> = HashMap::new();
        while self.driver.turn(true) != Turn::Idle {
            let mut in_this_step = vec![];
            while let Some(output) = self.driver.engine().poll() {
                match output {
                    Output::Prefill { id, .. } => replies.entry(id).or_default().slices += 1,
                    Output::Token { id, token, .. } => {
                        let reply = replies.entry(id).or_default();
                        reply.ids.push(token);
                        in_this_step.push(id);
                        if reply.ids.len() == 2 && cancel.is_some_and(|i| ids[i] == id) {
                            self.driver.engine().cancel(id);
                        }
                    }
                    Output::Finished { id, reason, usage } => {
                        let reply = replies.entry(id).or_default();
                        (reply.reason, reply.usage) = (Some(reason), usage);
                    }
                    Output::Failed { failure, .. } => panic!("{failure}"),
                }
            }
            for id in &in_this_step {
                let count = in_this_step.iter().filter(|&other| other == id).count();
                let reply = replies.get_mut(id).expect("it has a token");
                reply.tokens_together = reply.tokens_together.max(count);
            }
            in_this_step.sort_unstable();
            in_this_step.dedup();
            for id in &in_this_step {
                let reply = replies.get_mut(id).expect("it has a token");
                reply.steps_shared += usize::from(in_this_step.len() > 1);
            }
        }
        ids.iter().map(|id| replies.remove(id).expect("a reply")).collect()
    }

    /// The reply to one request.
    fn reply(&mut self, request: &Request) -> Reply {
        self.run(std::slice::from_ref(request), None).remove(0)
    }

    /// The reply to one request by an engine that remembers nothing.
    fn cold(&mut self, request: &Request) -> Reply {
        self.driver.engine().forget();
        let reply = self.reply(request);
        assert_eq!(reply.usage.reuse.reused, 0);
        reply
    }

    fn text(&self, reply: &Reply) -> String {
        self.tokenizer.decode(&reply.ids, true).trim().to_owned()
    }
}

#[derive(Clone, Debug, Default)]
struct Reply {
    ids: Vec<u32>,
    reason: Option<FinishReason>,
    usage: Usage,
    /// Reports of the prompt's progress.
    slices: usize,
    /// Steps that gave this reply a token and another one too.
    steps_shared: usize,
    /// Most tokens that came together.
    tokens_together: usize,
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

/// A long prompt, one that is sampled, one that is plain.
fn requests(demo: &Demo) -> Vec<Request> {
    let long = format!("{}Be brief.", "You are a helpful assistant. ".repeat(14));
    let mut sampled = demo.request(&[user("What is the capital of Kenya?")]);
    sampled.sampling.temperature = HOT;
    sampled.sampling.seed = 3;
    vec![
        demo.request(&[user("12 + 30 = ?")]),
        sampled,
        demo.request(&[Message::new(Role::System, &*long), user("What is 47 + 38?")]),
    ]
}

#[test]
fn requests_that_run_together_get_the_replies_that_they_get_alone() {
    let Some(mut demo) = Demo::load(0, None) else { return };
    let requests = requests(&demo);
    let alone: Vec<Reply> = requests.iter().map(|request| demo.cold(request)).collect();
    let texts: Vec<String> = alone.iter().map(|reply| demo.text(reply)).collect();
    println!("{texts:?}, slices: {:?}", alone.iter().map(|r| r.slices).collect::<Vec<_>>());
    assert!(texts[0].contains("42"), "{texts:?}");
    assert!(texts[2].contains("85"), "{texts:?}");
    assert!(alone[2].slices >= 3, "{} slices", alone[2].slices);

    demo.driver.engine().forget();
    let together = demo.run(&requests, None);
    for (i, (reply, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!((&reply.ids, reply.reason), (&alone.ids, alone.reason), "request {i}");
    }
    assert!(together.iter().any(|r| r.steps_shared >= 3), "nothing was decoded together");

    demo.driver.engine().forget();
    let others = demo.run(&requests, Some(0));
    assert_eq!(others[0].reason, Some(FinishReason::Cancelled));
    assert!(others[0].ids.len() >= 2 && alone[0].ids.starts_with(&others[0].ids));
    for (reply, alone) in others.iter().zip(&alone).skip(1) {
        assert_eq!((&reply.ids, reply.reason), (&alone.ids, alone.reason));
    }
}

#[test]
fn a_second_turn_takes_up_a_snapshot_and_changes_nothing() {
    let Some(mut demo) = Demo::load(0, None) else { return };
    let mut greedy = vec![];
    for seed in [None, Some(5)] {
        demo.driver.engine().forget();
        let with_seed = |mut request: Request| {
            request.sampling.seed = seed.unwrap_or(0);
            request.sampling.temperature = if seed.is_some() { HOT } else { 0.0 };
            request
        };
        let mut messages =
            vec![Message::new(Role::System, "You are a helpful assistant."), user("12 + 30 = ?")];
        let first = with_seed(demo.request(&messages));
        let reply = demo.reply(&first);
        messages.push(Message::new(Role::Assistant, demo.text(&reply)));
        messages.push(user("What is 47 + 38?"));
        let second = with_seed(demo.request(&messages));
        let warm = demo.reply(&second);
        // What was decoded is computed again, in chunks; what was prefilled up to the last turn is not.
        let (usage, first_len) = (warm.usage, first.prompt.len());
        assert!(usage.reuse.reused * 2 > first_len && !usage.reuse.provisional, "{usage:?}");
        // And once more: all but the opening of the reply is there.
        let again = demo.reply(&second);
        assert!(again.usage.reuse.reused > usage.reuse.reused, "{:?}", again.usage);
        let cold = demo.cold(&second);
        assert_eq!((&warm.ids, &again.ids), (&cold.ids, &cold.ids), "seed {seed:?}");
        if seed.is_none() {
            assert!(demo.text(&reply).contains("42"), "{}", demo.text(&reply));
            assert!(demo.text(&warm).contains("85"), "{}", demo.text(&warm));
            greedy.clone_from(&reply.ids);
        } else {
            assert_ne!(reply.ids, greedy, "the draw had no effect");
        }
    }
}

#[test]
fn a_saved_prefix_is_read_back() {
    let disk = tempfile::tempdir().expect("a folder");
    // The draft layer's part of the state goes with it.
    let Some(mut demo) = Demo::load(2, Some(disk.path())) else { return };
    let system = format!("{}Be brief.", "You are a helpful assistant. ".repeat(14));
    let messages = |question| [Message::new(Role::System, &*system), user(question)];
    let request = demo.request(&messages("12 + 30 = ?"));
    let before = demo.reply(&request);
    assert!(demo.text(&before).contains("42"), "{}", demo.text(&before));
    demo.driver.save_all();
    drop(demo);

    let mut demo = Demo::load(2, Some(disk.path())).expect("as before");
    let again = demo.reply(&request);
    let reuse = again.usage.reuse;
    // More than a page.
    assert!(reuse.from == Some(Level::Disk) && reuse.reused > 64, "{reuse:?}");
    assert_eq!(again.ids, before.ids);
    let other = demo.request(&messages("What is 47 + 38?"));
    let warm = demo.reply(&other);
    assert!(warm.usage.reuse.reused > 64, "{:?}", warm.usage);
    assert_eq!(warm.ids, demo.cold(&other).ids);
}

/// A greedy and a drawn reply to each of three system parts, none of which is known.
fn strangers(demo: &Demo) -> Vec<Request> {
    let request = |(name, seed): (&str, u64)| {
        let system = format!("{name}. {}", "You are a helpful assistant. ".repeat(14));
        let mut request =
            demo.request(&[Message::new(Role::System, &*system), user("What is 47 + 38?")]);
        request.sampling.temperature = if seed > 0 { HOT } else { 0.0 };
        request.sampling.seed = seed;
        request
    };
    [("Ada", 0), ("Bob", 5), ("Cleo", 0)].map(request).into()
}

#[test]
fn what_gave_way_comes_back_from_host_memory_until_that_is_short() {
    // The draft layer's part of the state goes with it.
    let Some(mut demo) = Demo::with_levels(2, None, 1 << 30, None) else { return };
    let requests = strangers(&demo);
    let cold: Vec<Reply> = requests.iter().map(|request| demo.reply(request)).collect();
    assert!(cold.iter().all(|reply| reply.usage.reuse.reused <= 1), "{cold:?}");
    let saved = demo.driver.saved();
    assert!(saved.host_prefixes >= 2 && saved.files == 0, "{saved:?}");
    let same = |demo: &mut Demo, from: Option<Level>| {
        for (request, cold) in requests.iter().zip(&cold).take(2) {
            let warm = demo.reply(request);
            let reuse = warm.usage.reuse;
            assert_eq!((&warm.ids, warm.reason, reuse.from), (&cold.ids, cold.reason, from));
            // More than a page.
            assert_eq!(from.is_some(), reuse.reused > 64, "{reuse:?}");
        }
    };
    same(&mut demo, Some(Level::Host));
    assert!(demo.driver.view().counts().host_tokens > 128);

    // What the device itself keeps would free nothing.
    let (saved, kept) = (demo.driver.saved(), demo.driver.view().occupancy().snapshots);
    demo.driver.pressure().raise(PressureLevel::Warning);
    assert_eq!(demo.driver.turn(true), Turn::Idle);
    let left = demo.driver.saved();
    assert!(0 < left.host_bytes && left.host_bytes <= saved.host_bytes / 2, "{saved:?} {left:?}");
    demo.driver.pressure().raise(PressureLevel::Critical);
    assert_eq!(demo.driver.turn(true), Turn::Idle);
    assert_eq!(demo.driver.saved(), SavedUse::default());
    assert_eq!(demo.driver.view().occupancy().snapshots, kept);
    assert_eq!(demo.driver.view().counts().gave_way, 2);
    // The rest of the device's snapshots has given way to a stranger, and host memory is short again.
    demo.reply(&requests[2]);
    demo.driver.forget_memory();
    same(&mut demo, None);
}

#[test]
fn what_host_memory_has_no_room_for_comes_back_from_disk() {
    let Some(mut roomy) = Demo::with_levels(0, None, 1 << 30, None) else { return };
    let requests = strangers(&roomy);
    let cold: Vec<Reply> = requests.iter().map(|request| roomy.reply(request)).collect();
    let SavedUse { host_prefixes, host_bytes, .. } = roomy.driver.saved();
    drop(roomy);

    let disk = tempfile::tempdir().expect("a folder");
    let room = 2 * host_bytes / host_prefixes as u64;
    let mut demo = Demo::with_levels(0, None, room, Some(disk.path())).expect("as before");
    // Twice, so that all of what is worth it is saved; then the oldest again.
    let mut from = vec![];
    for (request, cold) in requests.iter().zip(&cold).cycle().take(7) {
        let warm = demo.reply(request);
        assert_eq!((&warm.ids, warm.reason), (&cold.ids, cold.reason));
        from.push(warm.usage.reuse.from);
        let saved = demo.driver.saved();
        assert!(saved.host_bytes <= room, "{saved:?}");
    }
    assert!(from[3..].contains(&Some(Level::Disk)), "{from:?}");
    let saved = demo.driver.saved();
    assert!(saved.files > saved.host_prefixes && saved.host_prefixes > 0, "{saved:?}");
    // Given up, nothing is lost: all of it was written meanwhile.
    demo.driver.pressure().raise(PressureLevel::Critical);
    let again = demo.reply(&requests[1]);
    assert_eq!((&again.ids, again.usage.reuse.from), (&cold[1].ids, Some(Level::Disk)));
    assert!(demo.driver.saved().files >= saved.files);
}

#[test]
fn drafts_change_no_reply() {
    let Some(mut plain) = Demo::load(0, None) else { return };
    let requests = requests(&plain);
    let expected = plain.run(&requests, None);
    drop(plain);
    let mut drafting = Demo::load(2, None).expect("as before");
    let replies = drafting.run(&requests, None);
    for (i, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
        assert_eq!((&reply.ids, reply.reason), (&expected.ids, expected.reason), "request {i}");
    }
    let counts = drafting.driver.view().counts();
    println!("{} of {} drafts were kept", counts.accepted_tokens, counts.drafted_tokens);
    assert!(counts.accepted_tokens >= 3, "{counts:?}");
}

#[test]
fn tokens_that_the_device_chooses_are_those_of_the_host() {
    let Some(mut plain) = Demo::load(0, None) else { return };
    let mut requests = requests(&plain);
    // Without it a draw is the host's.
    requests[1].sampling.top_k = 40;
    let expected: Vec<Reply> = requests.iter().map(|request| plain.cold(request)).collect();
    assert!(expected.iter().all(|reply| reply.tokens_together == 1), "{expected:?}");
    let stops = expected.iter().filter(|reply| reply.reason == Some(FinishReason::Stop)).count();
    assert!(stops >= 2, "{expected:?}");

    let mut demo = Demo::with_levels(0, Some(f64::INFINITY), 0, None).expect("as before");
    let mut replies: Vec<Reply> = requests.iter().map(|request| demo.cold(request)).collect();
    let most = replies.iter().map(|reply| reply.tokens_together).max();
    // A first token, two steps that are measured, and the rest at once.
    assert!(most >= Some(5), "{replies:?}");
    demo.driver.engine().forget();
    replies.extend(demo.run(&requests, None));
    for (i, (reply, expected)) in replies.iter().zip(expected.iter().cycle()).enumerate() {
        assert_eq!((&reply.ids, reply.reason), (&expected.ids, expected.reason), "reply {i}");
        assert_eq!(reply.usage.completion_tokens, expected.ids.len());
    }
}
