//! Snapshots of sequences' state, found again by the tokens that led to them.
//!
//! The recurrent state of this model cannot be trimmed, only kept. A snapshot is a state slot and the KV
//! pages of a prefix; it lies in a [`Trie`] at the end of that prefix. A request resumes from the deepest
//! snapshot that is a prefix of its prompt, and is told why it was not a deeper one.

use crate::cuts::CutRule;
use crate::trie::{NodeId, Trie};
use std::collections::{BTreeMap, HashMap};

/// Who may share cached prefixes. Timing and reuse never tell one owner of another's prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    /// Whose requests these are (an API key, say).
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
}

/// What a prompt found in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The deepest usable snapshot.
    pub snapshot: Option<Snapshot>,
    /// How it was reused.
    pub reuse: Reuse,
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

/// What a trie node carries.
#[derive(Clone, Debug)]
enum Entry {
    Kept {
        snapshot: Snapshot,
        stamp: u64,
    },
    /// Remembered so that a miss can say why.
    Evicted {
        stamp: u64,
    },
}

/// All snapshots.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    tries: HashMap<CacheKey, Trie<Entry>>,
    /// Kept snapshots, least recently used first.
    kept: BTreeMap<u64, (CacheKey, NodeId)>,
    /// Evicted ones that are still remembered, oldest first.
    evicted: BTreeMap<u64, (CacheKey, NodeId)>,
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
            clock: 0,
            remembered_tokens_max,
        }
    }

    /// Finds the deepest snapshot that covers at most all but the last token of `prompt` (whose logits are
    /// needed), and marks it used. `may_resume_at` says at which depths this prompt can be taken up: in
    /// split arithmetic at its own cuts only, for what is a cut of an earlier prompt (a marker followed)
    /// may lie inside a chunk of this one.
    pub fn lookup(
        &mut self,
        key: &CacheKey,
        prompt: &[u32],
        rule: &CutRule,
        may_resume_at: impl Fn(usize) -> bool,
    ) -> Lookup {
        let usable = prompt.len().saturating_sub(1);
        let Some(trie) = self.tries.get(key) else {
            return Lookup { snapshot: None, reuse: self.unseen(key, prompt) };
        };
        let walk = trie.walk(prompt);
        let kept = |&&(node, depth): &&(NodeId, usize)| {
            let kept = matches!(trie.value(node), Some(Entry::Kept { .. }));
            kept && depth <= usable && may_resume_at(depth)
        };
        let deepest = walk.nodes.iter().rev().find(kept).copied();
        let shallowest = walk.nodes.iter().find(kept).copied();
        let reused = deepest.map_or(0, |(_, depth)| depth);
        let evicted = walk.nodes.iter().any(|&(node, depth)| {
            depth > reused && matches!(trie.value(node), Some(Entry::Evicted { .. }))
        });
        let miss = match walk.matched {
            0 => self.unseen(key, prompt).miss,
            common if reused >= common.min(usable) => None,
            _ if evicted => Some(Miss::Evicted),
            _ => Some(Miss::NoSnapshot),
        };
        let at = walk.matched;
        let divergence = (at > 0 && at < prompt.len() && trie.goes_on_after(&walk))
            .then(|| Divergence { token: at, message: rule.markers_in(&prompt[..at]).max(1) - 1 });
        let reuse = Reuse { reused, common: walk.matched, miss, divergence };
        // The shallowest (the end of the system part, usually) stays as fresh as the one used; those
        // between age, so that a long loop keeps its root and its newest states.
        for (node, _) in shallowest.into_iter().chain(deepest) {
            self.touch(key, node);
        }
        let snapshot = deepest.and_then(|(node, _)| match self.tries[key].value(node) {
            Some(Entry::Kept { snapshot, .. }) => Some(snapshot.clone()),
            _ => None,
        });
        Lookup { snapshot, reuse }
    }

    /// Nothing agrees under this key; does something under another name of the same owner?
    fn unseen(&self, key: &CacheKey, prompt: &[u32]) -> Reuse {
        let elsewhere = self.tries.iter().any(|(other, trie)| {
            other != key && other.owner == key.owner && trie.walk(prompt).matched > 0
        });
        let miss = if elsewhere { Miss::OtherKey } else { Miss::Cold };
        Reuse { miss: Some(miss), ..Reuse::default() }
    }

    /// Keeps a snapshot of the prefix `tokens`. If one is there already it is marked used, and the new one
    /// is given back.
    pub fn insert(
        &mut self,
        key: &CacheKey,
        tokens: &[u32],
        snapshot: Snapshot,
    ) -> Result<(), Snapshot> {
        assert_eq!(snapshot.tokens, tokens.len(), "a snapshot of another prefix");
        let trie = self.tries.entry(key.clone()).or_default();
        let node = trie.insert(tokens);
        match trie.value(node) {
            Some(Entry::Kept { .. }) => {
                self.touch(key, node);
                return Err(snapshot);
            }
            Some(&Entry::Evicted { stamp }) => {
                self.evicted.remove(&stamp);
            }
            None => {}
        }
        self.clock += 1;
        *trie.value_mut(node) = Some(Entry::Kept { snapshot, stamp: self.clock });
        self.kept.insert(self.clock, (key.clone(), node));
        self.forget_old();
        Ok(())
    }

    /// Gives up the least recently used snapshot; its slot and pages belong to the caller again.
    pub fn evict(&mut self) -> Option<Snapshot> {
        let (_, (key, node)) = self.kept.pop_first()?;
        self.clock += 1;
        let trie = self.tries.get_mut(&key).expect("a kept snapshot has a trie");
        let value = trie.value_mut(node);
        let Some(Entry::Kept { snapshot, .. }) =
            value.replace(Entry::Evicted { stamp: self.clock })
        else {
            unreachable!("`kept` names kept entries only");
        };
        self.evicted.insert(self.clock, (key, node));
        self.forget_old();
        Some(snapshot)
    }

    /// Snapshots kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether no snapshot is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Tokens of all prefixes, kept or remembered.
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
        Snapshot { slot, pages: vec![slot], tokens }
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
        assert_eq!(found.reuse, Reuse { reused: 6, common: 6, miss: None, divergence: None });
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
        assert_eq!(cache.evict(), Some(snapshot(0, 5)));
        let reuse = cache.lookup(&key("a"), &prompt, &rule(), |_| true).reuse;
        assert_eq!((reuse.reused, reuse.common, reuse.miss), (0, 5, Some(Miss::Evicted)));
    }

    #[test]
    fn the_root_and_the_newest_outlive_those_between() {
        let mut cache = PrefixCache::new(1000);
        let prompt: Vec<u32> = (0..50).collect();
        for (slot, end) in [10, 20, 30, 40].into_iter().enumerate() {
            cache.insert(&key("a"), &prompt[..end], snapshot(slot, end)).unwrap();
            let _ = cache.lookup(&key("a"), &prompt, &rule(), |_| true);
        }
        let order: Vec<usize> = std::iter::from_fn(|| cache.evict()).map(|s| s.tokens).collect();
        assert_eq!(order, [20, 30, 10, 40]);
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
            let _ = cache.evict();
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
}
