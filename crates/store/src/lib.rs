//! Saved prefixes, recurrent states and KV pages: in host memory ([`HostCache`]), and in files that survive a restart
//! ([`Store`]).
//!
//! ```text
//! DIR/v-HASH/version     what the files below depend on; HASH is its hash
//! DIR/v-HASH/lock        locked by the process that uses the directory
//! DIR/v-HASH/s-KEY.calla one snapshot: tokens, recurrent state, the last page if it is not full
//! DIR/v-HASH/p-KEY.calla one full KV page, shared by all snapshots that start with its tokens
//! DIR/v-HASH/t-N.tmp     a file that is being written
//! ```
//!
//! A page's KEY is a hash over version, owner, name and all tokens from the start to the page's end: the same
//! key has the same content, and an owner never meets another's files. Every file carries a checksum and
//! gets its name when it is complete. Nothing in the directory is trusted: links are not followed, lengths
//! are checked against the file and the caller's sizes before memory is taken. A regular file with one of these
//! names in the locked directory is the store's, whatever it holds: a loss of power leaves files of zeros. In
//! other versions' directories it must carry the mark of this crate too. Nothing else is ever removed.

mod directory;
mod error;
mod file;
mod host;
mod key;
mod others;
mod shelf;
mod snapshot;
mod store;

pub use error::StoreError;
pub use host::{Bytes, Held, HostCache, HostCacheError, Prefix};
pub use store::{Limits, Loaded, Put, Sizes, Store, Stored, StoredId};
