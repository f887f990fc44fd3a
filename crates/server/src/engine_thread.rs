//! The thread that owns the engine: requests come in over a channel, what happens to them goes out over theirs.
//!
//! The engine's driver computes on the thread that calls it, so it has one of its own, which nothing that
//! serves a socket ever waits for. The thread loads the model, unloads it when nobody has asked for long, and
//! loads it again.

use crate::engine_status::{Phase, SharedStatus};
use crate::token_times::TokenTimes;
use calla_engine::engine::Counts;
use calla_engine::{Failure, FinishReason, Output, Request, RequestId, SubmitError, Usage};
use calla_ops::sample::TokenLogprobs;
use calla_runtime::{Driver, Notify, SavedUse, Turn};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// So many turns in which the device failed, one after the other without a reply that ended well, and it is given up: the
/// next request opens it anew, or is told why that cannot be.
const FAULTS_IN_A_ROW_MAX: u32 = 2;

/// A model on a device, ready to run.
pub struct LoadedModel {
    /// The engine on its device; made with the `Notify` that the [`Loader`] was given.
    pub driver: Driver,
    /// Words for the device.
    pub device: String,
}

/// Loads the model, or says why it cannot. Called on the engine's thread: at the start, and again after the
/// model was unloaded.
pub type Loader = Box<dyn FnMut(Notify) -> Result<LoadedModel, String> + Send>;

/// Something that happened to a request, and when.
#[derive(Debug)]
pub(crate) struct Update {
    /// Which of the replies to one prompt it is about.
    pub(crate) choice: usize,
    pub(crate) at: Instant,
    pub(crate) what: What,
}

/// What happened to a request.
#[derive(Debug)]
pub(crate) enum What {
    /// So many prompt tokens are in the state. The first one says that the request has its place.
    Prefill { done: usize, total: usize },
    /// The next token.
    Token(u32, Option<TokenLogprobs>),
    /// Nothing more will come.
    Finished(FinishReason, Usage),
    /// Nothing more will come, for this reason.
    Failed(Failure),
    /// Nothing more will come: the server ends now.
    Cut,
}

/// Why a request was not accepted.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The engine refused it.
    Submit(SubmitError),
    /// The model cannot be loaded.
    NotLoaded(String),
    /// The server is ending.
    Stopping,
}

/// A request on its way to the engine.
struct Submission {
    request: Request,
    choice: usize,
    updates: UnboundedSender<Update>,
    answer: oneshot::Sender<Result<RequestId, Rejection>>,
}

enum Command {
    Submit(Box<Submission>),
    Cancel(RequestId),
    /// A thread has something for the driver.
    Wake,
    Stop,
    Cut,
}

/// What others hold of the engine's thread.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    status: SharedStatus,
}

/// A request that the engine has accepted; dropping this cancels it.
pub(crate) struct Running {
    id: RequestId,
    commands: Sender<Command>,
}

impl Running {
    /// Ends it early. Its counts still come.
    pub(crate) fn cancel(&self) {
        // A thread that is gone runs nothing.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has finished is unknown to the engine, which ignores it.
        self.cancel();
    }
}

impl EngineHandle {
    /// Starts the thread, which at once begins to load the model.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(loader: Loader, idle_unload: Option<Duration>) -> std::io::Result<Self> {
        let (commands, queue) = channel();
        let status = SharedStatus::new();
        let waker = commands.clone();
        let thread = EngineThread {
            notify: Arc::new(move || {
                // A thread that is gone needs no waking.
                let _ = waker.send(Command::Wake);
            }),
            loader,
            idle_unload,
            queue,
            status: status.clone(),
            driver: None,
            earlier: Counts::default(),
            requests: HashMap::new(),
            faults_in_a_row: 0,
            is_stopping: false,
        };
        std::thread::Builder::new().name("calla-engine".into()).spawn(move || thread.run())?;
        Ok(Self { commands, status })
    }

    /// What the thread last told of itself.
    pub(crate) fn status(&self) -> &SharedStatus {
        &self.status
    }

    /// Waits until the phase is not one that `is_passing` knows.
    pub(crate) async fn phase_but(&self, is_passing: impl Fn(&Phase) -> bool) -> Phase {
        self.status.phase_but(is_passing).await
    }

    /// Hands a request to the engine. What happens to it comes over `updates`, marked with `choice`.
    ///
    /// # Errors
    /// If it is not accepted.
    pub(crate) async fn submit(
        &self,
        request: Request,
        choice: usize,
        updates: UnboundedSender<Update>,
    ) -> Result<Running, Rejection> {
        let (answer, answered) = oneshot::channel();
        let submission = Submission { request, choice, updates, answer };
        self.commands
            .send(Command::Submit(Box::new(submission)))
            .map_err(|_| Rejection::Stopping)?;
        let id = answered.await.map_err(|_| Rejection::Stopping)??;
        Ok(Running { id, commands: self.commands.clone() })
    }

    /// Ends all requests at once; each is told so.
    pub(crate) fn cut(&self) {
        // A thread that is gone runs none.
        let _ = self.commands.send(Command::Cut);
    }

    /// Takes no more requests; the thread ends when those that run have ended and what is worth a file is
    /// written. The phase is then [`Phase::Stopped`].
    pub(crate) fn stop(&self) {
        // A thread that is gone has stopped.
        let _ = self.commands.send(Command::Stop);
    }
}

