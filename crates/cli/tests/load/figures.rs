//! What a load came to, as a table.

use crate::crowd::Seen;
use std::fmt;
use std::time::Duration;

/// Figures of one load.
pub(crate) struct Figures {
    pub(crate) seen: Seen,
    /// Tokens that the server generated, those for clients that vanished too.
    pub(crate) generated: u64,
    /// Tokens of prompts, and those of them that replies which ended found in the cache.
    pub(crate) prompt: u64,
    pub(crate) reused: u64,
    /// Times of `/health`, from the least to the greatest.
    pub(crate) health: Vec<Duration>,
    pub(crate) idle_connections: usize,
    /// Times that the server closed an idle connection.
    pub(crate) idle_closed: usize,
    /// Resident memory in bytes, before and after.
    pub(crate) resident: Option<(u64, u64)>,
    /// Open files, before and after.
    pub(crate) files: Option<(usize, usize)>,
}

impl Figures {
    /// A percentile of the times of `/health`; 1.0 is the greatest.
    pub(crate) fn health_percentile(&self, share: f64) -> Duration {
        percentile(&self.health, share)
    }
}

/// The least of the sorted times that `share` of them do not exceed.
fn percentile(times: &[Duration], share: f64) -> Duration {
    assert!(!times.is_empty(), "nothing was timed");
    let rank = (times.len() as f64 * share).ceil() as usize;
    times[rank.clamp(1, times.len()) - 1]
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = &self.seen;
        let ms = |times: &[Duration], share| percentile(times, share).as_secs_f64() * 1e3;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let seconds = seen.elapsed.as_secs_f64();
        let mut row = |name: &str, value: String| writeln!(f, "| {name} | {value} |");
        row("figure", "value".to_owned())?;
        row("---", "---".to_owned())?;
        row("time, s", format!("{seconds:.1}"))?;
        row("streams that came to their end", seen.whole.to_string())?;
        row("streams whose client vanished", seen.vanished.to_string())?;
        row("of those, after their first text", seen.vanished_late.to_string())?;
        row(
            "streams that broke off or were turned away",
            (seen.broken + seen.turned_away).to_string(),
        )?;
        row("short requests", seen.short.to_string())?;
        row("lost or mixed replies", seen.wrong.len().to_string())?;
        row("tokens generated", self.generated.to_string())?;
        row("tokens of prompts: all, reused", format!("{}, {}", self.prompt, self.reused))?;
        row("tokens generated per second", format!("{:.0}", self.generated as f64 / seconds))?;
        for (name, times) in [
            ("first text of a stream, ms: p50, p99, max", &seen.first_texts),
            ("short request, ms: p50, p99, max", &seen.short_times),
            ("/health, ms: p50, p99, max", &self.health),
        ] {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| ms(times, share));
            row(name, format!("{p50:.1}, {p99:.1}, {max:.1}"))?;
        }
        row("polls of /health", self.health.len().to_string())?;
        row("idle connections held", self.idle_connections.to_string())?;
        row(
            "idle connections closed by the server and opened again",
            self.idle_closed.to_string(),
        )?;
        if let Some((before, after)) = self.resident {
            row(
                "resident memory, MB: before, after",
                format!("{:.1}, {:.1}", mb(before), mb(after)),
            )?;
        }
        if let Some((before, after)) = self.files {
            row("open files: before, after", format!("{before}, {after}"))?;
        }
        Ok(())
    }
}
