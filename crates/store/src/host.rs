//! Saved prefixes in host memory: the level between a device's memory and files.
//!
//! As in files, each full KV page is held once for all snapshots that begin with its tokens. Memory is that of the
//! process: what is dropped is free at once, unless somebody else still holds it.

use crate::key::{self, Key};
use crate::store::Sizes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes that are shared and do not change.
pub type Bytes = Arc<Vec<u8>>;

/// A snapshot's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The recurrent state.
    pub state: Bytes,
    /// KV pages from the first one asked for, in order; the last may be partial.
    pub pages: Vec<Bytes>,
}

impl Held {
    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.state.len() + self.pages.iter().map(|page| page.len()).sum::<usize>()
    }
}

/// Whose prefix it is, and its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// Whose it is.
    pub owner: &'a str,
    /// The owner's name for the group it belongs to.
    pub name: &'a str,
    /// Tokens from the start that the state has seen.
    pub tokens: &'a [u32],
}

/// A snapshot is not held.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostCacheError {
    /// It does not fit under the limit.
    #[error("a prefix of {bytes} bytes does not fit into {limit} bytes of host memory")]
    TooLarge {
        /// Bytes of it, shared pages included.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// What was given does not have the sizes that the cache was made with.
    #[error("cannot hold this prefix: {0}")]
    Mismatch(String),
}

struct Entry {
    state: Bytes,
    /// Keys of its full pages, in order.
    pages: Vec<Key>,
    partial: Option<Bytes>,
    last_use: u64,
}

impl Entry {
    /// Bytes that no other entry shares.
    fn own_bytes(&self) -> u64 {
        (self.state.len() + self.partial.as_ref().map_or(0, |page| page.len())) as u64
    }
}

struct Page {
    bytes: Bytes,
    /// Entries that have it.
    uses: usize,
}

/// Snapshots in host memory, under a limit of bytes. Those used least recently give way.
///
/// Each is named by a number that the caller chooses and never uses twice. Equal tokens of one owner and name are taken to
/// have equal pages, as in a [`Store`](crate::Store).
pub struct HostCache {
    sizes: Sizes,
    limit: u64,
    entries: HashMap<u64, Entry>,
    /// Entries by their last use.
    uses: BTreeMap<u64, u64>,
    pages: HashMap<Key, Page>,
    bytes: u64,
    clock: u64,
}

impl HostCache {
    /// Empty. It holds at most `limit` bytes of state; what is being put comes on top until others have given way.
    ///
    /// # Panics
    /// If pages have no tokens.
    #[must_use]
    pub fn new(sizes: Sizes, limit: u64) -> Self {
        assert!(sizes.page_tokens > 0, "a page has tokens");
        let (entries, uses, pages) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self { sizes, limit, entries, uses, pages, bytes: 0, clock: 0 }
    }

    /// Whether a prefix of so many tokens fits under the limit.
    #[must_use]
    pub fn may_hold(&self, tokens: usize) -> bool {
        self.bytes_of(tokens) <= self.limit
    }

    /// How many of a prefix's full pages, from the first one on, are held and need not be given to [`HostCache::put`].
    #[must_use]
    pub fn pages_held(&self, prefix: Prefix<'_>) -> usize {
        self.keys(prefix).iter().take_while(|key| self.pages.contains_key(*key)).count()
    }

    /// Holds the state after a prefix. `given` has its pages from `first_page` on, of which those that are held already are
    /// dropped. Returns the snapshots that gave way.
    ///
    /// # Errors
    /// If it does not fit, sizes are wrong or a page is neither held nor given: then nothing has changed.
    pub fn put(
        &mut self,
        id: u64,
        prefix: Prefix<'_>,
        first_page: usize,
        given: &Held,
    ) -> Result<Vec<u64>, HostCacheError> {
        let keys = self.keys(prefix);
        self.check(prefix.tokens.len(), &keys, first_page, given)?;
        debug_assert!(!self.entries.contains_key(&id), "a number is used once");
        for (i, key) in keys.iter().enumerate() {
            match self.pages.get_mut(key) {
                Some(page) => page.uses += 1,
                None => {
                    let bytes = Arc::clone(&given.pages[i - first_page]);
                    self.bytes += bytes.len() as u64;
                    self.pages.insert(*key, Page { bytes, uses: 1 });
                }
            }
        }
        let has_partial = !prefix.tokens.len().is_multiple_of(self.sizes.page_tokens);
        let partial = has_partial.then(|| Arc::clone(&given.pages[keys.len() - first_page]));
        self.clock += 1;
        let state = Arc::clone(&given.state);
        let entry = Entry { state, pages: keys, partial, last_use: self.clock };
        self.bytes += entry.own_bytes();
        self.uses.insert(self.clock, id);
        self.entries.insert(id, entry);
        // The new one is the last to go, and alone it fits.
        Ok(self.shrink(self.limit))
    }

