//! One simulated world: an engine, a toy device, toy files, and callers who do what they like.

use crate::cold::{Cold, cold_run};
use crate::files::Files;
use crate::random::Random;
use crate::requests::{compile, request};
use crate::toy::{Fault, LIMITS, MARKERS, Toy, VOCAB};
use calla_engine::step::{Arithmetic, Effect, Run, Step, StepFailure};
use calla_engine::{CutRule, Engine, EngineConfig, Failure, FinishReason, Grammar};
use calla_engine::{MultiStepConfig, Output, Share};
use calla_engine::{Request, RequestId, Speculation, SubmitError, TokenLogprobs, Usage};
use calla_ops::{CacheSize, MultiStepLimits, SpanKind};
use std::collections::HashMap;

pub(crate) struct World {
    random: Random,
    config: EngineConfig,
    engine: Engine,
    toy: Toy,
    files: Files,
    /// Grammars that are being compiled.
    compiling: Vec<(RequestId, Grammar)>,
    /// Conversations that later requests extend, edit and branch from.
    histories: Vec<Vec<u32>>,
    live: HashMap<RequestId, Live>,
    /// Requests of eight that are held to nothing.
    free_of_eight: usize,
    /// Steps of the multi-step decode that was just run.
    multi_step: Option<usize>,
    tallies: Tallies,
}

/// A request that has not ended.
struct Live {
    request: Request,
    reply: Vec<u32>,
    logprobs: Vec<Option<TokenLogprobs>>,
    cancelled: bool,
}

