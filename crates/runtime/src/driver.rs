//! The loop around an engine: it runs steps on the device and does what else the engine asks for on threads.
//!
//! Whoever owns a [`Driver`] submits requests to its engine, calls [`Driver::turn`] until nothing is left to
//! do, and reads what happened from [`Engine::poll`].

use crate::device::{Device, SaveSink, StateBytes};
use crate::files::{self, FileJob, FileReply, Files};
use crate::grammars::{Compile, Grammars};
use crate::pressure::{Pressure, PressureLevel, Watch};
use calla_engine::engine::MaskJob;
use calla_engine::step::{Effect, Outcome, Save, Step, StepFailure, Ticket};
use calla_engine::{Engine, EngineConfig, Matcher, RequestId, Share, Speculation};
use calla_ops::Runner;
use calla_store::Store;
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
    files: Option<Files>,
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
    /// Puts an engine on a device. `compile` compiles grammars; `store` keeps saved prefixes, and what it
    /// holds from earlier is known to the engine from the start. Without a draft layer there is no
    /// speculation, whatever `config` says.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(
        runner: Box<dyn Runner>,
        config: EngineConfig,
        compile: Compile,
        store: Option<Store>,
    ) -> Result<Self, ThreadError> {
        Self::with_notify(runner, config, compile, store, Arc::new(|| {}))
    }

    /// The same; `notify` is called whenever a turn may have something to do that it had not before.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn with_notify(
        runner: Box<dyn Runner>,
        mut config: EngineConfig,
        compile: Compile,
        store: Option<Store>,
        notify: Notify,
    ) -> Result<Self, ThreadError> {
        let (sender, events) = channel();
        let pressure = Pressure::new(notify.clone());
        let sender = Events { sender, notify };
        let device = Device::new(runner);
        if !device.can_draft() {
            config.speculation = Speculation::Off;
            config.checkpoint_slots = 0;
        }
        if store.is_none() {
            config.file_tokens_min = None;
        }
        let mut engine = Engine::new(config);
        let grammars = Grammars::start(compile, sender.clone())
            .map_err(|source| ThreadError { what: "grammars", source })?;
        let files = match store {
            Some(store) => {
                let listed = files::listed(&store);
                for (file, key, tokens) in &listed {
                    engine.add_file(*file, key, tokens);
                }
                let files = Files::start(store, listed, sender)
                    .map_err(|source| ThreadError { what: "the disk cache", source })?;
                Some(files)
            }
            None => None,
        };
        let compiling = HashSet::new();
        Ok(Self { engine, device, grammars, files, events, compiling, pressure, watch: None })
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

    /// Has the system's memory watched from now on, so that snapshots give way when it is short. Does nothing where the
    /// device would not hand their memory back: they would be given up for nothing.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn watch_memory(&mut self) -> Result<(), ThreadError> {
        if self.device.can_give_back() {
            self.watch = Watch::start(self.pressure.clone())
                .map_err(|source| ThreadError { what: "memory pressure", source })?;
        }
        Ok(())
    }

    fn relieve(&mut self) {
        let Some(level) = self.pressure.take() else { return };
        let before = self.engine.occupancy().snapshots;
        let given_up = self.engine.give_way(match level {
            PressureLevel::Warning => Share::Half,
            PressureLevel::Critical => Share::All,
        });
        tracing::info!("memory is short: {given_up} of {before} cached prefixes are given up");
    }

    /// Does what can be done now: effects and their results, then one step. If no step can be run but
    /// something is under way, waits for it, unless `wait` is false.
    pub fn turn(&mut self, wait: bool) -> Turn {
        self.relieve();
        self.start_effects();
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        self.start_effects();
        if let Some(step) = self.engine.next_step() {
            self.run(&step);
            self.start_effects();
            return Turn::Step;
        }
        // What was just admitted may have to be read from a file first.
        self.start_effects();
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
        self.engine.save_all();
        while self.turn(true) != Turn::Idle {}
    }

    /// Has what is worth a file read out now and written meanwhile.
    pub fn save_meanwhile(&mut self) {
        self.engine.save_all();
        while self.turn(false) == Turn::Step {}
    }

    /// Whether something is under way that will bring an event.
    fn is_waiting(&self) -> bool {
        !self.compiling.is_empty() || self.files.as_ref().is_some_and(Files::is_busy)
    }

    fn start_effects(&mut self) {
        while let Some(effect) = self.engine.next_effect() {
            match effect {
                Effect::Compile { id, grammar } => {
                    self.compiling.insert(id);
                    self.grammars.compile(id, grammar);
                }
                Effect::Load { ticket, file, first_page } => match &mut self.files {
                    Some(files) => files.start_job(FileJob::Load { ticket, file, first_page }),
                    None => {
                        let held = self.engine.loaded(ticket, false);
                        debug_assert!(!held, "nothing was read");
                    }
                },
                Effect::Remove { file } => {
                    if let Some(files) = &mut self.files {
                        files.start_job(FileJob::Remove { file });
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
                if let Some(files) = &mut self.files {
                    files.answered(&reply);
                }
                match reply {
                    FileReply::Saved { ticket, file, .. } => self.engine.saved(ticket, file),
                    FileReply::Loaded { ticket, state } => {
                        let is_held = self.engine.loaded(ticket, state.is_some());
                        if let (true, Some(state)) = (is_held, state) {
                            self.device.hold(ticket, state);
                        }
                    }
                    FileReply::Deleted => {}
                    FileReply::Removed { files } => {
                        for file in files {
                            self.engine.file_removed(file);
                        }
                    }
                }
            }
        }
    }

    fn run(&mut self, step: &Step) {
        let start = Instant::now();
        let mut sink = Sink { files: self.files.as_mut(), lost: vec![] };
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
        let lost = sink.lost;
        self.engine.return_masks(jobs);
        for save in lost {
            self.engine.saved(save, None);
        }
        if let Err(failure) = &result {
            tracing::error!("{failure}");
        }
        let seconds = start.elapsed().as_secs_f64();
        self.engine.complete(result, (!self.device.has_prepared()).then_some(seconds));
    }
}

/// Hands state that was read out to the thread that writes files.
struct Sink<'a> {
    files: Option<&'a mut Files>,
    lost: Vec<Ticket>,
}

impl SaveSink for Sink<'_> {
    fn first_page(&mut self, save: &Save) -> Option<usize> {
        let first = self.files.as_mut().and_then(|files| files.first_unsaved_page(save));
        if first.is_none() {
            self.lost.push(save.ticket);
        }
        first
    }

    fn take(&mut self, save: &Save, first_page: usize, state: StateBytes) {
        if let Some(files) = &mut self.files {
            files.start_job(FileJob::Save { save: save.clone(), first_page, state });
        }
    }

    fn lost(&mut self, save: &Save) {
        self.lost.push(save.ticket);
    }
}
