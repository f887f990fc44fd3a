//! Snapshots of sequences' state, found again by the tokens that led to them.
//!
//! The recurrent state of this model cannot be trimmed, only kept. A snapshot is a state slot and the KV
//! pages of a prefix; it lies in a [`Trie`] at the end of that prefix. A request resumes from the deepest
//! snapshot that is a prefix of its prompt, and is told why it was not a deeper one. A snapshot that had to
//! give way may have been saved, in host memory or in a file; the trie remembers that too.

use crate::cuts::CutRule;
use crate::step::{FileId, Level, Ticket};
use crate::trie::{NodeId, Trie};
use std::collections::{BTreeMap, HashMap};

/// Who may share cached prefixes. Timing and reuse never tell one owner of another's prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    /// Whose requests these are (a digest of an API key, say: saved prefixes carry it to disk).
    pub owner: String,
    /// The owner's own subdivision (`prompt_cache_key`).
    pub name: String,
}

/// State kept at the end of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Slot with the recurrent state.
    pub slot: usize,
    /// KV pages that cover the prefix; the last may be partial.
    pub pages: Vec<usize>,
    /// Tokens of the prefix.
    pub tokens: usize,
    /// Decoding had a part in it where decoding rounds differently from prefill: what is computed from it
    /// may differ in the last bits from a cold run.
    pub provisional: bool,
}

/// What a prompt found in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The deepest usable snapshot in memory.
    pub snapshot: Option<Snapshot>,
    /// A deeper one in a file.
    pub saved: Option<Saved>,
    /// How it was reused.
    pub reuse: Reuse,
}

/// A snapshot in a file that serves a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where it is.
    pub file: FileId,
    /// Tokens that it covers.
    pub tokens: usize,
    /// Why it is not a deeper one, as [`Reuse::miss`] will say once it is loaded.
    pub miss: Option<Miss>,
}

/// How much of a prompt was reused, and why not more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Prompt tokens that did not have to be computed.
    pub reused: usize,
    /// Prompt tokens that agree with some earlier sequence under the same key.
    pub common: usize,
    /// Why `reused < common`, or why nothing was found at all.
    pub miss: Option<Miss>,
    /// Where the prompt leaves what was seen before, if it does before its end.
    pub divergence: Option<Divergence>,
    /// What was reused came back from there; `None` if the device's memory had it.
    pub from: Option<Level>,
    /// What was reused is provisional: see [`Snapshot::provisional`].
    pub provisional: bool,
}

/// Where a prompt differs from an earlier sequence that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Index of the first differing token.
    pub token: usize,
    /// Number of the message that it lies in, counted by turn markers from 0.
    pub message: usize,
}

/// Why fewer tokens were reused than agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Nothing like it has been seen.
    Cold,
    /// The same owner has it under another cache name.
    OtherKey,
    /// No snapshot was taken between the reused and the common prefix.
    NoSnapshot,
    /// A snapshot was there and has been evicted.
    Evicted,
}

impl Miss {
    /// Its machine-readable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::OtherKey => "other_key",
            Self::NoSnapshot => "no_snapshot",
            Self::Evicted => "evicted",
        }
    }
}

/// What a trie node carries.
#[derive(Clone, Debug)]
enum Entry {
    /// In memory, and maybe in a file as well.
    Kept { snapshot: Snapshot, stamp: u64, file: Option<FileId> },
    /// On its way to a file; `saving` knows which.
    Saving,
    /// In a file only.
    Saved { file: FileId },
    /// Remembered so that a miss can say why.
    Evicted { stamp: u64 },
}

/// A snapshot that gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its slot and pages, which belong to the caller again.
    pub snapshot: Snapshot,
    /// Set if it is worth a file and has none: whose it is and what led to it. The caller then says
    /// [`PrefixCache::saving`].
    pub save: Option<(CacheKey, Vec<u32>)>,
}

type Place = (CacheKey, NodeId);

/// All snapshots.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    tries: HashMap<CacheKey, Trie<Entry>>,
    /// Kept snapshots, least recently used first.
    kept: BTreeMap<u64, Place>,
    /// Evicted ones that are still remembered, oldest first.
    evicted: BTreeMap<u64, Place>,
    saving: BTreeMap<Ticket, Place>,
    saved: BTreeMap<FileId, Place>,
    clock: u64,
    remembered_tokens_max: usize,
}

