//! What the engine's thread tells of itself, so that whoever asks need not wait for it.

use calla_engine::engine::{Counts, Occupancy};
use calla_runtime::SavedUse;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A step that takes longer than this makes the server's health `degraded`.
const STEP_MAX: Duration = Duration::from_secs(60);

/// Where the model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its weights are being loaded.
    Loading,
    /// It answers.
    Ready,
    /// It was unloaded after a time without requests; the next one loads it again.
    Unloaded,
    /// It could not be loaded, for this reason; the next request tries again.
    Failed(String),
    /// No request is taken any more; those that run may end.
    Stopping,
    /// Its thread has ended.
    Stopped,
}

/// A look at the engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineStatus {
    pub(crate) phase: Phase,
    /// Words for the device, once it is known.
    pub(crate) device: Option<String>,
    /// Requests that run.
    pub(crate) running: usize,
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// What the prefix cache holds, while the model is loaded.
    pub(crate) occupancy: Option<Occupancy>,
    /// What is saved besides, while the model is loaded.
    pub(crate) saved: SavedUse,
    /// What was done since the program started.
    pub(crate) counts: Counts,
    /// Failures of the device or of the engine since the program started.
    pub(crate) faults: u64,
    /// What failed last, until a request succeeds again.
    pub(crate) last_fault: Option<String>,
    /// Since when the current step runs.
    pub(crate) step_since: Option<Instant>,
}

impl EngineStatus {
    /// Why the engine cannot be relied on, if so.
    pub(crate) fn trouble(&self, now: Instant) -> Option<String> {
        if let Phase::Failed(reason) = &self.phase {
            return Some(format!("the model could not be loaded: {reason}"));
        }
        let running = self.step_since.map(|since| now.saturating_duration_since(since));
        if let Some(time) = running.filter(|&time| time > STEP_MAX) {
            return Some(format!("a step of the model has been running for {} s", time.as_secs()));
        }
        self.last_fault.clone()
    }
}

/// The status that the engine's thread writes and others read.
#[derive(Clone, Debug)]
pub(crate) struct SharedStatus(watch::Sender<EngineStatus>);

impl SharedStatus {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(EngineStatus {
            phase: Phase::Loading,
            device: None,
            running: 0,
            waiting: 0,
            occupancy: None,
            saved: SavedUse::default(),
            counts: Counts::default(),
            faults: 0,
            last_fault: None,
            step_since: None,
        }))
    }

    /// The status now.
    pub(crate) fn get(&self) -> EngineStatus {
        self.0.borrow().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut EngineStatus)) {
        self.0.send_modify(change);
    }

    /// Waits until the phase is not one that `is_passing` knows.
    pub(crate) async fn phase_but(&self, is_passing: impl Fn(&Phase) -> bool) -> Phase {
        let mut receiver = self.0.subscribe();
        let settled = receiver.wait_for(|status| !is_passing(&status.phase)).await;
        // The sender is this value's own, so that the channel is open.
        settled.map_or(Phase::Stopped, |status| status.phase.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_while_it_lasts() {
        let shared = SharedStatus::new();
        let now = Instant::now();
        assert_eq!(shared.get().trouble(now), None);
        shared.change(|status| status.step_since = Some(now));
        assert_eq!(shared.get().trouble(now + STEP_MAX), None);
        let stuck = shared.get().trouble(now + STEP_MAX + Duration::from_secs(1)).unwrap();
        assert!(stuck.contains("running for 61 s"), "{stuck}");
        shared.change(|status| {
            status.step_since = None;
            status.last_fault = Some("the device failed".to_owned());
        });
        assert_eq!(shared.get().trouble(now).unwrap(), "the device failed");
        shared.change(|status| status.phase = Phase::Failed("no such file".to_owned()));
        assert!(shared.get().trouble(now).unwrap().contains("no such file"));
    }
}
