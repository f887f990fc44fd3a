//! Memory pressure: how a driver hears that the system is short of memory, and what watches the system for it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(target_os = "macos", test))]
mod macos;
mod watch;

pub(crate) use watch::Watch;

use crate::Notify;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How short of memory the system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureLevel {
    /// It begins to be: the least recently used half of the snapshots, or of what lies in host memory, gives way.
    Warning,
    /// Very much: all of it does.
    Critical,
}

/// What a driver is to hear of memory pressure. Clones share it.
#[derive(Clone)]
pub struct Pressure {
    level: Arc<AtomicU8>,
    notify: Notify,
}

impl Pressure {
    /// Nothing was told yet. `notify` wakes whoever is to hear of it.
    pub(crate) fn new(notify: Notify) -> Self {
        Self { level: Arc::default(), notify }
    }

    /// Tells of pressure once. Until the driver's next turn the highest level counts.
    pub fn raise(&self, level: PressureLevel) {
        self.level.fetch_max(level as u8 + 1, Ordering::Relaxed);
        (self.notify)();
    }

    /// What was told since the last call.
    pub(crate) fn take(&self) -> Option<PressureLevel> {
        match self.level.swap(0, Ordering::Relaxed) {
            0 => None,
            1 => Some(PressureLevel::Warning),
            _ => Some(PressureLevel::Critical),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_counts_once() {
        let pressure = Pressure::new(Arc::new(|| {}));
        assert_eq!(pressure.take(), None);
        pressure.clone().raise(PressureLevel::Critical);
        pressure.raise(PressureLevel::Warning);
        assert_eq!(pressure.take(), Some(PressureLevel::Critical));
        assert_eq!(pressure.take(), None);
        pressure.raise(PressureLevel::Warning);
        assert_eq!(pressure.take(), Some(PressureLevel::Warning));
    }

    #[test]
    fn whoever_waits_is_woken() {
        let calls = Arc::new(AtomicU8::new(0));
        let counted = calls.clone();
        let pressure = Pressure::new(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        pressure.raise(PressureLevel::Warning);
        pressure.raise(PressureLevel::Critical);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