impl PrefixCache {
    /// Empty. Tries may hold about `remembered_tokens_max` tokens before the oldest evicted prefixes are
    /// forgotten.
    #[must_use]
    pub fn new(remembered_tokens_max: usize) -> Self {
        Self {
            tries: HashMap::new(),
            kept: BTreeMap::new(),
            evicted: BTreeMap::new(),
            saving: BTreeMap::new(),
            saved: BTreeMap::new(),
            clock: 0,
            remembered_tokens_max,
        }
    }

    /// Finds the deepest snapshot that covers at most all but the last token of `prompt` (whose logits are
    /// needed), and marks it used. `may_resume_at` says at which depths this prompt can be taken up from an
    /// exact snapshot: in split arithmetic at its own cuts only, for what is a cut of an earlier prompt (a
    /// marker followed) may lie inside a chunk of this one.
    pub fn lookup(
        &mut self,
        key: &CacheKey,
        prompt: &[u32],
        rule: &CutRule,
        may_resume_at: impl Fn(usize) -> bool,
    ) -> Lookup {
        let usable = prompt.len().saturating_sub(1);
        let Some(trie) = self.tries.get(key) else {
            return Lookup { snapshot: None, saved: None, reuse: self.unseen(key, prompt) };
        };
        let walk = trie.walk(prompt);
        let kept = |&&(node, depth): &&(NodeId, usize)| match trie.value(node) {
            Some(Entry::Kept { snapshot, .. }) => {
                depth <= usable && (snapshot.provisional || may_resume_at(depth))
            }
            _ => false,
        };
        let deepest = walk.nodes.iter().rev().find(kept).copied();
        let first_part = rule.first_part(prompt);
        let root = walk.nodes.iter().rev().filter(kept).find(|(_, depth)| *depth <= first_part);
        let root = root.copied();
        let reused = deepest.map_or(0, |(_, depth)| depth);
        let miss_beyond = |reused: usize| {
            let is_gone = |&(node, depth): &(NodeId, usize)| {
                let gone = trie.value(node).is_some_and(|e| !matches!(e, Entry::Kept { .. }));
                depth > reused && gone
            };
            match walk.matched {
                0 => self.unseen(key, prompt).miss,
                common if reused >= common.min(usable) => None,
                _ if walk.nodes.iter().any(is_gone) => Some(Miss::Evicted),
                _ => Some(Miss::NoSnapshot),
            }
        };
        let saved = walk.nodes.iter().rev().find_map(|&(node, depth)| match trie.value(node) {
            Some(&Entry::Saved { file })
                if depth > reused && depth <= usable && may_resume_at(depth) =>
            {
                Some(Saved { file, tokens: depth, miss: miss_beyond(depth) })
            }
            _ => None,
        });
        let miss = miss_beyond(reused);
        let at = walk.matched;
        let divergence = (at > 0 && at < prompt.len() && trie.goes_on_after(&walk))
            .then(|| Divergence { token: at, message: rule.markers_in(&prompt[..at]).max(1) - 1 });
        // The end of the system part stays as fresh as the one used; those between age, so that a long loop
        // keeps its root and its newest states.
        for (node, _) in root.into_iter().chain(deepest) {
            self.touch(key, node);
        }
        let snapshot = deepest.and_then(|(node, _)| match self.tries[key].value(node) {
            Some(Entry::Kept { snapshot, .. }) => Some(snapshot.clone()),
            _ => None,
        });
        let provisional = snapshot.as_ref().is_some_and(|s| s.provisional);
        let reuse =
            Reuse { reused, common: walk.matched, miss, divergence, from: None, provisional };
        Lookup { snapshot, saved, reuse }
    }

    /// Nothing agrees under this key; does something under another name of the same owner?
    fn unseen(&self, key: &CacheKey, prompt: &[u32]) -> Reuse {
        let elsewhere = self.tries.iter().any(|(other, trie)| {
            other != key && other.owner == key.owner && trie.walk(prompt).matched > 0
        });
        let miss = if elsewhere { Miss::OtherKey } else { Miss::Cold };
        Reuse { miss: Some(miss), ..Reuse::default() }
    }

