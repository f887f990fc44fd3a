//! Bars for runners that are fed recorded sequences, and greedy replies.

use calla_eval::evaluate::compare;
use calla_eval::metrics::arg_max;
use calla_eval::{Position, ReferenceLogits, Summary};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, Runner, Span, SpanKind};
use std::time::Instant;

pub use calla_eval::{Golden, read_goldens};

/// What must hold over all positions of some goldens.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Pairs of a margin and the least fraction of positions above it with the same first token.
    pub top1_above: &'static [(f64, f64)],
    /// Bound of the mean divergence in nats.
    pub kl_mean: f64,
    /// Bound of the largest difference of a listed log-probability.
    pub logprob_diff: f64,
}

/// Compares a runner with goldens, prints what was measured and requires the bars.
///
/// # Panics
/// If a bar is missed: names it, the measured value, and the position that is worst.
pub fn require(what: &str, runner: &mut dyn Runner, goldens: &[Golden], bars: &Bars) {
    let start = Instant::now();
    let mut positions: Vec<(&str, usize, Position)> = Vec::new();
    for golden in goldens {
        let compared = compare(runner, golden, 256).unwrap_or_else(|e| panic!("{what}: {e}"));
        let named = compared.into_iter().enumerate().map(|(i, p)| (golden.name.as_str(), i, p));
        positions.extend(named);
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut summary = Summary::new(0.01);
    for (_, _, position) in &positions {
        summary.add(position);
    }
    let metrics = summary.metrics().unwrap_or_else(|| panic!("{what}: no positions"));
    println!("{what}: {metrics:?}, {seconds:.1} s");

    for &(margin, least) in bars.top1_above {
        let above: Vec<_> = positions.iter().filter(|(_, _, p)| p.margin > margin).collect();
        assert!(!above.is_empty(), "{what}: no position has a margin above {margin}");
        let wrong: Vec<_> = above.iter().filter(|(_, _, p)| !p.agrees()).collect();
        let agreeing = (above.len() - wrong.len()) as f64 / above.len() as f64;
        println!("{what}: same first token at {agreeing:.5} of {} above {margin}", above.len());
        assert!(
            agreeing >= least,
            "{what}: the first token agrees at {agreeing:.5} of the positions with a margin above \
             {margin}, at least {least} must; first: {:?}",
            wrong[0]
        );
    }
    let worst_kl = positions.iter().max_by(|a, b| a.2.kl.total_cmp(&b.2.kl));
    assert!(
        metrics.kl_mean <= bars.kl_mean,
        "{what}: mean divergence {:.2e}, allowed {:.2e}; worst: {worst_kl:?}",
        metrics.kl_mean,
        bars.kl_mean
    );
    let worst = positions.iter().max_by(|a, b| a.2.logprob_diff.total_cmp(&b.2.logprob_diff));
    assert!(
        metrics.logprob_max_abs_diff <= bars.logprob_diff,
        "{what}: a log-probability is off by {:.2e}, allowed {:.2e}: {worst:?}",
        metrics.logprob_max_abs_diff,
        bars.logprob_diff
    );
}

/// How a greedy reply compares with the recorded one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply {
    /// The same up to and including the end of turn, after so many tokens.
    Same(usize),
    /// Another token where the recorded margin is small enough to allow it.
    CloseCall {
        /// Tokens that were the same.
        tokens: usize,
        /// The margin there, in nats.
        margin: f64,
    },
}

/// Decodes greedily after the golden's prompt until a token of `ends` or the end of what is recorded.
///
/// # Panics
/// If a token differs where the recorded margin is at least `close`, or the runner fails.
pub fn greedy_reply(runner: &mut dyn Runner, golden: &Golden, ends: &[u32], close: f64) -> Reply {
    let ReferenceLogits::Top { top, .. } = &golden.reference else {
        panic!("{}: greedy replies need the largest logits", golden.name);
    };
    runner.clear_slot(0);
    let mut position = 0;
    let mut tokens = golden.ids[..golden.prompt_len].to_vec();
    for (i, &expected) in golden.ids[golden.prompt_len..].iter().enumerate() {
        let next = last_token(runner, &tokens, position);
        position += tokens.len();
        if next != expected {
            let values = top.values(position - 1);
            let margin = f64::from(values[0]) - f64::from(values[1]);
            assert!(
                margin < close,
                "{}: token {i} of the reply is {next} instead of {expected}, margin {margin}",
                golden.name
            );
            return Reply::CloseCall { tokens: i, margin };
        }
        if ends.contains(&next) {
            return Reply::Same(i + 1);
        }
        tokens = vec![next];
    }
    Reply::Same(golden.ids.len() - golden.prompt_len)
}

/// Feeds tokens of slot 0 in slices and returns the most likely next one.
fn last_token(runner: &mut dyn Runner, tokens: &[u32], mut position: usize) -> u32 {
    let (vocab_size, cache) = (runner.shape().vocab_size, runner.cache_size());
    let mut next = None;
    for slice in tokens.chunks(256) {
        let rows = 0..slice.len();
        let pages = (0..(position + slice.len()).div_ceil(PAGE_TOKENS)).collect();
        let span = Span::new(SpanKind::Prefill, rows, position, 0, pages);
        let batch =
            Batch::new(slice.to_vec(), vec![span], vec![slice.len() - 1], vocab_size, cache)
                .unwrap_or_else(|e| panic!("{e}"));
        let logits = runner.step(&batch).unwrap_or_else(|e| panic!("{e}"));
        assert!(logits.as_slice().iter().all(|l| l.is_finite()), "a logit is not finite");
        next = Some(arg_max(logits.row(0)));
        position += slice.len();
    }
    next.expect("at least one token")
}
