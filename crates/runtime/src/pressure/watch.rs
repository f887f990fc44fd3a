//! A thread that looks at the system's memory every two seconds and tells of pressure.
//!
//! A look reads a few small files, or one number of the kernel's. Pressure is told of when it begins or becomes worse, and
//! again every half minute while it lasts: what gave way takes a while to show, and a system that swings between two levels
//! must not cost a cache each time.

use super::{Pressure, PressureLevel};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Between two looks. Linux works out its averages of stalls as often.
const INTERVAL: Duration = Duration::from_secs(2);
/// Until the same level is told of again. Three times the span of the averages that are looked at on Linux.
const REPEAT: Duration = Duration::from_secs(30);

/// What a look found: pressure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) level: PressureLevel,
    /// What it was seen by, with numbers.
    pub(super) words: String,
}

/// Looks at the system: `None` if there is no pressure.
pub(super) type Look = Box<dyn FnMut() -> Option<Reading> + Send>;

/// The thread; dropping this ends it.
pub(crate) struct Watch {
    _stop: Sender<()>,
}

impl Watch {
    /// Watches this system; `None` if it is not known how it tells of its memory.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(pressure: Pressure) -> io::Result<Option<Self>> {
        look_at_system().map(|look| Self::start_with(pressure, look, INTERVAL)).transpose()
    }

    fn start_with(pressure: Pressure, mut look: Look, interval: Duration) -> io::Result<Self> {
        let (stop, stopped) = channel();
        std::thread::Builder::new()
            .name("calla-memory".into())
            .spawn(move || watch(&pressure, &mut look, &stopped, interval))?;
        Ok(Self { _stop: stop })
    }
}

#[cfg(target_os = "linux")]
fn look_at_system() -> Option<Look> {
    let places = super::linux::Places::find(std::path::Path::new("/"));
    Some(Box::new(move || places.look()))
}

#[cfg(target_os = "macos")]
fn look_at_system() -> Option<Look> {
    Some(Box::new(super::macos::look))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn look_at_system() -> Option<Look> {
    None
}

fn watch(pressure: &Pressure, look: &mut Look, stopped: &Receiver<()>, interval: Duration) {
    let mut alarm = Alarm::default();
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        if let Some(Reading { level, words }) = look()
            && alarm.is_due(level, Instant::now())
        {
            tracing::info!("the system is short of memory: {words}");
            pressure.raise(level);
        }
    }
}

/// When to tell of pressure.
#[derive(Default)]
struct Alarm {
    /// What was told last, and when.
    last: Option<(PressureLevel, Instant)>,
}

impl Alarm {
    /// Whether a level that is seen now is to be told of; it is taken to be told then.
    fn is_due(&mut self, level: PressureLevel, now: Instant) -> bool {
        let is_due = self
            .last
            .is_none_or(|(told, at)| level > told || now.saturating_duration_since(at) >= REPEAT);
        if is_due {
            self.last = Some((level, now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn pressure_is_told_when_it_begins_or_grows_and_now_and_then_while_it_lasts() {
        use PressureLevel::{Critical, Warning};
        let start = Instant::now();
        let mut alarm = Alarm::default();
        let seen = [
            (0, Warning, true),
            (2, Warning, false),
            // Worse, and again as before.
            (4, Critical, true),
            (6, Critical, false),
            (8, Warning, false),
            (33, Warning, false),
            // Half a minute after it was last told; that there was none meanwhile does not matter.
            (34, Warning, true),
            (36, Critical, true),
            (65, Critical, false),
            (66, Critical, true),
            (1000, Warning, true),
        ];
        for (seconds, level, is_due) in seen {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(alarm.is_due(level, now), is_due, "{level:?} after {seconds} s");
        }
    }

    /// Looks that are given one after the other; then there is no pressure.
    fn looks(levels: Vec<Option<PressureLevel>>) -> (Look, Receiver<()>) {
        let mut levels = levels.into_iter();
        let (looked, looks) = mpsc::channel();
        let look = move || {
            // Whoever counts looks may have seen enough.
            let _ = looked.send(());
            let level = levels.next().flatten()?;
            Some(Reading { level, words: "as the test says".into() })
        };
        (Box::new(look), looks)
    }

    #[test]
    fn a_watch_wakes_whoever_waits_and_ends_when_it_is_dropped() {
        let (wake, woken) = mpsc::channel();
        let pressure = Pressure::new(Arc::new(move || wake.send(()).unwrap()));
        let (look, looked) =
            looks(vec![None, Some(PressureLevel::Warning), None, Some(PressureLevel::Warning)]);
        let watch = Watch::start_with(pressure.clone(), look, Duration::from_millis(1)).unwrap();
        woken.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(pressure.take(), Some(PressureLevel::Warning));
        for _ in 0..6 {
            looked.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        // The second time came too soon.
        assert_eq!((pressure.take(), woken.try_recv().ok()), (None, None));
        drop(watch);
        // Its end of the channel goes with the thread.
        while looked.recv_timeout(Duration::from_secs(60)).is_ok() {}
        assert_eq!(looked.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn this_system_can_be_looked_at() {
        let Some(mut look) = look_at_system() else {
            println!("skipped: it is not known how this system tells of its memory");
            return;
        };
        // Whatever it says, it says why.
        assert!(look().is_none_or(|reading| !reading.words.is_empty()));
    }
}
