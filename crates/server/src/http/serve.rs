//! The loop that takes connections, and its end.

use super::bind::Listener;
use super::connection::{self, Peer, raw_response};
use super::limits::Limits;
use axum::Router;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Open files that are not connections: the checkpoint's, the disk cache's, logs.
const FILES_RESERVED: usize = 128;
/// How long taking connections rests when the system cannot give one.
const PAUSE: Duration = Duration::from_millis(200);
/// How often, at most, the log says so.
const PAUSE_LOGGED: Duration = Duration::from_secs(10);

/// Serves connections until `stop` is cancelled, then lets running responses finish for up to `drain`.
/// Returns how many connections were cut after that.
///
/// From `stop` on no connection is taken, idle ones are closed, and requests on the others should get 503
/// ([`protect`](super::protect) sees to it).
pub async fn serve(
    listener: Listener,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    drain: Duration,
) -> usize {
    let places = Arc::new(Semaphore::new(connections_max(&limits)));
    let limits = Arc::new(limits);
    let mut connections = JoinSet::new();
    let mut logged: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Forgets those that have ended.
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = listener.socket.accept() => accepted,
        };
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_the_client(&error) => continue,
            Err(error) => {
                if logged.is_none_or(|logged| logged.elapsed() >= PAUSE_LOGGED) {
                    logged = Some(Instant::now());
                    tracing::warn!("cannot take a connection, trying again: {error}");
                }
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(PAUSE) => continue,
                }
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            turn_away(&stream);
            continue;
        };
        let (router, limits, stop) = (router.clone(), Arc::clone(&limits), stop.clone());
        connections.spawn(async move {
            let _place = place;
            // Tokens are small and each is sent at once.
            let prepared = stream.set_nodelay(true).and_then(|()| stream.local_addr());
            if let Ok(local) = prepared {
                connection::run(stream, Peer { remote, local }, router, &limits, &stop).await;
            }
        });
    }
    drop(listener);
    let finish = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    let _finished = timeout(drain, finish).await;
    let cut = connections.len();
    connections.shutdown().await;
    cut
}

/// A connection at a time for each file that may be opened, after asking the system for as many as it gives.
fn connections_max(limits: &Limits) -> usize {
    let files = rlimit::increase_nofile_limit(u64::MAX);
    let files = files.ok().and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let possible = files.saturating_sub(FILES_RESERVED).max(1);
    if possible < limits.connections {
        tracing::warn!(
            "at most {possible} connections at a time instead of {}: the process may open {files} files \
             (ulimit -n)",
            limits.connections
        );
    }
    limits.connections.min(possible).min(Semaphore::MAX_PERMITS)
}

/// Whether only the connection that was to be taken is lost.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Says that there is no room, as far as it can be said without waiting.
fn turn_away(stream: &TcpStream) {
    let message = "the server has as many connections as it may have; try again later";
    let response = raw_response("503 Service Unavailable", "server_error", message);
    let _unheard = stream.try_write(response.as_bytes());
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a response failed while it was sent: {error}");
    }
}
