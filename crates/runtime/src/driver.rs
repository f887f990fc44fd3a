//! The loop around an engine: it runs steps on the device and does what else the engine asks for on threads.
//!
//! Whoever owns a [`Driver`] submits requests to its engine, calls [`Driver::turn`] until nothing is left to
//! do, and reads what happened from [`Engine::poll`].

use crate::device::{Device, SaveSink};
use crate::files::{FileReply, Listed};
use crate::grammars::{Compile, Grammars};
use crate::pressure::{Pressure, PressureLevel, Watch};
use crate::saves::{CacheLevels, News, SavedUse, Saves};
use crate::setup::store_sizes;
use calla_engine::engine::MaskJob;
use calla_engine::step::{Effect, Outcome, Save, Step, StepFailure};
use calla_engine::{Engine, EngineConfig, Matcher, RequestId, Share, Speculation};
use calla_ops::Runner;
use calla_store::Held;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// Called by the threads when they have something for the driver: for an owner that waits for more than the
/// driver, and so calls [`Driver::turn`] without waiting in it.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What threads tell the driver.
pub(crate) enum Event {
    /// A grammar is compiled, or cannot be.
    Compiled { id: RequestId, result: Result<Box<dyn Matcher>, String> },
    /// Something about files.
    File(FileReply),
}

/// What the threads send events by.
#[derive(Clone)]
pub(crate) struct Events {
    sender: Sender<Event>,
    notify: Notify,
}

impl Events {
    pub(crate) fn new(sender: Sender<Event>, notify: Notify) -> Self {
        Self { sender, notify }
    }

    /// Sends an event; false if the driver is gone.
    pub(crate) fn send(&self, event: Event) -> bool {
        let is_sent = self.sender.send(event).is_ok();
        (self.notify)();
        is_sent
    }
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A step was run.
    Step,
    /// No step could be run; something else may have happened.
    NoStep,
    /// Nothing is left to do.
    Idle,
}

/// An engine with its device and its threads.
pub struct Driver {
    engine: Engine,
    device: Device,
    grammars: Grammars,
    saves: Saves,
    events: Receiver<Event>,
    /// Grammars being compiled.
    compiling: HashSet<RequestId>,
    pressure: Pressure,
    /// What watches the system's memory.
    watch: Option<Watch>,
}

/// A thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("a thread for {what} could not be started: {source}")]
pub struct ThreadError {
    what: &'static str,
    source: std::io::Error,
}

