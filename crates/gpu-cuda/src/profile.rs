//! What takes the time of a plan, by entry point.

use calla_gpu::Dispatch;
use cudarc::driver::result::{DriverError, event};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use std::collections::BTreeMap;
use std::fmt;

/// Dispatches of an entry point, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileRow {
    /// How many there were.
    pub count: u64,
    /// Microseconds from the end of the dispatch before each to its own.
    pub microseconds: f64,
    /// Bytes that they are expected to move.
    pub bytes: u64,
}

/// Times of dispatches by what they do: their entry point and the last word of their label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile(BTreeMap<String, ProfileRow>);

impl Profile {
    /// The rows, by name.
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<String, ProfileRow> {
        &self.0
    }

    pub(crate) fn add(&mut self, dispatches: &[Dispatch], microseconds: &[f64]) {
        for (dispatch, microseconds) in dispatches.iter().zip(microseconds) {
            let what = dispatch.label.rsplit(' ').next().unwrap_or_default();
            let row = self.0.entry(format!("{} {what}", dispatch.entry)).or_default();
            row.count += 1;
            row.microseconds += microseconds;
            row.bytes += dispatch.traffic.read + dispatch.traffic.written;
        }
    }
}

impl fmt::Display for Profile {
    /// A line for each row, the longest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by(|(_, a), (_, b)| b.microseconds.total_cmp(&a.microseconds));
        writeln!(f, "{:<44} {:>6} {:>10} {:>12} {:>8}", "kernel", "count", "us", "MB", "GB/s")?;
        for (name, ProfileRow { count, microseconds, bytes }) in rows {
            let (megabytes, rate) = (*bytes as f64 / 1e6, *bytes as f64 / 1e3 / microseconds);
            writeln!(
                f,
                "{name:<44} {count:>6} {microseconds:>10.1} {megabytes:>12.3} {rate:>8.0}"
            )?;
        }
        Ok(())
    }
}

/// Events of a stream, one after each dispatch.
#[derive(Debug)]
pub(crate) struct Stopwatch(Vec<CUevent>);

impl Stopwatch {
    /// Notes when the stream is through with what is in it. The context is the thread's, here and later.
    pub(crate) fn start(stream: CUstream) -> Result<Self, DriverError> {
        let mut watch = Self(vec![]);
        watch.lap(stream)?;
        Ok(watch)
    }

    /// As [`Self::start`], once more.
    pub(crate) fn lap(&mut self, stream: CUstream) -> Result<(), DriverError> {
        let event = event::create(CUevent_flags::CU_EVENT_DEFAULT)?;
        self.0.push(event);
        // SAFETY: both exist.
        unsafe { event::record(event, stream) }
    }

    /// Microseconds between notes, all of which the stream is through with.
    pub(crate) fn laps(&self) -> Result<Vec<f64>, DriverError> {
        let pairs = self.0.array_windows();
        // SAFETY: all were recorded in one stream, and none was destroyed.
        pairs.map(|&[a, b]| Ok(f64::from(unsafe { event::elapsed(a, b) }?) * 1e3)).collect()
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        for &event in &self.0 {
            // SAFETY: it was created here, and this is the last that is done with it. Failing, it can only leak.
            let _ = unsafe { event::destroy(event) };
        }
    }
}
