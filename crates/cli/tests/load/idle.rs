//! Connections that are held open after one request, as clients and browsers hold them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Idle connections; dropping this closes them.
pub(crate) struct IdleConnections {
    _tasks: JoinSet<()>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    /// Times that the server closed one.
    closed: AtomicUsize,
}

impl IdleConnections {
    /// Opens `count` connections. One that the server closes, as it does after a while, is opened again.
    pub(crate) async fn open(port: u16, count: usize) -> Self {
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            tasks.spawn(hold(port, Arc::clone(&counts)));
        }
        let start = Instant::now();
        while counts.open.load(Relaxed) < count {
            assert!(start.elapsed() < Duration::from_secs(30), "the server takes no connections");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self { _tasks: tasks, counts }
    }

    /// How many are open, and how often the server closed one.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.counts.open.load(Relaxed), self.counts.closed.load(Relaxed))
    }
}

async fn hold(port: u16, counts: Arc<Counts>) {
    loop {
        let Ok(mut connection) = open(port).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        counts.open.fetch_add(1, Relaxed);
        let mut rest = [0; 1024];
        // It ends when the server closes the connection.
        while connection.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
        counts.open.fetch_sub(1, Relaxed);
        counts.closed.fetch_add(1, Relaxed);
    }
}

/// A connection that the server has taken: it has begun to answer a request. Without one the system might keep
/// it from the server, when many come at once.
async fn open(port: u16) -> std::io::Result<TcpStream> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
    connection.write_all(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await?;
    let mut start = [0; 12];
    connection.read_exact(&mut start).await?;
    if &start != b"HTTP/1.1 200" {
        return Err(std::io::Error::other("not an answer of /health"));
    }
    Ok(connection)
}
