//! A radix tree over token sequences: which prefixes have been seen, and what is kept at their ends.

use std::collections::BTreeMap;

/// A node of a [`Trie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(usize);

/// Token sequences that share prefixes. Each node may carry a value of type `V`.
#[derive(Clone, Debug)]
pub struct Trie<V> {
    nodes: Vec<Option<Node<V>>>,
    free: Vec<usize>,
    tokens: usize,
}

#[derive(Clone, Debug)]
struct Node<V> {
    parent: Option<NodeId>,
    /// Tokens from the parent to here; empty only at the root.
    edge: Vec<u32>,
    /// Children by the first token of their edge.
    children: BTreeMap<u32, NodeId>,
    value: Option<V>,
}

/// How far a sequence runs along the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Nodes passed, the root included, with the number of tokens before each.
    pub nodes: Vec<(NodeId, usize)>,
    /// Tokens that agree with some sequence of the tree.
    pub matched: usize,
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        let root = Node { parent: None, edge: vec![], children: BTreeMap::new(), value: None };
        Self { nodes: vec![Some(root)], free: vec![], tokens: 0 }
    }
}

const ROOT: NodeId = NodeId(0);

impl<V> Trie<V> {
    /// Follows `tokens` as far as the tree goes.
    #[must_use]
    pub fn walk(&self, tokens: &[u32]) -> Walk {
        let mut walk = Walk { nodes: vec![(ROOT, 0)], matched: 0 };
        let mut node = ROOT;
        while let Some(&child) =
            tokens.get(walk.matched).and_then(|first| self.node(node).children.get(first))
        {
            let edge = &self.node(child).edge;
            let common = common_prefix(edge, &tokens[walk.matched..]);
            walk.matched += common;
            if common < edge.len() {
                break;
            }
            node = child;
            walk.nodes.push((node, walk.matched));
        }
        walk
    }

    /// The node at the end of `tokens`, made if it is not there.
    pub fn insert(&mut self, tokens: &[u32]) -> NodeId {
        let walk = self.walk(tokens);
        let &(node, depth) = walk.nodes.last().expect("the root at least");
        let node = if walk.matched > depth {
            self.split(node, &tokens[depth..walk.matched])
        } else {
            node
        };
        if walk.matched == tokens.len() {
            return node;
        }
        let edge = tokens[walk.matched..].to_vec();
        self.tokens += edge.len();
        self.add(node, edge)
    }

    /// Cuts the edge below `node` that starts with `prefix`; the new node lies at its end.
    fn split(&mut self, node: NodeId, prefix: &[u32]) -> NodeId {
        let lower = self.node(node).children[&prefix[0]];
        let middle = self.add(node, prefix.to_vec());
        let rest = self.node(lower).edge[prefix.len()..].to_vec();
        self.node_mut(middle).children.insert(rest[0], lower);
        let lower = self.node_mut(lower);
        lower.edge = rest;
        lower.parent = Some(middle);
        middle
    }