    /// Keeps a snapshot of the prefix `tokens`.
    ///
    /// # Errors
    /// Gives a snapshot back: the new one if one at least as good is there, which is marked used, or the one
    /// that was there if it is provisional and the new one is not.
    pub fn insert(
        &mut self,
        key: &CacheKey,
        tokens: &[u32],
        snapshot: Snapshot,
    ) -> Result<(), Snapshot> {
        assert_eq!(snapshot.tokens, tokens.len(), "a snapshot of another prefix");
        let trie = self.tries.entry(key.clone()).or_default();
        let node = trie.insert(tokens);
        let mut file = None;
        match trie.value_mut(node) {
            Some(Entry::Kept { snapshot: there, .. }) => {
                let better = there.provisional && !snapshot.provisional;
                let back = if better { std::mem::replace(there, snapshot) } else { snapshot };
                self.touch(key, node);
                return Err(back);
            }
            Some(Entry::Evicted { stamp }) => {
                self.evicted.remove(stamp);
            }
            Some(Entry::Saved { file: saved }) => file = Some(*saved),
            // When the file is there, the entry learns of it.
            Some(Entry::Saving) | None => {}
        }
        self.clock += 1;
        let stamp = self.clock;
        *trie.value_mut(node) = Some(Entry::Kept { snapshot, stamp, file });
        self.kept.insert(stamp, (key.clone(), node));
        self.forget_old();
        Ok(())
    }

    /// Gives up the least recently used snapshot. One of fewer than `file_tokens_min` tokens is not worth a
    /// file; `None`: none is.
    pub fn evict(&mut self, file_tokens_min: Option<usize>) -> Option<Evicted> {
        let (_, (key, node)) = self.kept.pop_first()?;
        let worth = self.worth_a_file(&key, node, file_tokens_min);
        self.clock += 1;
        let stamp = self.clock;
        let trie = self.tries.get_mut(&key).expect("a kept snapshot has a trie");
        let Some(Entry::Kept { snapshot, file, .. }) = trie.value_mut(node).take() else {
            unreachable!("`kept` names kept entries only");
        };
        // It may have been evicted before and been computed again while its file was being written.
        let place = (key, node);
        let being_saved = self.saving.values().any(|other| *other == place);
        let unsaved = file.is_none() && !being_saved;
        let save = (worth && unsaved).then(|| (place.0.clone(), trie.path(node)));
        *trie.value_mut(node) = Some(match (file, being_saved) {
            (Some(file), _) => Entry::Saved { file },
            (None, true) => Entry::Saving,
            (None, false) => {
                self.evicted.insert(stamp, place);
                Entry::Evicted { stamp }
            }
        });
        self.forget_old();
        Some(Evicted { snapshot, save })
    }

    /// Whether a kept snapshot is exact, long enough, and starts or ends what is remembered of a conversation:
    /// the first, the last, and the one before the last (a template that drops thinking from old turns leaves
    /// the last at once). Those between serve edits of old turns only, and would be most of what is written.
    fn worth_a_file(&self, key: &CacheKey, node: NodeId, tokens_min: Option<usize>) -> bool {
        let trie = &self.tries[key];
        let Some(Entry::Kept { snapshot, .. }) = trie.value(node) else { return false };
        if snapshot.provisional || tokens_min.is_none_or(|min| snapshot.tokens < min) {
            return false;
        }
        let holds = |e: &Entry| !matches!(e, Entry::Evicted { .. });
        !trie.any_above(node, holds) || trie.count_below(node, 2, holds) < 2
    }

    /// A snapshot, evicted or still kept, is being written to a file.
    pub fn saving(&mut self, ticket: Ticket, key: &CacheKey, tokens: &[u32]) {
        let trie = self.tries.entry(key.clone()).or_default();
        let node = trie.insert(tokens);
        if let Some(&Entry::Evicted { stamp }) = trie.value(node) {
            self.evicted.remove(&stamp);
        }
        if !matches!(trie.value(node), Some(Entry::Kept { .. })) {
            *trie.value_mut(node) = Some(Entry::Saving);
        }
        self.saving.insert(ticket, (key.clone(), node));
    }

    /// The file is there, or could not be written.
    pub fn written(&mut self, ticket: Ticket, file: Option<FileId>) {
        let Some((key, node)) = self.saving.remove(&ticket) else { return };
        let trie = self.tries.get_mut(&key).expect("an entry being saved has a trie");
        match (trie.value_mut(node), file) {
            (Some(Entry::Kept { file, .. }), Some(written)) => *file = Some(written),
            (Some(Entry::Kept { .. }), None) => return,
            (value, Some(file)) => *value = Some(Entry::Saved { file }),
            (_, None) => return self.bury(key, node),
        }
        self.saved.insert(file.expect("both arms that come here have one"), (key, node));
    }

