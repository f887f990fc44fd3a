//! Responses that clients can come back to, in bounded memory.

use indexmap::IndexMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a store holds at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: usize,
    /// Bytes of JSON.
    pub(super) bytes: usize,
    /// How long a response is kept after it was last asked for.
    pub(super) age: Duration,
}

const BOUNDS: Bounds = Bounds { entries: 4096, bytes: 128 << 20, age: Duration::from_hours(24) };

/// One request and its response.
#[derive(Debug)]
pub(super) struct Turn {
    /// The request's items, a JSON list.
    pub(super) input: String,
    /// The response, a JSON object.
    pub(super) response: String,
    /// Ids of the response's items.
    item_ids: Vec<String>,
    /// Bytes of all turns that are held.
    held: Arc<AtomicUsize>,
}

impl Turn {
    fn bytes(&self) -> usize {
        self.input.len() + self.response.len()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// A response to keep.
#[derive(Debug)]
pub(super) struct NewTurn {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) input: String,
    pub(super) response: String,
    pub(super) item_ids: Vec<String>,
    /// The turns before it, first to last.
    pub(super) before: Vec<Arc<Turn>>,
}

/// Kept responses. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    inner: Arc<Mutex<Inner>>,
    held: Arc<AtomicUsize>,
    bounds: Bounds,
}

#[derive(Debug, Default)]
struct Inner {
    /// By response id, the one that was used last at the end.
    entries: IndexMap<String, Entry>,
    /// From an output item's id to its response's.
    items: HashMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    owner: String,
    /// The turns up to this one, which is the last. They stay although their own entries go.
    turns: Vec<Arc<Turn>>,
    used: Instant,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(BOUNDS)
    }
}

impl Store {
    fn new(bounds: Bounds) -> Self {
        Self { inner: Arc::default(), held: Arc::default(), bounds }
    }

    /// Keeps a response; what was used longest ago makes room for it. One that is larger than the whole store
    /// is not kept.
    pub(super) fn put(&self, turn: NewTurn) {
        let NewTurn { id, owner, input, response, item_ids, before } = turn;
        let bytes = input.len() + response.len();
        if bytes > self.bounds.bytes {
            tracing::warn!("a response of {bytes} bytes is larger than the store and not kept");
            return;
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        let held = Arc::clone(&self.held);
        let turn = Turn { input, response, item_ids, held };
        let mut inner = self.lock();
        for item in &turn.item_ids {
            inner.items.insert(item.clone(), id.clone());
        }
        let mut turns = before;
        turns.push(Arc::new(turn));
        inner.entries.insert(id, Entry { owner, turns, used: Instant::now() });
        while inner.entries.len() > self.bounds.entries
            || self.held.load(Ordering::Relaxed) > self.bounds.bytes && inner.entries.len() > 1
        {
            inner.remove_oldest();
        }
    }

    /// The turns up to a response of this owner, which is the last of them.
    pub(super) fn turns(&self, owner: &str, id: &str) -> Option<Vec<Arc<Turn>>> {
        let mut inner = self.lock();
        inner.entries.get(id).filter(|entry| entry.owner == owner)?;
        let (id, mut entry) = inner.entries.shift_remove_entry(id)?;
        entry.used = Instant::now();
        let turns = entry.turns.clone();
        inner.entries.insert(id, entry);
        Some(turns)
    }

    /// A response of this owner.
    pub(super) fn turn(&self, owner: &str, id: &str) -> Option<Arc<Turn>> {
        self.turns(owner, id)?.pop()
    }

    /// The response of this owner that an output item belongs to.
    pub(super) fn turn_of_item(&self, owner: &str, item_id: &str) -> Option<Arc<Turn>> {
        let id = self.lock().items.get(item_id)?.clone();
        self.turn(owner, &id)
    }

    /// Forgets a response of this owner, if it is there.
    pub(super) fn remove(&self, owner: &str, id: &str) -> bool {
        let mut inner = self.lock();
        if inner.entries.get(id).is_none_or(|entry| entry.owner != owner) {
            return false;
        }
        if let Some(entry) = inner.entries.shift_remove(id) {
            inner.forget_items(&entry);
        }
        true
    }

    /// Locks, after what is too old has gone.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        while inner.entries.first().is_some_and(|(_, entry)| entry.used.elapsed() > self.bounds.age)
        {
            inner.remove_oldest();
        }
        inner
    }
}

impl Inner {
    fn remove_oldest(&mut self) {
        if let Some((_, entry)) = self.entries.shift_remove_index(0) {
            self.forget_items(&entry);
        }
    }

    fn forget_items(&mut self, entry: &Entry) {
        for item in entry.turns.last().iter().flat_map(|turn| &turn.item_ids) {
            self.items.remove(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(entries: usize, bytes: usize, age: Duration) -> Store {
        Store::new(Bounds { entries, bytes, age })
    }

    fn put(store: &Store, owner: &str, id: &str, before: Vec<Arc<Turn>>) {
        store.put(NewTurn {
            id: id.into(),
            owner: owner.into(),
            input: "i".repeat(40),
            response: "r".repeat(60),
            item_ids: vec![format!("msg_{id}")],
            before,
        });
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn owners_see_only_their_own() {
        let store = store(10, 10_000, LONG);
        put(&store, "a", "1", vec![]);
        assert!(store.turn("a", "1").is_some());
        assert!(store.turn_of_item("a", "msg_1").is_some());
        assert!(store.turn("b", "1").is_none() && store.turn_of_item("b", "msg_1").is_none());
        assert!(!store.remove("b", "1"));
        assert!(store.remove("a", "1") && !store.remove("a", "1"));
        assert!(store.turn_of_item("a", "msg_1").is_none());
        assert_eq!(store.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let by_entries = store(2, 10_000, LONG);
        let by_bytes = store(10, 250, LONG);
        for store in [by_entries, by_bytes] {
            put(&store, "", "1", vec![]);
            put(&store, "", "2", vec![]);
            assert!(store.turn("", "1").is_some());
            put(&store, "", "3", vec![]);
            assert!(store.turn("", "2").is_none() && store.turn_of_item("", "msg_2").is_none());
            assert!(store.turn("", "1").is_some() && store.turn("", "3").is_some());
            assert_eq!(store.held.load(Ordering::Relaxed), 200);
        }
    }

    #[test]
    fn one_that_is_larger_than_the_store_does_not_empty_it() {
        let store = store(10, 150, LONG);
        put(&store, "", "1", vec![]);
        store.put(NewTurn {
            id: "2".into(),
            owner: String::new(),
            input: "i".repeat(200),
            response: String::new(),
            item_ids: vec![],
            before: vec![],
        });
        assert!(store.turn("", "1").is_some() && store.turn("", "2").is_none());
    }

    #[test]
    fn a_conversation_outlives_its_first_turns() {
        let store = store(1, 10_000, LONG);
        put(&store, "", "1", vec![]);
        let before = store.turns("", "1").unwrap();
        put(&store, "", "2", before);
        assert!(store.turn("", "1").is_none());
        assert_eq!(store.turns("", "2").unwrap().len(), 2);
        assert_eq!(store.held.load(Ordering::Relaxed), 200);
        assert!(store.remove("", "2"));
        assert_eq!(store.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn old_ones_go() {
        let store = store(10, 10_000, Duration::ZERO);
        put(&store, "", "1", vec![]);
        std::thread::sleep(Duration::from_millis(2));
        assert!(store.turn("", "1").is_none());
    }
}
