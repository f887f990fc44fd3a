//! How much a client may send, and how long it may take.

use std::time::Duration;

/// Bounds on connections and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; more are answered 503 and closed. Lowered where the process may not open as
    /// many files.
    pub connections: usize,
    /// Bytes of a request's head (request line and headers), at least 8,192; more gets 431.
    pub head_bytes: usize,
    /// Headers of a request; more gets 431.
    pub headers: usize,
    /// From a request head's first byte to its last; then 408.
    pub head_time: Duration,
    /// Bytes of a request's body; more gets 413.
    pub body_bytes: usize,
    /// Bytes of all bodies that are held at a time; a request that would exceed it gets 503.
    pub bodies_bytes: usize,
    /// Silence within a request's body; then 408.
    pub body_idle: Duration,
    /// From a request body's first byte to its last; then 408.
    pub body_time: Duration,
    /// A connection without a request; then it is closed.
    pub idle: Duration,
    /// A client that takes nothing of a response; then it is dropped.
    pub write_stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            head_bytes: 64 << 10,
            headers: 100,
            head_time: Duration::from_secs(10),
            body_bytes: 64 << 20,
            bodies_bytes: 512 << 20,
            body_idle: Duration::from_secs(30),
            body_time: Duration::from_secs(120),
            idle: Duration::from_secs(75),
            write_stall: Duration::from_secs(60),
        }
    }
}