    /// A file from an earlier run of the program holds the snapshot of `tokens`. If the prefix is known
    /// already, the file adds nothing and `false` comes back.
    pub fn add_file(&mut self, file: FileId, key: &CacheKey, tokens: &[u32]) -> bool {
        let trie = self.tries.entry(key.clone()).or_default();
        let node = trie.insert(tokens);
        if trie.value(node).is_some() {
            return false;
        }
        *trie.value_mut(node) = Some(Entry::Saved { file });
        self.saved.insert(file, (key.clone(), node));
        true
    }

    /// A file is no more.
    pub fn file_removed(&mut self, file: FileId) {
        let Some((key, node)) = self.saved.remove(&file) else { return };
        let trie = self.tries.get_mut(&key).expect("an entry with a file has a trie");
        match trie.value_mut(node) {
            Some(Entry::Kept { file, .. }) => *file = None,
            _ => self.bury(key, node),
        }
    }

    /// Makes an entry one that is only remembered.
    fn bury(&mut self, key: CacheKey, node: NodeId) {
        self.clock += 1;
        let stamp = self.clock;
        let trie = self.tries.get_mut(&key).expect("an entry has a trie");
        *trie.value_mut(node) = Some(Entry::Evicted { stamp });
        self.evicted.insert(stamp, (key, node));
        self.forget_old();
    }

    /// Forgets everything: the snapshots, and the files that nothing refers to any more. Files that are
    /// being written are not among them; [`PrefixCache::written`] will not know them.
    pub fn clear(&mut self) -> (Vec<Snapshot>, Vec<FileId>) {
        let kept = std::mem::take(&mut self.kept);
        let snapshots = kept.into_values().map(|(key, node)| {
            let trie = self.tries.get_mut(&key).expect("a kept snapshot has a trie");
            let Some(Entry::Kept { snapshot, .. }) = trie.value_mut(node).take() else {
                unreachable!("`kept` names kept entries only");
            };
            snapshot
        });
        let snapshots = snapshots.collect();
        self.tries.clear();
        self.evicted.clear();
        self.saving.clear();
        (snapshots, std::mem::take(&mut self.saved).into_keys().collect())
    }

    /// Whether a file is known that is being written under this ticket.
    #[must_use]
    pub fn is_saving(&self, ticket: Ticket) -> bool {
        self.saving.contains_key(&ticket)
    }

    /// Kept snapshots that are worth a file, as [`PrefixCache::evict`] judges, and have none, the least recently
    /// used first.
    #[must_use]
    pub fn unsaved(&self, file_tokens_min: Option<usize>) -> Vec<(CacheKey, Vec<u32>, Snapshot)> {
        let unsaved = self.kept.values().filter(|place| !self.saving.values().any(|p| p == *place));
        let wanted = unsaved.filter_map(|(key, node)| {
            let trie = &self.tries[key];
            let Some(Entry::Kept { snapshot, file: None, .. }) = trie.value(*node) else {
                return None;
            };
            let worth = self.worth_a_file(key, *node, file_tokens_min);
            worth.then(|| (key.clone(), trie.path(*node), snapshot.clone()))
        });
        wanted.collect()
    }

    /// Snapshots kept in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether no snapshot is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Snapshots that have a file.
    #[must_use]
    pub fn files(&self) -> usize {
        self.saved.len()
    }

    /// Tokens of all prefixes, kept, saved or remembered.
    #[must_use]
    pub fn stored_tokens(&self) -> usize {
        self.tries.values().map(Trie::stored_tokens).sum()
    }

    fn touch(&mut self, key: &CacheKey, node: NodeId) {
        let trie = self.tries.get_mut(key).expect("a node of this key's trie");
        let Some(Entry::Kept { stamp, .. }) = trie.value_mut(node) else { return };
        self.kept.remove(stamp);
        self.clock += 1;
        *stamp = self.clock;
        self.kept.insert(self.clock, (key.clone(), node));
    }

