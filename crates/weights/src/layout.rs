//! Names and conventions of the checkpoint layouts, turned into the canonical ones.
//!
//! Canonical is what [`calla_model::Network::build`] asks for: `model.layers.0.mlp.gate`, `lm_head`,
//! `mtp.fc`. Files wrap these names in different ways:
//!
//! | layout | trunk | output | norms | convolution |
//! |---|---|---|---|---|
//! | MLX, multimodal | `language_model.model.X` | `language_model.lm_head` | full scale | `[C, 4, 1]` |
//! | MLX, text only | `model.X` | `lm_head` | full scale | `[C, 4, 1]` |
//! | Hugging Face, multimodal | `model.language_model.X` | `lm_head` | scale - 1 | `[C, 1, 4]` |
//! | Hugging Face, text only | `model.X` | `lm_head` | scale - 1 | `[C, 1, 4]` |
//!
//! The names alone do not tell the norm convention, so the convolution's shape decides it.

use std::borrow::Cow;

/// Which program's conventions the trunk's tensors follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// MLX: norms hold the full scale.
    Mlx,
    /// Raw Hugging Face: norms hold the scale less 1.
    HuggingFace,
}

impl Layout {
    /// Its name in user-facing text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlx => "MLX",
            Self::HuggingFace => "Hugging Face",
        }
    }

    /// How the trunk's norms are stored.
    #[must_use]
    pub fn norms(self) -> NormConvention {
        match self {
            Self::Mlx => NormConvention::Full,
            Self::HuggingFace => NormConvention::ZeroCentred,
        }
    }
}

/// How the scale of an RMS norm is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormConvention {
    /// The scale itself, around 1.
    Full,
    /// The scale less 1, around 0.
    ZeroCentred,
}

impl NormConvention {
    /// What to add to a stored value to get the scale.
    pub(crate) fn offset(self) -> f32 {
        match self {
            Self::Full => 0.0,
            Self::ZeroCentred => 1.0,
        }
    }
}

/// The canonical name of a tensor, or `None` for one of the vision tower, which text does not need.
pub(crate) fn canonical_name(name: &str) -> Option<Cow<'_, str>> {
    const VISION: [&str; 5] = [
        "vision_tower.",
        "model.visual.",
        "visual.",
        "model.vision_tower.",
        "language_model.model.visual.",
    ];
    if VISION.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let renamed = if let Some(rest) = name.strip_prefix("model.language_model.") {
        Cow::Owned(format!("model.{rest}"))
    } else {
        Cow::Borrowed(name.strip_prefix("language_model.").unwrap_or(name))
    };
    // MTP tensors stand beside the trunk's `model`; some exports put them inside.
    Some(match renamed.strip_prefix("model.mtp.") {
        Some(rest) => Cow::Owned(format!("mtp.{rest}")),
        None => renamed,
    })
}

/// Whether a canonical name belongs to the multi-token-prediction layer.
pub(crate) fn is_mtp(canonical: &str) -> bool {
    canonical.starts_with("mtp.")
}

/// Whether a canonical tensor name is that of a norm whose storage depends on the convention.
pub(crate) fn is_norm(canonical: &str) -> bool {
    let Some(path) = canonical.strip_suffix(".weight") else { return false };
    let module = path.rsplit('.').next().unwrap_or(path);
    // DeltaNet's gated norm is stored plain everywhere.
    module.contains("norm") && !path.ends_with("linear_attn.norm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_has_the_same_canonical_names() {
        for (name, expected) in [
            ("language_model.model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.weight"),
            ("model.language_model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.weight"),
            ("model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.weight"),
            ("language_model.lm_head.scales", "lm_head.scales"),
            ("lm_head.weight", "lm_head.weight"),
            ("mtp.fc.weight", "mtp.fc.weight"),
            ("language_model.mtp.fc.weight", "mtp.fc.weight"),
            ("model.language_model.mtp.fc.weight", "mtp.fc.weight"),
        ] {
            assert_eq!(canonical_name(name).as_deref(), Some(expected), "{name}");
        }
        for vision in ["vision_tower.blocks.0.attn.qkv.weight", "model.visual.merger.norm.weight"] {
            assert_eq!(canonical_name(vision), None);
        }
    }

    #[test]
    fn the_gated_norm_is_no_norm_with_a_convention() {
        assert!(is_norm("model.norm.weight"));
        assert!(is_norm("mtp.pre_fc_norm_hidden.weight"));
        assert!(is_norm("model.layers.3.self_attn.q_norm.weight"));
        assert!(!is_norm("model.layers.0.linear_attn.norm.weight"));
        assert!(!is_norm("model.layers.0.mlp.gate.weight"));
    }
}