/// Who hears of a request.
struct Heard {
    choice: usize,
    updates: UnboundedSender<Update>,
    /// Whether it was told that the request has its place.
    is_placed: bool,
}

struct EngineThread {
    notify: Notify,
    loader: Loader,
    idle_unload: Option<Duration>,
    queue: Receiver<Command>,
    status: SharedStatus,
    driver: Option<Driver>,
    /// Counts of engines that were unloaded.
    earlier: Counts,
    requests: HashMap<RequestId, Heard>,
    /// Turns in which the device failed since a reply ended well.
    faults_in_a_row: u32,
    is_stopping: bool,
}

impl EngineThread {
    fn run(mut self) {
        self.load();
        loop {
            while let Ok(command) = self.queue.try_recv() {
                self.take(command);
            }
            // Before a step too: the first one of a long prompt takes a while.
            self.publish();
            let turn = self.turn();
            if turn == Turn::Step {
                continue;
            }
            if self.is_stopping && self.requests.is_empty() {
                break;
            }
            // What the turn ended, or an engine that was given up.
            self.publish();
            if let Some(command) = self.wait() {
                self.take(command);
            }
        }
        self.unload();
        self.status.change(|status| status.phase = Phase::Stopped);
    }

    /// The next command; `None` after so long without a request that the model was unloaded.
    fn wait(&mut self) -> Option<Command> {
        let idle = self.idle_unload.filter(|_| self.requests.is_empty() && self.driver.is_some());
        match idle {
            Some(idle) => match self.queue.recv_timeout(idle) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::info!("no request for {} s: unloading the model", idle.as_secs());
                    self.unload();
                    self.status.change(|status| status.phase = Phase::Unloaded);
                    None
                }
                Err(RecvTimeoutError::Disconnected) => Some(Command::Stop),
            },
            // The notifier holds a sender, so the channel never closes.
            None => Some(self.queue.recv().unwrap_or(Command::Stop)),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Wake => {}
            Command::Stop => {
                self.is_stopping = true;
                self.status.change(|status| status.phase = Phase::Stopping);
            }
            Command::Cut => {
                for (id, Heard { choice, updates, .. }) in self.requests.drain() {
                    // Whoever is gone need not know.
                    let _ = updates.send(Update { choice, at: Instant::now(), what: What::Cut });
                    if let Some(driver) = &mut self.driver {
                        driver.engine().cancel(id);
                    }
                }
            }
            Command::Cancel(id) => {
                if self.requests.contains_key(&id)
                    && let Some(driver) = &mut self.driver
                {
                    driver.engine().cancel(id);
                }
            }
            Command::Submit(submission) => self.submit(*submission),
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, choice, updates, answer } = submission;
        if answer.is_closed() {
            return;
        }
        // A further reply to a prompt belongs to a request that has begun, and which may end.
        if self.is_stopping && choice == 0 {
            let _ = answer.send(Err(Rejection::Stopping));
            return;
        }
        if self.driver.is_none() {
            self.load();
        }
        let Some(driver) = &mut self.driver else {
            let Phase::Failed(reason) = self.status.get().phase else {
                unreachable!("loading gives a driver or the reason why not");
            };
            let _ = answer.send(Err(Rejection::NotLoaded(reason)));
            return;
        };
        match driver.engine().submit(request) {
            Err(error) => {
                let _ = answer.send(Err(Rejection::Submit(error)));
            }
            Ok(id) => {
                self.requests.insert(id, Heard { choice, updates, is_placed: false });
                if answer.send(Ok(id)).is_err() {
                    // Whoever asked has gone meanwhile.
                    driver.engine().cancel(id);
                }
            }
        }
    }

    fn load(&mut self) {
        self.status.change(|status| status.phase = Phase::Loading);
        let notify = self.notify.clone();
        let loaded = catch_unwind(AssertUnwindSafe(|| (self.loader)(notify)))
            .unwrap_or_else(|panic| Err(words_of(panic.as_ref())));
        match loaded {
            Ok(LoadedModel { driver, device }) => {
                self.driver = Some(driver);
                self.status.change(|status| {
                    status.phase = Phase::Ready;
                    status.device = Some(device);
                });
            }
            Err(reason) => {
                tracing::error!("the model could not be loaded: {reason}");
                self.status.change(|status| status.phase = Phase::Failed(reason));
            }
        }
    }

    /// Writes what is worth a file and lets go of the model.
    fn unload(&mut self) {
        let Some(mut driver) = self.driver.take() else { return };
        let saved = catch_unwind(AssertUnwindSafe(|| driver.save_all()));
        if saved.is_err() {
            tracing::error!("the prefix cache could not be saved");
        }
        self.earlier = sum(self.earlier, driver.view().counts());
        drop(driver);
        self.status.change(|status| {
            status.occupancy = None;
            status.saved = SavedUse::default();
        });
    }

    /// Lets the engine do what it can, and passes on what happened.
    fn turn(&mut self) -> Turn {
        let Some(driver) = &mut self.driver else { return Turn::Idle };
        let start = Instant::now();
        self.status.change(|status| status.step_since = Some(start));
        let turn = catch_unwind(AssertUnwindSafe(|| driver.turn(false)));
        self.status.change(|status| status.step_since = None);
        match turn {
            Ok(turn) => {
                // First, so that whoever hears of a request finds it in the status.
                self.publish();
                self.pass_on(start);
                turn
            }
            Err(panic) => {
                self.give_up(&words_of(panic.as_ref()));
                Turn::Idle
            }
        }
    }

    /// Passes on what came of a turn that began at `start`.
    fn pass_on(&mut self, start: Instant) {
        let Some(driver) = &mut self.driver else { return };
        let end = Instant::now();
        let mut fault = None;
        let mut outputs: VecDeque<Output> = std::iter::from_fn(|| driver.engine().poll()).collect();
        let mut times = TokenTimes::new(&outputs, start, end);
        // What is cancelled here has its end told too.
        while let Some(output) = outputs.pop_front().or_else(|| driver.engine().poll()) {
            let (id, what, is_last) = match output {
                Output::Prefill { id, done, total } => (id, What::Prefill { done, total }, false),
                Output::Token { id, token, logprobs } => (id, What::Token(token, logprobs), false),
                Output::Finished { id, reason, usage } => {
                    if reason != FinishReason::Cancelled {
                        self.faults_in_a_row = 0;
                        self.status.change(|status| status.last_fault = None);
                    }
                    (id, What::Finished(reason, usage), true)
                }
                Output::Failed { id, failure } => {
                    if let Failure::Device(reason) = &failure {
                        let reason = format!("the device failed: {reason}");
                        fault = Some(reason.clone());
                        self.status.change(|status| {
                            status.faults += 1;
                            status.last_fault = Some(reason);
                        });
                    }
                    (id, What::Failed(failure), true)
                }
            };
            let Some(heard) = self.requests.get_mut(&id) else { continue };
            // A request gets its place before the step that a turn runs.
            let at = match what {
                _ if !heard.is_placed => start,
                What::Token(..) => times.next(id),
                _ => end,
            };
            heard.is_placed = true;
            let is_heard = heard.updates.send(Update { choice: heard.choice, at, what }).is_ok();
            if is_last {
                self.requests.remove(&id);
            } else if !is_heard {
                driver.engine().cancel(id);
            }
        }
        if let Some(reason) = fault {
            self.faults_in_a_row += 1;
            if self.faults_in_a_row >= FAULTS_IN_A_ROW_MAX {
                self.faults_in_a_row = 0;
                self.give_up(&reason);
            }
        }
    }

    /// The engine has a bug, or its device fails again and again: its requests fail, and the next one begins with a new engine.
    fn give_up(&mut self, reason: &str) {
        tracing::error!("the engine failed and is started anew: {reason}");
        let at = Instant::now();
        for (_, Heard { choice, updates, .. }) in self.requests.drain() {
            let what = What::Failed(Failure::Device(format!("the engine failed: {reason}")));
            // Whoever is gone need not know.
            let _ = updates.send(Update { choice, at, what });
        }
        if let Some(driver) = self.driver.take() {
            self.earlier = sum(self.earlier, driver.view().counts());
            // What a broken engine does when it is dropped must not end the thread.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(driver)));
        }
        self.status.change(|status| {
            status.phase = Phase::Unloaded;
            status.occupancy = None;
            status.saved = SavedUse::default();
            status.faults += 1;
            status.last_fault = Some(format!("the engine failed: {reason}"));
        });
    }

    fn publish(&self) {
        let Some(driver) = &self.driver else {
            let counts = self.earlier;
            return self.status.change(|status| {
                (status.running, status.waiting, status.counts) = (0, 0, counts);
            });
        };
        let (engine, saved) = (driver.view(), driver.saved());
        let counts = sum(self.earlier, engine.counts());
        self.status.change(|status| {
            status.running = engine.running();
            status.waiting = engine.waiting();
            status.occupancy = Some(engine.occupancy());
            status.saved = saved;
            status.counts = counts;
        });
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        requests: a.requests + b.requests,
        prompt_tokens: a.prompt_tokens + b.prompt_tokens,
        reused_tokens: a.reused_tokens + b.reused_tokens,
        host_tokens: a.host_tokens + b.host_tokens,
        loaded_tokens: a.loaded_tokens + b.loaded_tokens,
        generated_tokens: a.generated_tokens + b.generated_tokens,
        drafted_tokens: a.drafted_tokens + b.drafted_tokens,
        accepted_tokens: a.accepted_tokens + b.accepted_tokens,
        evictions: a.evictions + b.evictions,
        gave_way: a.gave_way + b.gave_way,
        file_errors: a.file_errors + b.file_errors,
    }
}

/// What a panic said.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or("no message".to_owned())
}