    /// A snapshot and its pages from `first_page` on; marks it as used. `None` if it is not held.
    pub fn get(&mut self, id: u64, first_page: usize) -> Option<Held> {
        let entry = self.entries.get_mut(&id)?;
        self.clock += 1;
        self.uses.remove(&entry.last_use);
        entry.last_use = self.clock;
        self.uses.insert(self.clock, id);
        let full = entry.pages.iter().skip(first_page);
        let mut pages: Vec<Bytes> =
            full.map(|key| Some(Arc::clone(&self.pages.get(key)?.bytes))).collect::<Option<_>>()?;
        if first_page <= entry.pages.len() {
            pages.extend(entry.partial.clone());
        }
        Some(Held { state: Arc::clone(&entry.state), pages })
    }

    /// Whether a snapshot is held.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.entries.contains_key(&id)
    }

    /// Drops a snapshot, and the pages that no other has. One that is not held is no error.
    pub fn remove(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.uses.remove(&entry.last_use);
        self.bytes -= entry.own_bytes();
        for key in entry.pages {
            let page = self.pages.get_mut(&key).expect("a page that an entry has is held");
            page.uses -= 1;
            if page.uses == 0 {
                self.bytes -= page.bytes.len() as u64;
                self.pages.remove(&key);
            }
        }
    }

    /// Drops the snapshots that were used least recently, until at most `bytes` are held, and returns them in that order.
    pub fn shrink(&mut self, bytes: u64) -> Vec<u64> {
        let mut dropped = vec![];
        while self.bytes > bytes {
            let Some((_, &id)) = self.uses.first_key_value() else { break };
            self.remove(id);
            dropped.push(id);
        }
        dropped
    }

    /// Bytes of state that are held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes of state that are held.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Snapshots that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys of a prefix's full pages. One process holds state of one version.
    fn keys(&self, prefix: Prefix<'_>) -> Vec<Key> {
        let root = key::root(&key::version("host"), prefix.owner, prefix.name);
        key::prefix(root, prefix.tokens, self.sizes.page_tokens).0
    }

    /// Most bytes of a prefix with so many tokens.
    fn bytes_of(&self, tokens: usize) -> u64 {
        let pages = tokens.div_ceil(self.sizes.page_tokens) as u64;
        self.sizes.state_bytes as u64 + pages * self.sizes.page_bytes as u64
    }

    fn check(
        &self,
        tokens: usize,
        keys: &[Key],
        first_page: usize,
        given: &Held,
    ) -> Result<(), HostCacheError> {
        let bytes = self.bytes_of(tokens);
        if bytes > self.limit {
            return Err(HostCacheError::TooLarge { bytes, limit: self.limit });
        }
        let mismatch = |what: String| Err(HostCacheError::Mismatch(what));
        let Sizes { state_bytes, page_bytes, page_tokens } = self.sizes;
        if given.state.len() != state_bytes {
            let len = given.state.len();
            return mismatch(format!("its state has {len} bytes but must have {state_bytes}"));
        }
        let pages = tokens.div_ceil(page_tokens);
        if first_page + given.pages.len() != pages {
            let count = given.pages.len();
            return mismatch(format!("{count} pages from page {first_page} on, of {pages}"));
        }
        if let Some(i) = keys.iter().take(first_page).position(|key| !self.pages.contains_key(key))
        {
            return mismatch(format!("page {i} is neither held nor given"));
        }
        if first_page > keys.len() {
            return mismatch("the partial page is not given".to_owned());
        }
        for (i, page) in (first_page..).zip(&given.pages) {
            let least = if i < keys.len() { page_bytes } else { 1 };
            if !(least..=page_bytes).contains(&page.len()) {
                let len = page.len();
                return mismatch(format!(
                    "page {i} has {len} bytes but must have from {least} to {page_bytes}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: usize = 100;
    const PAGE: usize = 10;
    const SIZES: Sizes = Sizes { state_bytes: STATE, page_bytes: PAGE, page_tokens: 4 };

    fn prefix(tokens: &[u32]) -> Prefix<'_> {
        Prefix { owner: "me", name: "", tokens }
    }

    /// State and pages whose bytes tell which they are.
    fn held(tag: u8, tokens: &[u32], first_page: usize) -> Held {
        let pages = tokens.chunks(4).skip(first_page);
        let pages = pages.map(|page| Arc::new(vec![page[0] as u8; PAGE])).collect();
        Held { state: Arc::new(vec![tag; STATE]), pages }
    }

    fn put(cache: &mut HostCache, id: u64, tokens: &[u32]) -> Vec<u64> {
        let first_page = cache.pages_held(prefix(tokens));
        cache.put(id, prefix(tokens), first_page, &held(id as u8, tokens, first_page)).unwrap()
    }

    #[test]
    fn what_is_put_comes_back_and_shared_pages_are_held_once() {
        let mut cache = HostCache::new(SIZES, 1000);
        let tokens: Vec<u32> = (0..10).collect();
        assert_eq!(put(&mut cache, 1, &tokens[..8]), []);
        assert_eq!(cache.bytes(), 120);
        assert_eq!(cache.pages_held(prefix(&tokens)), 2);
        assert_eq!(put(&mut cache, 2, &tokens), []);
        // One more state and the partial page.
        assert_eq!((cache.bytes(), cache.len()), (230, 2));
        for first_page in 0..3 {
            assert_eq!(cache.get(2, first_page), Some(held(2, &tokens, first_page)));
        }
        assert_eq!(cache.get(1, 1), Some(held(1, &tokens[..8], 1)));
        // The longer one keeps the pages of the shorter one.
        cache.remove(1);
        assert_eq!((cache.bytes(), cache.get(1, 0)), (130, None));
        assert_eq!(cache.get(2, 0), Some(held(2, &tokens, 0)));
        cache.remove(2);
        cache.remove(2);
        assert_eq!((cache.bytes(), cache.is_empty(), cache.pages.len()), (0, true, 0));
    }

    #[test]
    fn pages_are_shared_by_equal_tokens_of_one_owner_and_name_alone() {
        let mut cache = HostCache::new(SIZES, 1000);
        put(&mut cache, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cache.pages_held(prefix(&[1, 2, 3, 4, 5, 6, 7, 8, 9])), 2);
        assert_eq!(cache.pages_held(prefix(&[1, 2, 3, 4, 5, 6, 7, 9])), 1);
        // The second page depends on the first.
        assert_eq!(cache.pages_held(prefix(&[0, 2, 3, 4, 5, 6, 7, 8])), 0);
        let tokens = &[1, 2, 3, 4];
        assert_eq!(cache.pages_held(Prefix { owner: "you", name: "", tokens }), 0);
        assert_eq!(cache.pages_held(Prefix { owner: "me", name: "other", tokens }), 0);
    }

    #[test]
    fn the_least_recently_used_gives_way_and_the_limit_holds() {
        // Two states with a page of their own each, and not three.
        let mut cache = HostCache::new(SIZES, 329);
        put(&mut cache, 1, &[1; 4]);
        put(&mut cache, 2, &[2; 4]);
        assert!(cache.get(1, 0).is_some());
        assert_eq!(put(&mut cache, 3, &[3; 4]), [2]);
        assert!(cache.contains(1) && !cache.contains(2) && cache.contains(3));
        assert!(cache.bytes() <= cache.limit());
        assert_eq!(cache.shrink(cache.bytes() / 2), [1]);
        assert_eq!(cache.shrink(0), [3]);
        assert_eq!((cache.bytes(), cache.len()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_drops_nothing() {
        let mut cache = HostCache::new(SIZES, 125);
        put(&mut cache, 1, &[1; 4]);
        let long = [2; 12];
        assert!(cache.may_hold(8) && !cache.may_hold(long.len()));
        let refused = cache.put(2, prefix(&long), 0, &held(2, &long, 0));
        assert_eq!(refused, Err(HostCacheError::TooLarge { bytes: 130, limit: 125 }));
        assert_eq!((cache.contains(1), cache.bytes()), (true, 110));
    }

    #[test]
    fn what_is_incomplete_or_of_another_size_is_refused() {
        let mut cache = HostCache::new(SIZES, 1000);
        let tokens = [7; 10];
        let whole = held(1, &tokens, 0);
        let refused = |cache: &mut HostCache, first_page, given: &Held| {
            let put = cache.put(1, prefix(&tokens), first_page, given);
            assert!(matches!(put, Err(HostCacheError::Mismatch(_))), "{put:?}");
            assert_eq!((cache.len(), cache.bytes()), (0, 0));
        };
        // Page 0 is nowhere; one is missing at the end; none is given.
        refused(&mut cache, 1, &held(1, &tokens, 1));
        refused(&mut cache, 0, &held(1, &tokens[..8], 0));
        refused(&mut cache, 3, &held(1, &tokens, 3));
        refused(&mut cache, 0, &Held { state: Arc::new(vec![0; 99]), ..whole.clone() });
        for (page, len) in [(0, PAGE - 1), (1, PAGE + 1), (2, 0)] {
            let mut given = whole.clone();
            given.pages[page] = Arc::new(vec![0; len]);
            refused(&mut cache, 0, &given);
        }
        assert_eq!(cache.put(1, prefix(&tokens), 0, &whole), Ok(vec![]));
    }
}