impl Driver {
    /// Puts an engine on a device. `compile` compiles grammars; `levels` keep saved prefixes, and what files
    /// have from earlier is known to the engine from the start. Without a draft layer there is no
    /// speculation, whatever `config` says; where a device can hand back its memory, that is host memory already, and
    /// there is no such level behind it.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(
        runner: Box<dyn Runner>,
        config: EngineConfig,
        compile: Compile,
        levels: CacheLevels,
    ) -> Result<Self, ThreadError> {
        Self::with_notify(runner, config, compile, levels, Arc::new(|| {}))
    }

    /// The same; `notify` is called whenever a turn may have something to do that it had not before.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn with_notify(
        runner: Box<dyn Runner>,
        mut config: EngineConfig,
        compile: Compile,
        mut levels: CacheLevels,
        notify: Notify,
    ) -> Result<Self, ThreadError> {
        let (sender, events) = channel();
        let pressure = Pressure::new(notify.clone());
        let sender = Events::new(sender, notify);
        let sizes = store_sizes(runner.as_ref());
        let device = Device::new(runner);
        if !device.can_draft() {
            config.speculation = Speculation::Off;
            config.checkpoint_slots = 0;
        }
        if device.can_give_back() {
            levels.host_bytes = 0;
        }
        let grammars = Grammars::start(compile, sender.clone())
            .map_err(|source| ThreadError { what: "grammars", source })?;
        let (saves, listed) = Saves::open(levels, sizes, sender)
            .map_err(|source| ThreadError { what: "the disk cache", source })?;
        if !saves.is_on() {
            config.file_tokens_min = None;
        }
        let mut engine = Engine::new(config);
        for Listed { file, key, tokens } in &listed {
            engine.add_file(*file, key, tokens);
        }
        let compiling = HashSet::new();
        Ok(Self { engine, device, grammars, saves, events, compiling, pressure, watch: None })
    }

    /// The engine, to submit to and to read from.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The engine, to look at.
    #[must_use]
    pub fn view(&self) -> &Engine {
        &self.engine
    }

    /// Where to tell of memory pressure. The next turn acts on it.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        self.pressure.clone()
    }

    /// What is saved besides the device's memory.
    #[must_use]
    pub fn saved(&self) -> SavedUse {
        self.saves.in_use()
    }

    /// Has the system's memory watched from now on, so that cached prefixes give way when it is short. Does nothing where
    /// that would hand no memory back: they would be given up for nothing.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn watch_memory(&mut self) -> Result<(), ThreadError> {
        if self.device.can_give_back() || self.saves.has_host() {
            self.watch = Watch::start(self.pressure.clone())
                .map_err(|source| ThreadError { what: "memory pressure", source })?;
        }
        Ok(())
    }

    fn relieve(&mut self) {
        let Some(level) = self.pressure.take() else { return };
        if self.device.can_give_back() {
            let before = self.engine.occupancy().snapshots;
            let given_up = self.engine.give_way(match level {
                PressureLevel::Warning => Share::Half,
                PressureLevel::Critical => Share::All,
            });
            tracing::info!("memory is short: {given_up} of {before} cached prefixes are given up");
        } else if self.saves.has_host() {
            let before = self.saves.in_use();
            let given_up = self.saves.give_way(level);
            self.engine.host_gave_way();
            let megabytes = (before.host_bytes - self.saves.in_use().host_bytes) / 1_000_000;
            tracing::info!(
                "memory is short: {given_up} of {} prefixes in host memory are given up, {megabytes} MB",
                before.host_prefixes
            );
            self.tell_engine();
        }
    }

    /// Does what can be done now: effects and their results, then one step. If no step can be run but
    /// something is under way, waits for it, unless `wait` is false.
    pub fn turn(&mut self, wait: bool) -> Turn {
        self.relieve();
        self.start_effects();
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        // What is admitted may have to be read first: at once, from host memory, or by the thread of the files.
        self.start_effects();
        let mut step = self.engine.next_step();
        while step.is_none() && self.start_effects() {
            step = self.engine.next_step();
        }
        if let Some(step) = step {
            self.run(&step);
            self.start_effects();
            return Turn::Step;
        }
        if !self.is_waiting() {
            return Turn::Idle;
        }
        if wait && let Ok(event) = self.events.recv() {
            self.take(event);
        }
        Turn::NoStep
    }

    /// Saves what is worth a file and waits until it is written: before the program ends.
    pub fn save_all(&mut self) {
        if self.saves.has_files() {
            self.engine.save_all();
        }
        while self.turn(true) != Turn::Idle {}
    }

    /// Has what is worth a file read out now and written meanwhile.
    pub fn save_meanwhile(&mut self) {
        if self.saves.has_files() {
            self.engine.save_all();
        }
        while self.turn(false) == Turn::Step {}
    }

    /// Forgets all cached prefixes in memory, the device's and the host's; those in files stay.
    pub fn forget_memory(&mut self) {
        self.engine.forget_memory();
        self.saves.give_way(PressureLevel::Critical);
        self.tell_engine();
    }

    /// Whether something is under way that will bring an event.
    fn is_waiting(&self) -> bool {
        !self.compiling.is_empty() || self.saves.is_busy()
    }

    /// Does or begins what the engine wants done besides steps. Whether there was anything.
    fn start_effects(&mut self) -> bool {
        let mut any = false;
        while let Some(effect) = self.engine.next_effect() {
            any = true;
            match effect {
                Effect::Compile { id, grammar } => {
                    self.compiling.insert(id);
                    self.grammars.compile(id, grammar);
                }
                Effect::Load { ticket, file, first_page } => {
                    self.saves.load(ticket, file, first_page);
                    self.tell_engine();
                }
                Effect::Remove { file } => self.saves.remove(file),
            }
        }
        any
    }

    /// Tells the engine what has become of what is saved.
    fn tell_engine(&mut self) {
        while let Some(news) = self.saves.news() {
            match news {
                News::Saved(ticket, file) => self.engine.saved(ticket, file),
                News::Gone(file) => self.engine.file_removed(file),
                News::Loaded(ticket, read) => {
                    let level = read.as_ref().map(|(level, _)| *level);
                    let is_held = self.engine.loaded(ticket, level);
                    if let (true, Some((_, state))) = (is_held, read) {
                        self.device.hold(ticket, state);
                    }
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Compiled { id, result } => {
                self.compiling.remove(&id);
                self.engine.compiled(id, result);
            }
            Event::File(reply) => {
                self.saves.answered(reply);
                self.tell_engine();
            }
        }
    }

    fn run(&mut self, step: &Step) {
        let start = Instant::now();
        let mut sink = Sink(&mut self.saves);
        let mut jobs = self.engine.mask_jobs();
        let device = &mut self.device;
        let result: Result<Outcome, StepFailure> = if jobs.is_empty() {
            device.run(step, &mut sink)
        } else {
            // The masks are computed while the device runs.
            std::thread::scope(|scope| {
                scope.spawn(|| jobs.iter_mut().for_each(MaskJob::run));
                device.run(step, &mut sink)
            })
        };
        self.engine.return_masks(jobs);
        self.tell_engine();
        if let Err(failure) = &result {
            tracing::error!("{failure}");
        }
        let seconds = start.elapsed().as_secs_f64();
        self.engine.complete(result, (!self.device.has_prepared()).then_some(seconds));
    }
}

/// Hands over state that was read out, to be saved.
struct Sink<'a>(&'a mut Saves);

impl SaveSink for Sink<'_> {
    fn first_page(&mut self, save: &Save) -> Option<usize> {
        let first = self.0.first_page(save);
        if first.is_none() {
            self.0.lost(save.ticket);
        }
        first
    }

    fn take(&mut self, save: &Save, first_page: usize, state: Held) {
        self.0.take(save, first_page, state);
    }

    fn commit(&mut self) {
        self.0.commit();
    }

    fn roll_back(&mut self) {
        self.0.roll_back();
    }

    fn lost(&mut self, save: &Save) {
        self.0.lost(save.ticket);
    }
}
