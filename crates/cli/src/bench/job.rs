//! What the process of one arm is asked and answers, as JSON.

use super::floor::Rates;
use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Job {
    /// Choose a device that holds the model at `context`, and measure what it can do.
    Survey { context: usize },
    /// Measure prefill and decode.
    Measure(Arm),
}

/// What one process measures.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Arm {
    /// Tokens of each prompt.
    pub(super) context: usize,
    /// Tokens of each reply after its first one.
    pub(super) steps: usize,
    pub(super) sequences: usize,
    pub(super) seed: u64,
    /// What is other than usual.
    pub(super) ablation: Option<Ablation>,
}

/// A thing that is switched.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ablation {
    GraphReplay,
    Twins,
    TokenFeedback,
    DependentLaunch,
    FixedBlockAttention,
    ResidentRouting,
    Threads,
    VectorInstructions,
    Speculation,
}

/// The kinds of devices, as far as switches go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cpu,
    Reference,
    Cuda,
    Metal,
}

impl Ablation {
    pub(super) const ALL: [Self; 9] = [
        Self::GraphReplay,
        Self::Twins,
        Self::TokenFeedback,
        Self::DependentLaunch,
        Self::FixedBlockAttention,
        Self::ResidentRouting,
        Self::Threads,
        Self::VectorInstructions,
        Self::Speculation,
    ];

    /// As JSON has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GraphReplay => "graph_replay",
            Self::Twins => "twins",
            Self::TokenFeedback => "token_feedback",
            Self::DependentLaunch => "dependent_launch",
            Self::FixedBlockAttention => "fixed_block_attention",
            Self::ResidentRouting => "resident_routing",
            Self::Threads => "threads",
            Self::VectorInstructions => "vector_instructions",
            Self::Speculation => "speculation",
        }
    }

    /// What the arm does.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::GraphReplay => "each kernel launched by itself, no graphs",
            Self::Twins => "translated Metal kernels alone, none written for the GPU",
            Self::TokenFeedback => "each token by way of the host",
            Self::DependentLaunch => "each kernel starts when those before it have ended",
            Self::FixedBlockAttention => "attention in blocks that vary",
            Self::ResidentRouting => "routing by way of the host",
            Self::Threads => "one thread",
            Self::VectorInstructions => "portable code, no vector instructions asked for",
            Self::Speculation => "speculation on, as deep as it pays",
        }
    }

    /// Why a device cannot be measured so; nothing where it can.
    pub(super) fn unavailable(self, kind: Kind, can_draft: bool) -> Option<&'static str> {
        match (self, kind) {
            (Self::Speculation, _) if !can_draft => Some("the checkpoint has no draft layer"),
            (Self::Speculation, _)
            | (Self::GraphReplay | Self::Twins | Self::DependentLaunch, Kind::Cuda)
            | (Self::TokenFeedback, Kind::Cuda | Kind::Metal)
            | (Self::Threads | Self::VectorInstructions, Kind::Cpu) => None,
            (Self::GraphReplay | Self::Twins | Self::DependentLaunch, _) => {
                Some("only the CUDA driver has this")
            }
            (Self::Threads | Self::VectorInstructions, _) => Some("only the CPU backend has this"),
            (Self::FixedBlockAttention | Self::ResidentRouting, Kind::Cuda | Kind::Metal) => {
                Some("kernels have no other way to do it")
            }
            _ => Some("only a GPU has this"),
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Reply {
    Survey(Survey),
    Measured(Measured),
    /// It does not fit.
    Refused(String),
}

/// The device, and the model on it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Survey {
    /// As `--device` takes it.
    pub(super) device: String,
    /// What it calls itself.
    pub(super) device_name: String,
    /// Threads of the CPU backend.
    pub(super) threads: Option<usize>,
    /// Bytes of a stored key or value.
    pub(super) element_bytes: usize,
    pub(super) rates: Rates,
    /// Last part of the checkpoint's path.
    pub(super) model_name: String,
    pub(super) model_digest: String,
}

/// What one process has measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Measured {
    /// Until the first token was there: of all sequences.
    pub(super) prefill_seconds: f64,
    /// From then on, until each sequence had so many tokens more as there are steps.
    pub(super) decode_seconds: f64,
    /// Tokens of all sequences in that time.
    pub(super) decoded_tokens: usize,
    /// Of the tokens.
    pub(super) digest: String,
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) load_seconds: f64,
}

impl Measured {
    pub(super) fn decode_rate(&self) -> f64 {
        self.decoded_tokens as f64 / self.decode_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_is_there_or_has_a_reason() {
        let usable = |kind| {
            let is_usable = |a: &Ablation| a.unavailable(kind, true).is_none();
            Ablation::ALL.into_iter().filter(is_usable).map(Ablation::name).collect::<Vec<_>>()
        };
        assert_eq!(usable(Kind::Cpu), ["threads", "vector_instructions", "speculation"]);
        let of_cuda =
            ["graph_replay", "twins", "token_feedback", "dependent_launch", "speculation"];
        assert_eq!(usable(Kind::Cuda), of_cuda);
        assert_eq!(usable(Kind::Metal), ["token_feedback", "speculation"]);
        assert_eq!(usable(Kind::Reference), ["speculation"]);
        let why = Ablation::Speculation.unavailable(Kind::Cpu, false);
        assert_eq!(why, Some("the checkpoint has no draft layer"));
    }

    #[test]
    fn names_are_those_of_json() {
        for ablation in Ablation::ALL {
            assert_eq!(serde_json::to_value(ablation).unwrap(), ablation.name());
        }
    }
}
