//! The listening socket, and who has the port when it cannot be had.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// How long the program that has the port may take to say what it is.
const PROBE_TIME: Duration = Duration::from_secs(1);
/// Most of its answer that is read, in bytes.
const PROBE_BYTES: u64 = 64 << 10;

/// How many connections may wait to be taken; the system lowers it to its own limit. A burst of agents that
/// start at once overflows the usual 128, and a client whose connection is dropped there waits for a second.
const BACKLOG: u32 = 4_096;

/// A bound socket that [`serve`](super::serve) takes connections from.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The address that clients connect to; its port is the one that was chosen when 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another instance of this program has the port.
    #[error(
        "calla is already serving {} at {address}: use that one, stop it, or choose another port with --port",
        model.as_deref().unwrap_or("a model")
    )]
    AlreadyServing {
        /// The address that was asked for.
        address: SocketAddr,
        /// The model that it serves, as far as it said.
        model: Option<String>,
    },
    /// Another program has the port.
    #[error("another program has {address}: stop it, or choose another port with --port")]
    InUse {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// This machine has no such address.
    #[error("{address} is not an address of this machine: choose another one with --host")]
    NoSuchAddress {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// Something else.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Binds as `TcpListener::bind` does, but for the length of the queue.
fn bind(address: SocketAddr) -> io::Result<Listener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // On Windows this option would let two programs share the port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let socket = socket.listen(BACKLOG)?;
    let address = socket.local_addr()?;
    Ok(Listener { socket, address })
}

/// Listens on an address; port 0 chooses a free one.
///
/// # Errors
///
/// When the port is taken (the error says by what) or the address cannot be listened on.
pub async fn listen(address: SocketAddr) -> Result<Listener, ListenError> {
    match bind(address) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let answer = timeout(PROBE_TIME, ask_health(address)).await;
            Err(match answer.ok().and_then(Result::ok).as_deref().and_then(recognise) {
                Some(model) => ListenError::AlreadyServing { address, model },
                None => ListenError::InUse { address },
            })
        }
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(ListenError::NoSuchAddress { address })
        }
        Err(source) => Err(ListenError::Other { address, source }),
    }
}

/// What the program at an address answers to `GET /health`.
async fn ask_health(mut address: SocketAddr) -> io::Result<Vec<u8>> {
    if address.ip().is_unspecified() {
        let loopback: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(PROBE_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Whether an answer is this program's; if so, the model that it names.
fn recognise(answer: &[u8]) -> Option<Option<String>> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_ours = head.lines().skip(1).any(|line| {
        let Some((name, value)) = line.split_once(':') else { return false };
        name.eq_ignore_ascii_case("server") && value.trim().starts_with("calla/")
    });
    if !is_ours {
        return None;
    }
    let health: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let model =
        health.as_ref().and_then(|health| health.get("model")).and_then(|model| model.as_str());
    Some(model.map(|model| super::text::visible(model, 100)))
}

#[cfg(test)]
mod tests {
    use super::recognise;

    #[test]
    fn an_answer_is_recognised_by_its_server_header() {
        let ours = b"HTTP/1.1 200 OK\r\nServer: calla/0.1.0\r\n\r\n{\"model\": \"Qwen\\u001b\"}";
        assert_eq!(recognise(ours), Some(Some("Qwen\\u{1b}".to_owned())));
        let loading = b"HTTP/1.1 503 Service Unavailable\r\nserver: calla/9\r\n\r\n{}";
        assert_eq!(recognise(loading), Some(None));
        for other in
            ["", "SSH-2.0\r\n\r\n", "HTTP/1.1 200 OK\r\nServer: nginx\r\n\r\n{\"model\": \"x\"}"]
        {
            assert_eq!(recognise(other.as_bytes()), None);
        }
    }
}