    fn add(&mut self, parent: NodeId, edge: Vec<u32>) -> NodeId {
        let first = edge[0];
        let node = Node { parent: Some(parent), edge, children: BTreeMap::new(), value: None };
        let id = match self.free.pop() {
            Some(index) => {
                self.nodes[index] = Some(node);
                NodeId(index)
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() - 1)
            }
        };
        self.node_mut(parent).children.insert(first, id);
        id
    }

    /// Whether some sequence goes on beyond the end of a walk, so that what was walked left it there.
    #[must_use]
    pub fn goes_on_after(&self, walk: &Walk) -> bool {
        let &(node, depth) = walk.nodes.last().expect("the root at least");
        walk.matched > depth || !self.node(node).children.is_empty()
    }

    /// What a node carries.
    #[must_use]
    pub fn value(&self, node: NodeId) -> Option<&V> {
        self.node(node).value.as_ref()
    }

    /// What a node carries, to change.
    pub fn value_mut(&mut self, node: NodeId) -> &mut Option<V> {
        &mut self.node_mut(node).value
    }

    /// Tokens from the root to a node.
    #[must_use]
    pub fn path(&self, node: NodeId) -> Vec<u32> {
        let mut edges = vec![];
        let mut next = Some(node);
        while let Some(id) = next {
            edges.push(self.node(id).edge.as_slice());
            next = self.node(id).parent;
        }
        edges.into_iter().rev().flatten().copied().collect()
    }

    /// Whether a node between `node` and the root carries something that `wanted` accepts.
    #[must_use]
    pub fn any_above(&self, node: NodeId, wanted: impl Fn(&V) -> bool) -> bool {
        let mut next = self.node(node).parent;
        while let Some(id) = next {
            if self.value(id).is_some_and(&wanted) {
                return true;
            }
            next = self.node(id).parent;
        }
        false
    }

    /// How many nodes below `node`, counted up to `max`, carry something that `wanted` accepts.
    #[must_use]
    pub fn count_below(&self, node: NodeId, max: usize, wanted: impl Fn(&V) -> bool) -> usize {
        let mut left: Vec<NodeId> = self.node(node).children.values().copied().collect();
        let mut count = 0;
        while count < max
            && let Some(id) = left.pop()
        {
            count += usize::from(self.value(id).is_some_and(&wanted));
            left.extend(self.node(id).children.values());
        }
        count
    }

    /// Removes a node without value and children, and then its ancestors while they are like that too.
    pub fn prune(&mut self, node: NodeId) {
        let mut next = node;
        while next != ROOT {
            let here = self.node(next);
            if here.value.is_some() || !here.children.is_empty() {
                return;
            }
            let (parent, first) = (here.parent.expect("not the root"), here.edge[0]);
            self.tokens -= here.edge.len();
            self.nodes[next.0] = None;
            self.free.push(next.0);
            self.node_mut(parent).children.remove(&first);
            next = parent;
        }
    }

    /// Tokens that the tree stores.
    #[must_use]
    pub fn stored_tokens(&self) -> usize {
        self.tokens
    }

    fn node(&self, id: NodeId) -> &Node<V> {
        self.nodes[id.0].as_ref().expect("a node that was pruned")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<V> {
        self.nodes[id.0].as_mut().expect("a node that was pruned")
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_split_where_sequences_part() {
        let mut trie: Trie<&str> = Trie::default();
        let abcd = trie.insert(&[1, 2, 3, 4]);
        let abxy = trie.insert(&[1, 2, 8, 9]);
        *trie.value_mut(abcd) = Some("abcd");
        let walk = trie.walk(&[1, 2, 3, 4, 5]);
        assert_eq!(walk.matched, 4);
        assert_eq!(walk.nodes.last(), Some(&(abcd, 4)));
        assert_eq!(trie.walk(&[1, 2, 3, 7]).matched, 3);
        assert_eq!(trie.path(abxy), [1, 2, 8, 9]);
        assert_eq!(trie.stored_tokens(), 6);
        let ab = trie.insert(&[1, 2]);
        assert_eq!(trie.walk(&[1, 2]).nodes.last(), Some(&(ab, 2)));
        assert_eq!(trie.stored_tokens(), 6);
    }

    #[test]
    fn pruning_leaves_what_others_need() {
        let mut trie: Trie<u8> = Trie::default();
        let long = trie.insert(&[1, 2, 3, 4]);
        let other = trie.insert(&[1, 2, 5]);
        *trie.value_mut(other) = Some(0);
        trie.prune(other);
        assert_eq!(trie.walk(&[1, 2, 5]).matched, 3, "it has a value");
        trie.prune(long);
        assert_eq!(trie.walk(&[1, 2, 3, 4]).matched, 2);
        *trie.value_mut(other) = None;
        trie.prune(other);
        assert_eq!((trie.walk(&[1]).matched, trie.stored_tokens()), (0, 0));
    }

    #[test]
    fn random_sequences_walk_as_a_plain_list_says() {
        let mut trie: Trie<u8> = Trie::default();
        let mut all: Vec<Vec<u32>> = vec![];
        let mut seed = 1_u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let tokens: Vec<u32> = (0..1 + next(8)).map(|_| next(3) as u32).collect();
            let expected = all.iter().map(|s| common_prefix(s, &tokens)).max().unwrap_or(0);
            assert_eq!(trie.walk(&tokens).matched, expected);
            let node = trie.insert(&tokens);
            assert_eq!(trie.path(node), tokens);
            *trie.value_mut(node) = Some(1);
            all.push(tokens);
        }
    }
}
