//! Which shapes the kernels take.

use crate::top_candidates::VOCAB_MAX;
use calla_model::Shape;

/// Width of a group of quantised weights, of which every input of a matrix product is a multiple.
pub(crate) const GROUP: usize = 64;
/// Most routed experts of a layer: `EXPERTS_MAX` of `kernels/family.h`.
pub const EXPERTS_MAX: usize = 512;
/// Most routed experts of a token: `TOP_K_MAX` of `kernels/family.h`.
pub const TOP_K_MAX: usize = 16;
/// Most query heads that share a head of keys: a tile of attention in a prefill holds all of them for a row.
pub const HEADS_PER_KV_HEAD_MAX: usize = 32;

/// A network of the family whose shape is beyond the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} in config.json, but a GPU takes {bound} (--device cpu takes every shape)")]
pub struct ShapeLimit {
    /// What is beyond, with its verb.
    pub what: &'static str,
    /// Its value.
    pub value: usize,
    /// What kernels take.
    pub bound: Bound,
}

/// Values that kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Multiples of a number.
    MultipleOf(usize),
    /// No more than a number.
    AtMost(usize),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MultipleOf(n) => write!(f, "multiples of {n}"),
            Self::AtMost(n) => write!(f, "at most {n}"),
        }
    }
}

/// Requires a shape that the kernels take: what twins would panic over.
///
/// # Errors
/// The first limit that it is beyond.
pub fn check(shape: &Shape) -> Result<(), ShapeLimit> {
    use Bound::{AtMost, MultipleOf};
    let group = shape.attention_heads / shape.kv_heads;
    let limits = [
        ("hidden_size is", shape.hidden, MultipleOf(GROUP)),
        ("moe_intermediate_size is", shape.expert_hidden, MultipleOf(GROUP)),
        ("shared_expert_intermediate_size is", shape.shared_hidden, MultipleOf(GROUP)),
        ("vocab_size is", shape.vocab_size, AtMost(VOCAB_MAX as usize)),
        ("num_experts is", shape.experts, AtMost(EXPERTS_MAX)),
        ("num_experts_per_tok is", shape.top_k, AtMost(TOP_K_MAX)),
        ("num_attention_heads over num_key_value_heads is", group, AtMost(HEADS_PER_KV_HEAD_MAX)),
    ];
    let beyond = |value: usize, bound| match bound {
        MultipleOf(n) => !value.is_multiple_of(n),
        AtMost(n) => value > n,
    };
    match limits.into_iter().find(|&(_, value, bound)| beyond(value, bound)) {
        Some((what, value, bound)) => Err(ShapeLimit { what, value, bound }),
        None => Ok(()),
    }
}
