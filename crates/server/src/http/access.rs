//! Who may use the server: keys, host names and origins, as the operator listed them.

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

/// Shorter keys can be guessed from the owners that the prefix cache stores.
const KEY_LENGTH_ADVISED: usize = 16;

/// Who may use the server.
///
/// * Keys: with at least one, requests need it, except for the [open paths](Self::with_open_paths).
/// * Hosts: names by which clients may call the server, besides `localhost`, loopback addresses and the
///   address that the connection came in at.
/// * Origins: web pages, besides the server's own, that may call it. `*` is refused, with or without keys: it
///   would let every page that the user visits spend the machine's time or try keys.
#[derive(Clone)]
pub struct Access {
    keys: Vec<Key>,
    hosts: Vec<String>,
    origins: Vec<String>,
    open_paths: &'static [&'static str],
}

/// Whose request it is: a digest of its API key, which does not reveal the key and may be stored; empty when
/// the server has no keys. Prefix caches are kept apart by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub String);

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// A key, as what is needed to recognise it.
#[derive(Clone)]
struct Key {
    /// Equal lengths, so that comparing them tells nothing of the key's.
    digest: [u8; 32],
    owner: String,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("keys", &self.keys.len())
            .field("hosts", &self.hosts)
            .field("origins", &self.origins)
            .field("open_paths", &self.open_paths)
            .finish()
    }
}

/// Options that leave the server unsafe or cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Other machines could connect, and nothing would stop them.
    #[error(
        "{0} can be reached from other machines, and no key protects it: give --api-key KEY, or listen on \
         127.0.0.1"
    )]
    OpenToOthers(SocketAddr),
    /// A key that no client can send.
    #[error(
        "API key number {0} is empty or has characters other than visible ASCII, which no client can send"
    )]
    Key(usize),
    /// Not a host name.
    #[error(
        "--allowed-host {0:?} is not a host name or address: give it without scheme, port, path or wildcard, \
         as in --allowed-host my-machine.local"
    )]
    Host(String),
    /// Not an origin.
    #[error(
        "--allowed-origin {0:?} is not one origin: give scheme, host and port as the browser sends them, \
         without a path or a wildcard, as in --allowed-origin https://chat.example.com"
    )]
    Origin(String),
}

impl Access {
    /// Access for these keys, host names and origins; each list may be empty.
    ///
    /// # Errors
    ///
    /// When an entry cannot be sent by any client, or is a wildcard.
    pub fn new<S: AsRef<str>>(
        keys: &[S],
        allowed_hosts: &[S],
        allowed_origins: &[S],
    ) -> Result<Self, AccessError> {
        let keys = keys.iter().enumerate().map(|(index, key)| Key::new(index, key.as_ref()));
        let hosts = allowed_hosts.iter().map(|host| parse_host(host.as_ref()));
        let origins = allowed_origins.iter().map(|origin| parse_origin(origin.as_ref()));
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
            hosts: hosts.collect::<Result<_, _>>()?,
            origins: origins.collect::<Result<_, _>>()?,
            open_paths: &["/", "/health"],
        })
    }

    /// Replaces the paths that can be read (GET, HEAD) without a key, `/` and `/health` unless given. One
    /// that ends in `/` stands for all below it too, except `/` itself.
    #[must_use]
    pub fn with_open_paths(mut self, paths: &'static [&'static str]) -> Self {
        self.open_paths = paths;
        self
    }

    /// Whether `address` may be listened on.
    ///
    /// # Errors
    ///
    /// When other machines can reach it and there is no key.
    pub fn check_bind(&self, address: SocketAddr) -> Result<(), AccessError> {
        let is_private = address.ip().to_canonical().is_loopback();
        if is_private || self.needs_key() {
            return Ok(());
        }
        Err(AccessError::OpenToOthers(address))
    }

    /// Whether requests need a key.
    #[must_use]
    pub fn needs_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether `path` can be read without a key.
    pub(super) fn is_open(&self, path: &str) -> bool {
        self.open_paths.iter().any(|open| {
            path == *open || (open.len() > 1 && open.ends_with('/') && path.starts_with(open))
        })
    }

    /// The owner of a key; none when it is not one of ours. Takes the same time whichever it is.
    pub(super) fn owner_of(&self, key: &[u8]) -> Option<&str> {
        let digest = *blake3::hash(key).as_bytes();
        let mut found = Choice::from(0);
        let mut index = 0_u64;
        for (ours, number) in self.keys.iter().zip(0_u64..) {
            let is_equal = ours.digest.ct_eq(&digest);
            index.conditional_assign(&number, is_equal);
            found |= is_equal;
        }
        if !bool::from(found) {
            return None;
        }
        let index = usize::try_from(index).ok()?;
        self.keys.get(index).map(|key| key.owner.as_str())
    }

    /// Whether a request may call the server by this name. `local` is the address that its connection came
    /// in at.
    ///
    /// Addresses cannot be rebound to, names can; so one's own address is safe to accept.
    pub(super) fn allows_host(&self, authority: &Authority, local: Option<SocketAddr>) -> bool {
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_ours = address.is_ok_and(|address| {
            let address = address.to_canonical();
            address.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == address)
        });
        is_ours || host == "localhost" || self.hosts.contains(&host)
    }

    /// Whether pages of this origin may call the server.
    pub(super) fn allows_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == origin)
    }
}

