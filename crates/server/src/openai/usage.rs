//! Counts, cache and timings of a reply, as this dialect and our own extensions write them.

use crate::generate::Summary;
use calla_engine::{Level, Miss};
use serde::Serialize;
use utoipa::ToSchema;

/// `usage` of a chat completion.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct PromptTokensDetails {
    /// Prompt tokens that did not have to be computed.
    cached_tokens: usize,
    audio_tokens: usize,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct CompletionTokensDetails {
    /// Tokens of thinking.
    reasoning_tokens: usize,
    /// Drafted tokens that are in the reply.
    accepted_prediction_tokens: usize,
    /// Drafted tokens that are not.
    rejected_prediction_tokens: usize,
    audio_tokens: usize,
}

impl From<&Summary> for Usage {
    fn from(summary: &Summary) -> Self {
        let timings = &summary.timings;
        Self {
            prompt_tokens: summary.prompt_tokens,
            completion_tokens: summary.completion_tokens,
            total_tokens: summary.prompt_tokens + summary.completion_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: summary.reuse.reused,
                audio_tokens: 0,
            },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: summary.reasoning_tokens,
                accepted_prediction_tokens: timings.accepted_tokens,
                rejected_prediction_tokens: timings
                    .drafted_tokens
                    .saturating_sub(timings.accepted_tokens),
                audio_tokens: 0,
            },
        }
    }
}

/// Our extension `cache`: what of the prompt was reused, and why not more.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct CacheReport {
    /// Prompt tokens that did not have to be computed.
    cached_tokens: usize,
    /// Prompt tokens that agree with some earlier request.
    common_tokens: usize,
    /// Why `cached_tokens` is less: `cold`, `other_key`, `no_snapshot`, `evicted`, or null.
    miss: Option<&'static str>,
    /// Where the prompt leaves an earlier request that goes on.
    diverges_at: Option<DivergesAt>,
    /// Whether what was reused came back from host memory, behind the GPU's.
    from_host: bool,
    /// Whether what was reused came back from the disk.
    from_disk: bool,
    /// Whether state was used that may differ in its last bits from a cold run.
    provisional: bool,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct DivergesAt {
    /// Index of the first token that differs.
    token: usize,
    /// The turn or tool result that it lies in, counted from 0.
    message: usize,
}

impl From<&Summary> for CacheReport {
    fn from(summary: &Summary) -> Self {
        let reuse = &summary.reuse;
        Self {
            cached_tokens: reuse.reused,
            common_tokens: reuse.common,
            miss: reuse.miss.map(Miss::name),
            diverges_at: reuse
                .divergence
                .map(|place| DivergesAt { token: place.token, message: place.message }),
            from_host: reuse.from == Some(Level::Host),
            from_disk: reuse.from == Some(Level::Disk),
            provisional: reuse.provisional,
        }
    }
}

/// Our extension `timings`.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct TimingsReport {
    /// Seconds until the request had its place.
    queue_seconds: f64,
    /// Seconds from there to the first token.
    prefill_seconds: f64,
    /// Seconds from the first token to the last.
    decode_seconds: f64,
    /// Prompt tokens computed per second.
    prefill_tokens_per_second: f64,
    /// Tokens generated per second, the first one not counted.
    decode_tokens_per_second: f64,
    drafted_tokens: usize,
    accepted_tokens: usize,
}

impl From<&Summary> for TimingsReport {
    fn from(summary: &Summary) -> Self {
        let timings = &summary.timings;
        Self {
            queue_seconds: timings.queue,
            prefill_seconds: timings.prefill,
            decode_seconds: timings.decode,
            prefill_tokens_per_second: timings.prefill_rate(),
            decode_tokens_per_second: timings.decode_rate(),
            drafted_tokens: timings.drafted_tokens,
            accepted_tokens: timings.accepted_tokens,
        }
    }
}
