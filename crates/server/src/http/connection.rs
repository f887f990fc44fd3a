//! One connection: its requests one after another, and how long it may idle or take.

use super::guarded::Guarded;
use super::limits::Limits;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// How long a client that is still sending may go on, unheard, after its response: closing at once would
/// reset the connection, and the response might be lost with it.
const LINGER: Duration = Duration::from_secs(2);

/// The two ends of a request's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The client's.
    pub remote: SocketAddr,
    /// Ours.
    pub local: SocketAddr,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No request has begun.
    Idle { since: Instant },
    /// A request's head is arriving.
    Head { since: Instant },
    /// A request is being received, handled or answered, which have limits of their own.
    Busy,
}

/// A connection's phase, shared by its socket, its requests and its clock, which all run in one task.
#[derive(Clone)]
struct SharedPhase(Arc<Mutex<Phase>>);

impl SharedPhase {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Phase::Idle { since: Instant::now() })))
    }

    fn get(&self) -> Phase {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn bytes_came(&self) {
        if matches!(self.get(), Phase::Idle { .. }) {
            self.set(Phase::Head { since: Instant::now() });
        }
    }
}

/// A socket that tells when a request begins.
struct Watched {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    phase: SharedPhase,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.stream.as_mut().poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.phase.bytes_came();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

/// Serves a connection until the client closes it, a limit is passed, or, after `stop`, what has begun is
/// finished.
///
/// A client that closes its sending side counts as gone: its handler, or its response's body, is dropped.
pub(super) async fn run(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    limits: &Limits,
    stop: &CancellationToken,
) {
    let phase = SharedPhase::new();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_stall));
    let io = TokioIo::new(Watched { stream: Box::pin(stream), phase: phase.clone() });
    let phase_of_requests = phase.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        Box::pin(answer(router.clone(), request, peer, phase_of_requests.clone()))
    });
    let mut connection = http1::Builder::new()
        // Ours tells an idle connection from a slow head, which hyper's does not.
        .header_read_timeout(None)
        .max_header_size(limits.head_bytes)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes.max(64 << 10))
        .serve_connection(io, service);

    let is_late = {
        let mut stopped = pin!(stop.cancelled());
        let mut is_stopping = false;
        let mut alarm = pin!(sleep_until(Instant::now()));
        poll_fn(|context| {
            loop {
                if let Poll::Ready(result) = connection.poll_without_shutdown(context) {
                    if let Err(error) = result {
                        tracing::debug!(target: "calla::http", "connection of {}: {error}", peer.remote);
                    }
                    return Poll::Ready(false);
                }
                if is_stopping || stopped.as_mut().poll(context).is_pending() {
                    break;
                }
                is_stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            let (deadline, is_head) = match phase.get() {
                Phase::Idle { since } => (since + limits.idle, false),
                Phase::Head { since } => (since + limits.head_time, true),
                Phase::Busy => return Poll::Pending,
            };
            if alarm.deadline() != deadline {
                alarm.as_mut().reset(deadline);
            }
            alarm.as_mut().poll(context).map(|()| is_head)
        })
        .await
    };
    // Drops what the client will not take any more: a handler, a stream.
    let mut socket = connection.into_parts().io.into_inner();
    if is_late {
        let seconds = limits.head_time.as_secs_f32();
        let message = format!("the request's head did not arrive within {seconds} s");
        let response = raw_response("408 Request Timeout", "invalid_request_error", &message);
        let _gone = socket.write_all(response.as_bytes()).await;
    }
    linger(&mut socket).await;
}

/// Answers a request, and keeps the connection's phase.
async fn answer(
    mut router: Router,
    request: hyper::Request<Incoming>,
    peer: Peer,
    phase: SharedPhase,
) -> Result<axum::http::Response<Guarded<impl FnOnce(bool) + Unpin>>, Infallible> {
    phase.set(Phase::Busy);
    let mut request: Request = request.map(Body::new);
    request.extensions_mut().insert(peer);
    let response = router.call(request).await?;
    let answered = move |_complete| phase.set(Phase::Idle { since: Instant::now() });
    Ok(response.map(|body| Guarded::new(body, answered)))
}

/// Closes our side, then hears the client out for a while before the socket is closed.
async fn linger(socket: &mut Watched) {
    let _closed_by_client = timeout(LINGER, async {
        socket.shutdown().await?;
        let mut unheard = [0; 8 << 10];
        while socket.read(&mut unheard).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
}

/// A response for when there is no request to answer in its dialect: OpenAI's shape, whose top level also
/// says `type: error`, by which Anthropic's clients know errors. `message` needs no escapes in JSON.
pub(super) fn raw_response(status: &str, kind: &str, message: &str) -> String {
    let body = format!(
        r#"{{"type":"error","error":{{"message":"{message}","type":"{kind}","param":null,"code":null}}}}"#
    );
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n\
         {body}",
        body.len()
    )
}