impl Key {
    fn new(index: usize, key: &str) -> Result<Self, AccessError> {
        let is_sendable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sendable {
            return Err(AccessError::Key(index + 1));
        }
        if key.len() < KEY_LENGTH_ADVISED {
            tracing::warn!(
                "API key number {} has fewer than {KEY_LENGTH_ADVISED} characters and can be guessed",
                index + 1
            );
        }
        // Another function of the key than the digest: owners are written to disk.
        let owner = blake3::derive_key("calla 2026-12 owner of cached prefixes", key.as_bytes());
        Ok(Self {
            digest: *blake3::hash(key.as_bytes()).as_bytes(),
            owner: blake3::Hash::from(owner).to_hex().to_string(),
        })
    }
}

fn parse_host(text: &str) -> Result<String, AccessError> {
    let bare = text.trim_end_matches('.').to_ascii_lowercase();
    // An IPv6 address may come without the brackets that it has in a header.
    let host = match bare.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => format!("[{bare}]"),
        _ => bare,
    };
    let is_host = host.parse::<Authority>().is_ok_and(|authority| {
        authority.host() == host && authority.as_str() == host && !host.contains(['*', '@'])
    });
    if is_host { Ok(host) } else { Err(AccessError::Host(text.to_owned())) }
}

fn parse_origin(text: &str) -> Result<String, AccessError> {
    let error = || AccessError::Origin(text.to_owned());
    let (scheme, host) = text.split_once("://").ok_or_else(error)?;
    let is_web = matches!(scheme, "http" | "https");
    let is_scheme = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"*/?#@,".contains(&byte));
    if !is_scheme || !is_host || (is_web && host.is_empty()) {
        return Err(error());
    }
    // Browsers write them in lower case and leave out the scheme's own port.
    let text = text.to_ascii_lowercase();
    let port = if scheme == "https" { ":443" } else { ":80" };
    let text = if is_web { text.strip_suffix(port).unwrap_or(&text) } else { &text };
    let is_uri = !is_web || text.parse::<Uri>().is_ok();
    if is_uri { Ok(text.to_owned()) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &[&str] = &[];

    #[test]
    fn other_machines_need_a_key() {
        let open = Access::new(NONE, NONE, NONE).unwrap();
        let keyed = Access::new(&["0123456789abcdef"], NONE, NONE).unwrap();
        for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(open.check_bind(address.parse().unwrap()), Ok(()), "{address}");
        }
        for address in
            ["0.0.0.0:80", "[::]:80", "192.168.1.5:80", "[fe80::1]:80", "[::ffff:10.0.0.1]:80"]
        {
            let address = address.parse().unwrap();
            let error = open.check_bind(address).unwrap_err();
            assert!(error.to_string().contains("--api-key"), "{error}");
            assert_eq!(keyed.check_bind(address), Ok(()));
        }
    }

    #[test]
    fn keys_are_recognised_and_not_kept() {
        let keys = ["first-key-of-two-", "second-key-of-two"];
        let access = Access::new(&keys, NONE, NONE).unwrap();
        let owners = keys.map(|key| access.owner_of(key.as_bytes()).unwrap().to_owned());
        assert_ne!(owners[0], owners[1]);
        for wrong in ["", "first-key-of-two", "first-key-of-two-x", "FIRST-KEY-OF-TWO-"] {
            assert_eq!(access.owner_of(wrong.as_bytes()), None, "{wrong}");
        }
        let shown = format!("{access:?}");
        for (key, owner) in keys.iter().zip(&owners) {
            assert!(!shown.contains(key) && !owner.contains(key), "{shown}");
            assert_ne!(*owner, blake3::hash(key.as_bytes()).to_hex().to_string());
            assert_eq!(owner.len(), 64);
        }
        for bad in ["", "with space", "new\nline", "é"] {
            let error = Access::new(&["good-good-good-good", bad], NONE, NONE).unwrap_err();
            assert_eq!(error, AccessError::Key(2), "{bad:?}");
            assert!(bad.is_empty() || !error.to_string().contains(bad));
        }
    }

    #[test]
    fn hosts_are_ours_or_listed() {
        let access = Access::new(NONE, &["My-Machine.local", "fd00::5"], NONE).unwrap();
        let local: Option<SocketAddr> = Some("192.168.1.5:8080".parse().unwrap());
        let allows = |host: &str| access.allows_host(&host.parse().unwrap(), local);
        let ours =
            ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:8080", "[::1]:80", "192.168.1.5"];
        for host in ours.into_iter().chain(["my-machine.local:9", "[fd00::5]"]) {
            assert!(allows(host), "{host}");
        }
        let others =
            ["evil.example", "localhost.evil.example", "192.168.1.6", "127.0.0.1.evil.example"];
        for host in others.into_iter().chain(["xlocalhost", "0.0.0.0", "[::2]:80"]) {
            assert!(!allows(host), "{host}");
        }
    }

    #[test]
    fn hosts_and_origins_that_mean_nothing_are_refused() {
        for bad in ["*", "*.example.com", "http://a", "a:80", "a/b", "", "user@a", "a b"] {
            assert_eq!(Access::new(NONE, &[bad], NONE).unwrap_err(), AccessError::Host(bad.into()));
        }
        for bad in [
            "*",
            "null",
            "https://*",
            "https://a/",
            "a.example",
            "",
            "https://",
            "https://a,b",
            "://a",
        ] {
            assert_eq!(
                Access::new(NONE, NONE, &[bad]).unwrap_err(),
                AccessError::Origin(bad.into())
            );
        }
        let good = ["https://Chat.example:443", "http://a:8080", "app://obsidian.md", "file://"];
        let access = Access::new(NONE, NONE, &good).unwrap();
        for origin in ["https://chat.example", "http://a:8080", "app://obsidian.md", "file://"] {
            assert!(access.allows_origin(origin), "{origin}");
        }
        assert!(!access.allows_origin("http://chat.example") && !access.allows_origin("http://a"));
    }

    #[test]
    fn open_paths_are_exact_unless_they_end_in_a_slash() {
        let access =
            Access::new(NONE, NONE, NONE).unwrap().with_open_paths(&["/", "/health", "/page/"]);
        for path in ["/", "/health", "/page/", "/page/app.js"] {
            assert!(access.is_open(path), "{path}");
        }
        for path in ["/v1/models", "/healthy", "/health/", "/pages", "//", "/%68ealth", ""] {
            assert!(!access.is_open(path), "{path}");
        }
    }
}