    /// Forgets the oldest evicted prefixes while the tries hold too many tokens.
    fn forget_old(&mut self) {
        while self.stored_tokens() > self.remembered_tokens_max {
            let Some((_, (key, node))) = self.evicted.pop_first() else { return };
            let trie = self.tries.get_mut(&key).expect("an evicted entry has a trie");
            *trie.value_mut(node) = None;
            trie.prune(node);
            if trie.stored_tokens() == 0 {
                self.tries.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> CacheKey {
        CacheKey { owner: "me".into(), name: name.into() }
    }

    fn snapshot(slot: usize, tokens: usize) -> Snapshot {
        Snapshot { slot, pages: vec![slot], tokens, provisional: false }
    }

    fn rule() -> CutRule {
        CutRule::new(vec![9])
    }

    #[test]
    fn the_deepest_snapshot_that_is_a_prefix_is_found() {
        let mut cache = PrefixCache::new(1000);
        let prompt = [9, 1, 2, 9, 3, 4, 9, 5];
        cache.insert(&key("a"), &prompt[..3], snapshot(0, 3)).unwrap();
        cache.insert(&key("a"), &prompt[..6], snapshot(1, 6)).unwrap();
        let found = cache.lookup(&key("a"), &prompt, &rule(), |_| true);
        assert_eq!(found.snapshot, Some(snapshot(1, 6)));
        assert_eq!(found.reuse, Reuse { reused: 6, common: 6, ..Reuse::default() });
        // Exactly the cached prefix: its last token must still run.
        let found = cache.lookup(&key("a"), &prompt[..6], &rule(), |_| true);
        assert_eq!((found.reuse.reused, found.reuse.common), (3, 6));
        assert_eq!(found.reuse.miss, Some(Miss::NoSnapshot));
    }

    #[test]
    fn every_miss_has_its_reason() {
        let mut cache = PrefixCache::new(1000);
        let prompt = [9, 1, 2, 9, 3, 4];
        assert_eq!(
            cache.lookup(&key("a"), &prompt, &rule(), |_| true).reuse.miss,
            Some(Miss::Cold)
        );
        cache.insert(&key("a"), &prompt[..5], snapshot(0, 5)).unwrap();
        assert_eq!(
            cache.lookup(&key("b"), &prompt, &rule(), |_| true).reuse.miss,
            Some(Miss::OtherKey)
        );
        let stranger = CacheKey { owner: "other".into(), name: "a".into() };
        assert_eq!(
            cache.lookup(&stranger, &prompt, &rule(), |_| true).reuse.miss,
            Some(Miss::Cold)
        );
        let edited = [9, 1, 2, 9, 7, 7];
        let reuse = cache.lookup(&key("a"), &edited, &rule(), |_| true).reuse;
        assert_eq!(reuse.miss, Some(Miss::NoSnapshot));
        assert_eq!(reuse.divergence, Some(Divergence { token: 4, message: 1 }));
        assert_eq!(cache.evict(Some(1)).unwrap().snapshot, snapshot(0, 5));
        let reuse = cache.lookup(&key("a"), &prompt, &rule(), |_| true).reuse;
        assert_eq!((reuse.reused, reuse.common, reuse.miss), (0, 5, Some(Miss::Evicted)));
    }

    #[test]
    fn the_root_and_the_newest_outlive_those_between() {
        let mut cache = PrefixCache::new(1000);
        let mut prompt: Vec<u32> = (100..150).collect();
        // The system part ends after 15 tokens, with snapshots inside of it and at its end.
        prompt[15] = 9;
        for (slot, end) in [5, 15, 20, 30, 40].into_iter().enumerate() {
            cache.insert(&key("a"), &prompt[..end], snapshot(slot, end)).unwrap();
            let _ = cache.lookup(&key("a"), &prompt, &rule(), |_| true);
        }
        let order: Vec<usize> =
            std::iter::from_fn(|| cache.evict(Some(1))).map(|e| e.snapshot.tokens).collect();
        assert_eq!(order, [5, 20, 30, 15, 40]);
    }

    #[test]
    fn a_second_snapshot_of_a_prefix_is_given_back() {
        let mut cache = PrefixCache::new(1000);
        cache.insert(&key("a"), &[1, 2], snapshot(0, 2)).unwrap();
        assert_eq!(cache.insert(&key("a"), &[1, 2], snapshot(1, 2)), Err(snapshot(1, 2)));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn old_evicted_prefixes_are_forgotten() {
        let mut cache = PrefixCache::new(30);
        for i in 0..20_u32 {
            cache.insert(&key("a"), &[i; 10], snapshot(0, 10)).unwrap();
            let _ = cache.evict(Some(1));
        }
        assert!(cache.stored_tokens() <= 30);
        assert_eq!(
            cache.lookup(&key("a"), &[19; 11], &rule(), |_| true).reuse.miss,
            Some(Miss::Evicted)
        );
        assert_eq!(
            cache.lookup(&key("a"), &[0; 11], &rule(), |_| true).reuse.miss,
            Some(Miss::Cold)
        );
    }

    #[test]
    fn a_provisional_snapshot_gives_way_to_an_exact_one() {
        let mut cache = PrefixCache::new(1000);
        let provisional = Snapshot { provisional: true, ..snapshot(0, 2) };
        cache.insert(&key("a"), &[1, 2], provisional.clone()).unwrap();
        // Exact snapshots serve at cuts only, provisional ones anywhere.
        let found = cache.lookup(&key("a"), &[1, 2, 3], &rule(), |_| false);
        assert!(found.reuse.provisional && found.reuse.reused == 2);
        assert_eq!(cache.insert(&key("a"), &[1, 2], snapshot(1, 2)), Err(provisional));
        assert_eq!(cache.lookup(&key("a"), &[1, 2, 3], &rule(), |_| false).snapshot, None);
        let found = cache.lookup(&key("a"), &[1, 2, 3], &rule(), |_| true);
        assert_eq!(found.snapshot, Some(snapshot(1, 2)));
    }

    #[test]
    fn the_ends_of_a_conversation_are_worth_a_file_and_those_between_are_not() {
        let mut cache = PrefixCache::new(1000);
        let prompt: Vec<u32> = (0..50).collect();
        for (slot, end) in [10, 20, 30, 40].into_iter().enumerate() {
            cache.insert(&key("a"), &prompt[..end], snapshot(slot, end)).unwrap();
        }
        let worth: Vec<usize> =
            cache.unsaved(Some(1)).iter().map(|(_, tokens, _)| tokens.len()).collect();
        assert_eq!(worth, [10, 30, 40]);
        assert_eq!(cache.unsaved(Some(40)).len(), 1);
        assert_eq!(cache.unsaved(None), []);
        let evicted = cache.evict(Some(1)).unwrap();
        assert_eq!(evicted.save, Some((key("a"), prompt[..10].to_vec())));
        cache.saving(Ticket(0), &key("a"), &prompt[..10]);
        let evicted = cache.evict(Some(1)).unwrap();
        assert_eq!((evicted.snapshot.tokens, evicted.save), (20, None));
    }

    #[test]
    fn a_file_serves_once_it_is_written_and_until_it_is_removed() {
        let mut cache = PrefixCache::new(1000);
        let prompt = [9, 1, 2, 9, 3, 4];
        let find = |cache: &mut PrefixCache| cache.lookup(&key("a"), &prompt, &rule(), |_| true);
        cache.insert(&key("a"), &prompt[..3], snapshot(0, 3)).unwrap();
        assert!(cache.evict(Some(1)).unwrap().save.is_some());
        cache.saving(Ticket(7), &key("a"), &prompt[..3]);
        assert_eq!(find(&mut cache).saved, None);
        cache.written(Ticket(7), Some(FileId(5)));
        let saved = Some(Saved { file: FileId(5), tokens: 3, miss: None });
        assert_eq!(find(&mut cache).saved, saved);
        assert_eq!(cache.files(), 1);
        // In memory again: the file is not needed, and not written a second time.
        cache.insert(&key("a"), &prompt[..3], snapshot(1, 3)).unwrap();
        let found = find(&mut cache);
        assert_eq!((found.saved, found.reuse.reused), (None, 3));
        assert_eq!(cache.evict(Some(1)).unwrap().save, None);
        assert_eq!(find(&mut cache).saved, saved);
        cache.file_removed(FileId(5));
        let found = find(&mut cache);
        assert_eq!((found.saved, found.reuse.miss), (None, Some(Miss::Evicted)));
        // One that could not be written is evicted like any other.
        cache.insert(&key("a"), &prompt[..3], snapshot(0, 3)).unwrap();
        assert!(cache.evict(Some(1)).unwrap().save.is_some());
        cache.saving(Ticket(8), &key("a"), &prompt[..3]);
        cache.written(Ticket(8), None);
        let found = find(&mut cache);
        assert_eq!((found.saved, found.reuse.miss), (None, Some(Miss::Evicted)));
    }

    #[test]
    fn files_of_an_earlier_run_are_found() {
        let mut cache = PrefixCache::new(1000);
        assert!(cache.add_file(FileId(1), &key("a"), &[9, 1]));
        assert!(!cache.add_file(FileId(2), &key("a"), &[9, 1]));
        let found = cache.lookup(&key("a"), &[9, 1, 2], &rule(), |_| true);
        let saved = found.saved.unwrap();
        assert_eq!((saved.file, saved.tokens, saved.miss), (FileId(1), 2, None));
        assert_eq!(cache.clear(), (vec![], vec![FileId(1)]));
    }
}
