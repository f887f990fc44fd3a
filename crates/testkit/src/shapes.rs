//! Shapes of the family: small ones, odd ones and random ones.

use crate::random::Random;
use calla_model::shape::schedule;
use calla_model::{LayerKind, Shape};

/// Small, with the proportions of the published model.
#[must_use]
pub fn small() -> Shape {
    Shape {
        vocab_size: 512,
        hidden: 128,
        layers: schedule(4, 4),
        attention_heads: 4,
        kv_heads: 2,
        delta_key_heads: 2,
        delta_value_heads: 4,
        experts: 16,
        top_k: 4,
        expert_hidden: 64,
        shared_hidden: 64,
        ..Shape::demo()
    }
}

/// Nothing a power of two, three value heads on one key head, one kv head for three.
#[must_use]
pub fn odd() -> Shape {
    Shape {
        vocab_size: 777,
        hidden: 192,
        layers: vec![
            LayerKind::DeltaNet,
            LayerKind::Attention,
            LayerKind::DeltaNet,
            LayerKind::DeltaNet,
            LayerKind::Attention,
        ],
        attention_heads: 3,
        kv_heads: 1,
        delta_key_heads: 1,
        delta_value_heads: 3,
        experts: 20,
        top_k: 5,
        expert_hidden: 96,
        shared_hidden: 160,
        rms_norm_eps: 1e-5,
        rope_theta: 1e6,
        ..Shape::demo()
    }
}

/// As small as the family gets: every expert chosen, tied embeddings, one head of everything.
#[must_use]
pub fn tiny() -> Shape {
    Shape {
        vocab_size: 65,
        hidden: 32,
        layers: vec![LayerKind::Attention, LayerKind::DeltaNet],
        attention_heads: 1,
        kv_heads: 1,
        delta_key_heads: 1,
        delta_value_heads: 1,
        experts: 3,
        top_k: 3,
        expert_hidden: 32,
        shared_hidden: 32,
        tied_embeddings: true,
        mtp_layers: 0,
        ..Shape::demo()
    }
}

/// Any shape of the family that a test can afford. Widths are multiples of 32 (the smallest group).
#[must_use]
pub fn random(random: &mut Random) -> Shape {
    let kv_heads = random.range(1..=3);
    let delta_key_heads = random.range(1..=3);
    let experts = random.range(2..=24);
    let layers = random.range(1..=5);
    let kinds = [LayerKind::DeltaNet, LayerKind::Attention];
    Shape {
        vocab_size: random.range(40..=900),
        hidden: 32 * random.range(1..=8),
        layers: (0..layers).map(|_| *random.pick(&kinds)).collect(),
        attention_heads: kv_heads * random.range(1..=3),
        kv_heads,
        delta_key_heads,
        delta_value_heads: delta_key_heads * random.range(1..=3),
        experts,
        top_k: random.range(1..=experts.min(8)),
        expert_hidden: 32 * random.range(1..=4),
        shared_hidden: 32 * random.range(1..=5),
        rms_norm_eps: *random.pick(&[1e-6, 1e-5]),
        rope_theta: *random.pick(&[1e4, 1e6, 1e7]),
        tied_embeddings: random.one_in(4),
        ..Shape::demo()
    }
}
