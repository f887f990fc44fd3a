//! Names of files: hashes over all that their content depends on.

use std::fmt::Write as _;

/// A BLAKE3 hash.
pub(crate) type Key = [u8; 32];

/// What an owner's prefixes under a name start from. Lengths stand before strings, so no two differ only in
/// where one ends.
pub(crate) fn root(version: &Key, owner: &str, name: &str) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key("calla-store 1: prefix");
    hasher.update(version);
    for text in [owner, name] {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Hash of a version's text.
pub(crate) fn version(text: &str) -> Key {
    blake3::derive_key("calla-store 1: version", text.as_bytes())
}

/// Keys of the full pages of a prefix, and the key of the whole prefix.
pub(crate) fn prefix(root: Key, tokens: &[u32], page_tokens: usize) -> (Vec<Key>, Key) {
    let pages = tokens.chunks_exact(page_tokens);
    let rest = pages.remainder();
    let mut key = root;
    let keys: Vec<Key> = pages
        .map(|page| {
            key = next("calla-store 1: page", &key, page);
            key
        })
        .collect();
    let whole = next("calla-store 1: snapshot", &key, rest);
    (keys, whole)
}

fn next(context: &str, key: &Key, tokens: &[u32]) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(key);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Kinds of names in a version's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Snapshot(Key),
    Page(Key),
    Temporary,
}

impl Name {
    /// Reads a file name; `None` if it is no name of this crate.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        if let Some(number) = name.strip_prefix("t-").and_then(|n| n.strip_suffix(".tmp")) {
            return is_hex(number, 16).then_some(Self::Temporary);
        }
        let (kind, hex) = name.strip_suffix(".calla")?.split_at_checked(2)?;
        match kind {
            "s-" => Some(Self::Snapshot(from_hex(hex)?)),
            "p-" => Some(Self::Page(from_hex(hex)?)),
            _ => None,
        }
    }
}

/// File name of a snapshot.
pub(crate) fn snapshot_name(key: &Key) -> String {
    format!("s-{}.calla", hex(key))
}

/// File name of a page.
pub(crate) fn page_name(key: &Key) -> String {
    format!("p-{}.calla", hex(key))
}

/// Name of a version's directory.
pub(crate) fn version_name(key: &Key) -> String {
    format!("v-{}", hex(key))
}

/// Reads the name of a version's directory.
pub(crate) fn parse_version_name(name: &str) -> Option<Key> {
    from_hex(name.strip_prefix("v-")?)
}

fn hex(key: &Key) -> String {
    key.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn from_hex(text: &str) -> Option<Key> {
    if !is_hex(text, 64) {
        return None;
    }
    let mut key = [0; 32];
    for (i, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_nothing_else_is() {
        let key = version("x");
        assert_eq!(Name::parse(&snapshot_name(&key)), Some(Name::Snapshot(key)));
        assert_eq!(Name::parse(&page_name(&key)), Some(Name::Page(key)));
        assert_eq!(Name::parse("t-0123456789abcdef.tmp"), Some(Name::Temporary));
        assert_eq!(parse_version_name(&version_name(&key)), Some(key));
        let upper = page_name(&key).to_uppercase();
        for other in ["", "p", "p-.calla", "é-.calla", "t-0.tmp", "lock", &upper, "p-ä.calla"] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_key_depends_on_everything_before_it() {
        let key = |version: &str, owner: &str, name: &str, tokens: &[u32]| {
            prefix(root(&self::version(version), owner, name), tokens, 2)
        };
        let (pages, whole) = key("v", "ab", "c", &[1, 2, 3, 4, 5]);
        assert_eq!(pages.len(), 2);
        let (longer, other_whole) = key("v", "ab", "c", &[1, 2, 3, 4, 6, 7]);
        assert_eq!(longer[..2], pages);
        assert_ne!(whole, other_whole);
        assert_ne!(whole, key("v", "ab", "c", &[1, 2, 3, 4]).1);
        for (version, owner, name, tokens) in [
            ("w", "ab", "c", [1, 2, 3, 4]),
            ("v", "a", "bc", [1, 2, 3, 4]),
            ("v", "ab", "d", [1, 2, 3, 4]),
            ("v", "ab", "c", [9, 2, 3, 4]),
        ] {
            assert_ne!(key(version, owner, name, &tokens).0[1], pages[1]);
        }
    }
}