macro_rules! tallies {
    ($($name:ident),*) => {
        /// How often what happened.
        #[derive(Default)]
        pub(crate) struct Tallies { $(pub(crate) $name: u64),* }

        impl Tallies {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

tallies!(
    steps,
    multi_steps,
    multi_step_tokens,
    multi_steps_while_others_wait,
    stopped_inside,
    cancelled_inside,
    failed_inside,
    resized,
    finished,
    reused_tokens,
    loaded_tokens,
    accepted_drafts,
    structured,
    grammar_errors,
    device_failures,
    file_errors,
    cancelled,
    refused,
    restarts,
    provisional,
    evictions,
    given_back
);

fn config(random: &mut Random) -> EngineConfig {
    let arithmetic = if random.one_in(2) { Arithmetic::Uniform } else { Arithmetic::Split };
    let running_max = 1 + random.below(4);
    let context = 128 + 64 * random.below(6);
    let checkpoint_slots = random.below(2 * running_max + 1);
    EngineConfig {
        cache: CacheSize {
            pages: context.div_ceil(64) + random.below(30),
            slots: running_max + checkpoint_slots + random.below(8),
        },
        vocab_size: VOCAB,
        context,
        running_max,
        queue_max: 1 + random.below(6),
        slice_rows: [1, 16, 64, 100, 256][random.below(5)],
        slice_seconds: [None, Some(0.2), Some(0.8)][random.below(3)],
        rule: CutRule::new(MARKERS.to_vec()),
        arithmetic,
        fast_cache: random.one_in(2),
        snapshot_interval: [64, 128, 1024][random.below(3)],
        remembered_tokens_max: [200, 5000][random.below(2)],
        speculation: [Speculation::Off, Speculation::Fixed(2), Speculation::Adaptive(3)]
            [random.below(3)],
        checkpoint_slots,
        multi_step: multi_step(random),
        file_tokens_min: [None, Some(1), Some(64)][random.below(3)],
    }
}

/// Steps without the host in two worlds of three.
fn multi_step(random: &mut Random) -> Option<MultiStepConfig> {
    let limits = MultiStepLimits { steps_max: 2 + random.below(15), ..LIMITS };
    let seconds_max = [0.05, f64::INFINITY][random.below(2)];
    (random.below(3) > 0).then_some(MultiStepConfig { limits, seconds_max })
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random { seed, count: 0 };
        let config = config(&mut random);
        let free_of_eight = [2, 4, 8][random.below(3)];
        Self {
            toy: Toy::new(config.cache, config.arithmetic),
            engine: Engine::new(config.clone()),
            files: Files::default(),
            compiling: vec![],
            random,
            config,
            histories: vec![],
            live: HashMap::new(),
            free_of_eight,
            multi_step: None,
            tallies: Tallies::default(),
        }
    }

    pub(crate) fn run(mut self, arrivals: usize) -> Tallies {
        let mut left = arrivals;
        let mut idle = 0;
        while left > 0 || !self.live.is_empty() {
            if left > 0 && self.random.one_in(3) {
                self.arrive();
                left -= 1;
            }
            if self.random.one_in(40) {
                self.cancel();
            }
            match self.random.below(400) {
                0 => self.give_way(Share::All),
                1 => self.engine.forget(),
                2 => self.engine.save_all(),
                3 => self.give_way(Share::Half),
                _ => {}
            }
            if self.live.is_empty() && self.random.one_in(20) {
                self.restart();
            }
            let progressed = self.step();
            self.take_effects();
            let waits = !self.compiling.is_empty() || self.files.is_busy();
            self.around();
            self.drain();
            idle = if progressed || left > 0 || waits { 0 } else { idle + 1 };
            assert!(idle < 3, "requests wait but the engine has nothing to run");
        }
        self.settle();
        let counts = self.engine.counts();
        self.tallies.evictions += counts.evictions;
        self.tallies.loaded_tokens += counts.loaded_tokens;
        self.tallies.accepted_drafts += counts.accepted_tokens;
        self.tallies.file_errors += self.files.errors as u64;
        self.tallies.given_back += self.toy.given_back;
        self.tallies
    }

    /// Everything that is under way ends; nothing may be left.
    fn settle(&mut self) {
        self.engine.forget();
        while self.step() || self.files.is_busy() {
            self.around();
        }
        self.take_effects();
        let occupancy = self.engine.occupancy();
        assert_eq!((occupancy.pages_used, occupancy.slots_used, occupancy.snapshots), (0, 0, 0));
        assert_eq!((self.engine.running(), self.engine.waiting()), (0, 0));
        assert!(self.toy.loaded.is_empty(), "state was read from a file for nobody");
    }

    /// The program ends, in order or not, and starts again on the same files.
    fn restart(&mut self) {
        self.tallies.restarts += 1;
        if self.random.one_in(2) {
            self.engine.save_all();
            while self.step() || self.files.is_busy() {
                self.around();
            }
        }
        self.files.interrupt();
        self.compiling.clear();
        self.tallies.given_back += self.toy.given_back;
        self.toy = Toy::new(self.config.cache, self.config.arithmetic);
        let counts = self.engine.counts();
        self.tallies.loaded_tokens += counts.loaded_tokens;
        self.tallies.accepted_drafts += counts.accepted_tokens;
        self.tallies.evictions += counts.evictions;
        self.engine = Engine::new(self.config.clone());
        self.files.announce(&mut self.engine);
    }

    /// A request on a new, an extended, an edited or a branched conversation.
    fn arrive(&mut self) {
        let mut prompt = match self.random.below(4) {
            _ if self.histories.is_empty() => vec![],
            0 => vec![],
            1 => {
                // An edit: cut somewhere and go on differently.
                let mut history = self.pick_history();
                history.truncate(self.random.below(history.len()).max(1));
                history
            }
            _ => self.pick_history(),
        };
        for _ in 0..1 + self.random.below(3) {
            prompt.push(MARKERS[self.random.below(2)]);
            for _ in 0..self.random.below(90) {
                prompt.push(3 + self.random.below(VOCAB - 3) as u32);
            }
        }
        let request = request(&mut self.random, prompt, self.free_of_eight);
        match self.engine.submit(request.clone()) {
            Ok(id) => {
                let (reply, logprobs) = (vec![], vec![]);
                let live = Live { request, reply, logprobs, cancelled: false };
                self.live.insert(id, live);
            }
            Err(SubmitError::ContextLength { .. } | SubmitError::QueueFull { .. }) => {
                self.tallies.refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn give_way(&mut self, share: Share) {
        let before = self.engine.occupancy();
        let given_up = self.engine.give_way(share);
        let left = match share {
            Share::Half => before.snapshots / 2,
            Share::All => 0,
        };
        assert_eq!((self.engine.occupancy().snapshots, given_up), (left, before.snapshots - left));
    }

    fn pick_history(&mut self) -> Vec<u32> {
        let i = self.random.below(self.histories.len());
        self.histories[i].clone()
    }

    fn cancel(&mut self) {
        let mut ids: Vec<RequestId> = self.live.keys().copied().collect();
        ids.sort_unstable();
        if !ids.is_empty() {
            let id = ids[self.random.below(ids.len())];
            self.live.get_mut(&id).unwrap().cancelled = true;
            self.engine.cancel(id);
        }
    }

    fn step(&mut self) -> bool {
        self.multi_step = None;
        let Some(step) = self.engine.next_step() else { return false };
        self.tallies.steps += 1;
        self.tally_multi_step(&step);
        let fault = match self.random.below(600) {
            0..4 => Fault::Run,
            4 => Fault::State,
            5..8 => Fault::Noise,
            // Rarer than others, so that theirs show.
            8..30 if self.multi_step.is_some() => [Fault::Run, Fault::Noise][self.random.below(2)],
            _ => Fault::None,
        };
        let jobs = if self.random.one_in(2) { self.engine.mask_jobs() } else { vec![] };
        // The world does not wait while the step is on the device.
        if self.random.one_in(if self.multi_step.is_some() { 8 } else { 30 }) {
            self.cancel();
            self.tallies.cancelled_inside += u64::from(self.multi_step.is_some());
        }
        if self.random.one_in(4) {
            self.around();
        }
        let result = self.toy.run(&step, fault);
        if matches!(result, Err(StepFailure::State(_))) {
            for op in &step.state {
                if let calla_engine::step::StateOp::Save(save) = op {
                    self.engine.saved(save.ticket, None);
                }
            }
        }
        self.files.collect(&mut self.toy);
        let run = |mut job: calla_engine::engine::MaskJob| {
            job.run();
            job
        };
        self.engine.return_masks(jobs.into_iter().map(run).collect());
        let occupancy = self.engine.occupancy();
        assert!(occupancy.slots_used <= occupancy.slots);
        let seconds = self.seconds(&step);
        let slice_rows = self.engine.slice_rows();
        self.engine.complete(result, Some(seconds));
        self.tallies.resized += u64::from(self.engine.slice_rows() != slice_rows);
        true
    }

    fn tally_multi_step(&mut self, step: &Step) {
        let Run::MultiStep(run) = &step.run else { return };
        self.multi_step = Some(run.steps);
        let limits = self.config.multi_step.expect("it is on").limits;
        assert!((1..=limits.steps_max).contains(&run.steps), "{} steps", run.steps);
        assert_eq!(run.batch.rows(), self.engine.running(), "all that run decode");
        self.tallies.multi_steps += 1;
        self.tallies.multi_step_tokens += (run.steps * run.batch.rows()) as u64;
        self.tallies.multi_steps_while_others_wait += u64::from(self.engine.waiting() > 0);
    }

    /// What a step takes: much with rows of a prompt, little without.
    fn seconds(&mut self, step: &Step) -> f64 {
        let noise = self.random.below(100) as f64 / 100.0;
        match &step.run {
            Run::MultiStep(run) => 0.02 * (0.1 + noise) * run.steps as f64,
            Run::Batch(batch) if batch.spans().iter().all(|s| s.kind == SpanKind::Decode) => {
                0.02 * (0.1 + noise)
            }
            _ => 0.1 + noise,
        }
    }

    /// Effects are taken, and some of them done.
    fn around(&mut self) {
        self.take_effects();
        if !self.compiling.is_empty() && self.random.one_in(3) {
            let i = self.random.below(self.compiling.len());
            let (id, grammar) = self.compiling.swap_remove(i);
            self.engine.compiled(id, compile(&grammar));
        }
        self.files.work(&mut self.random, &mut self.engine, &mut self.toy);
    }

    fn take_effects(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Compile { id, grammar } => self.compiling.push((id, grammar)),
            Effect::Load { ticket, file, first_page } => self.files.load(ticket, file, first_page),
            Effect::Remove { file } => self.files.remove(file),
        }
    }

    fn drain(&mut self) {
        let mut tokens: HashMap<RequestId, usize> = HashMap::new();
        while let Some(output) = self.engine.poll() {
            match output {
                Output::Prefill { id, done, total } => {
                    assert!(done <= total && self.live.contains_key(&id));
                }
                Output::Token { id, token, logprobs } => {
                    let live = self.live.get_mut(&id).expect("a live request");
                    assert!(!live.request.banned_ids.contains(&token), "{token} is banned");
                    live.reply.push(token);
                    *tokens.entry(id).or_default() += 1;
                    live.logprobs.push(logprobs);
                }
                Output::Finished { id, reason, usage } => {
                    // The stop token comes with a step too.
                    let steps = 1 + tokens.get(&id).copied().unwrap_or(0);
                    let is_inside = self.multi_step.is_some_and(|all| steps < all);
                    let is_stop = reason == FinishReason::Stop;
                    self.tallies.stopped_inside += u64::from(is_inside && is_stop);
                    self.finished(id, reason, usage);
                }
                Output::Failed { id, failure } => self.failed(id, &failure),
            }
        }
    }

    fn failed(&mut self, id: RequestId, failure: &Failure) {
        let live = self.live.remove(&id).expect("a live request");
        let is_of_device = matches!(failure, Failure::Device(_));
        self.tallies.device_failures += u64::from(is_of_device);
        self.tallies.failed_inside += u64::from(is_of_device && self.multi_step.is_some());
        self.tallies.grammar_errors += u64::from(!is_of_device);
        // A failure does not say whether a provisional state had a part in it.
        let may_differ = self.config.fast_cache && self.config.arithmetic == Arithmetic::Split;
        if may_differ && !matches!(failure, Failure::Grammar(_)) {
            return;
        }
        let Cold { reply, end, .. } = cold_run(&live.request, self.config.arithmetic);
        if is_of_device {
            assert!(reply.starts_with(&live.reply), "{:?} {reply:?}", live.reply);
        } else {
            assert_eq!(end.as_ref(), Err(failure));
            assert!(matches!(failure, Failure::Grammar(_)) || live.reply == reply);
        }
    }

    fn finished(&mut self, id: RequestId, reason: FinishReason, usage: Usage) {
        let live = self.live.remove(&id).expect("a live request");
        assert_eq!(usage.completion_tokens, live.reply.len());
        assert_eq!(usage.prompt_tokens, live.request.prompt.len());
        assert!(usage.reuse.reused < live.request.prompt.len());
        assert!(usage.reuse.reused <= usage.reuse.common);
        assert_eq!(reason == FinishReason::Cancelled, live.cancelled);
        if reason == FinishReason::Stop && live.request.grammar.is_none() {
            let Request { min_tokens, ignore_eos, .. } = live.request;
            assert!(live.reply.len() >= min_tokens && !ignore_eos, "{usage:?}");
        }
        self.tallies.reused_tokens += usage.reuse.reused as u64;
        self.tallies.structured += u64::from(live.request.grammar.is_some());
        if usage.reuse.provisional {
            // What was reused may differ from a cold run, and says so.
            assert!(self.config.fast_cache && self.config.arithmetic == Arithmetic::Split);
            self.tallies.provisional += 1;
        } else {
            self.compare(&live, reason, usage);
        }
        let mut history = live.request.prompt;
        history.extend(live.reply);
        self.histories.push(history);
    }

    /// The reply of this world is that of a world without history.
    fn compare(&mut self, live: &Live, reason: FinishReason, usage: Usage) {
        let cold = cold_run(&live.request, self.config.arithmetic);
        let same_so_far =
            cold.reply.starts_with(&live.reply) && cold.logprobs.starts_with(&live.logprobs);
        assert!(same_so_far, "{reason:?} {usage:?} {:?} {:?}", live.reply, cold.reply);
        match reason {
            FinishReason::Cancelled => self.tallies.cancelled += 1,
            // The cold world has a larger context.
            FinishReason::ContextFull => {
                assert!(live.request.prompt.len() + live.reply.len() > self.config.context);
            }
            _ => {
                self.tallies.finished += 1;
                assert_eq!(live.reply, cold.reply, "warm and cold replies differ: {usage:?}");
                assert_eq!(Ok(reason), cold.end);
            }
        }
    }
}
