//! A runner that repeats the goldens scores perfectly; others score what was done to them.

use calla_eval::{EvalError, Golden, Options, ReferenceLogits, evaluate, read_goldens};
use calla_model::Shape;
use calla_ops::{Batch, CacheSize, Rows, Runner, StepError};
use std::path::Path;

/// Plays recorded logits back by position, changed by `change`.
struct Playback<F> {
    shape: Shape,
    logits: Rows,
    pages: usize,
    change: F,
    steps: usize,
}

/// It has logits but no state.
fn no_bytes() -> StepError {
    StepError { device: "playback", reason: "it has no state".to_owned() }
}

impl<F: Fn(usize, &mut [f32]) + Send> Runner for Playback<F> {
    fn slot_bytes(&self) -> usize {
        0
    }

    fn page_bytes(&self) -> usize {
        0
    }

    fn read_slot(&mut self, _: usize, _: &mut Vec<u8>) -> Result<(), StepError> {
        Err(no_bytes())
    }

    fn write_slot(&mut self, _: usize, _: &[u8]) -> Result<(), StepError> {
        Err(no_bytes())
    }

    fn read_page(&mut self, _: usize, _: &mut Vec<u8>) -> Result<(), StepError> {
        Err(no_bytes())
    }

    fn write_page(&mut self, _: usize, _: &[u8]) -> Result<(), StepError> {
        Err(no_bytes())
    }

    fn decodes_as_it_prefills(&self) -> bool {
        true
    }

    fn arithmetic(&self) -> String {
        "playback".to_owned()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn cache_size(&self) -> CacheSize {
        CacheSize { pages: self.pages, slots: 1 }
    }

    fn clear_slot(&mut self, _: usize) {}

    fn copy_slot(&mut self, _: usize, _: usize) {}

    fn copy_page(&mut self, _: usize, _: usize) {}

    fn step(&mut self, batch: &Batch) -> Result<Rows, StepError> {
        self.steps += 1;
        let mut rows = Rows::zeros(batch.rows(), self.logits.cols());
        for row in 0..batch.rows() {
            let position = batch.spans()[0].position_of(row);
            rows.row_mut(row).copy_from_slice(self.logits.row(position));
            (self.change)(position, rows.row_mut(row));
        }
        Ok(rows)
    }
}

const VOCAB: usize = 11;

fn golden(positions: usize) -> (Golden, Rows) {
    let value = |i: usize| ((i * 7919) % 101) as f32 / 20.0;
    let logits = Rows::from_vec(VOCAB, (0..positions * VOCAB).map(value).collect());
    let golden = Golden {
        name: "made up".to_owned(),
        ids: (0..positions).map(|i| (i % VOCAB) as u32).collect(),
        prompt_len: positions,
        reference: ReferenceLogits::Full(logits.clone()),
        request: None,
        text: None,
        mtp: None,
        hidden: vec![],
    };
    (golden, logits)
}

fn playback<F: Fn(usize, &mut [f32]) + Send>(logits: Rows, pages: usize, change: F) -> Playback<F> {
    let shape = Shape { vocab_size: VOCAB, ..Shape::demo() };
    Playback { shape, logits, pages, change, steps: 0 }
}

#[test]
fn the_same_logits_score_perfectly_in_slices() {
    let (golden, logits) = golden(150);
    let mut runner = playback(logits, 3, |_, _| {});
    let metrics = evaluate(&mut runner, &[golden], Options::default()).unwrap();
    assert_eq!((metrics.positions, metrics.top1, runner.steps), (150, 1.0, 3));
    assert!(metrics.kl_max < 1e-12 && metrics.logprob_max_abs_diff < 1e-12);
    assert_eq!(metrics.perplexity, metrics.perplexity_reference);
    let json = serde_json::to_value(metrics).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "positions",
            "top1",
            "top1_margin",
            "kl_mean",
            "kl_max",
            "logprob_max_abs_diff",
            "perplexity",
            "perplexity_reference"
        ]
    );
}

#[test]
fn one_wrong_position_of_ten_is_seen() {
    let (golden, logits) = golden(10);
    let mut runner = playback(logits, 1, |position, row| {
        if position == 4 {
            row.reverse();
        }
    });
    let metrics = evaluate(&mut runner, &[golden], Options::default()).unwrap();
    assert_eq!(metrics.top1, 0.9);
    assert!(metrics.kl_max > 0.1 && (metrics.kl_mean - metrics.kl_max / 10.0).abs() < 1e-9);
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let (golden, logits) = golden(70);
    let mut short = playback(logits.clone(), 1, |_, _| {});
    let error =
        evaluate(&mut short, std::slice::from_ref(&golden), Options::default()).unwrap_err();
    assert!(matches!(error, EvalError::TooLong { tokens: 70, capacity: 64, .. }), "{error}");

    let mut nan = playback(logits.clone(), 2, |position, row| {
        if position == 65 {
            row[3] = f32::NAN;
        }
    });
    let error = evaluate(&mut nan, std::slice::from_ref(&golden), Options::default()).unwrap_err();
    assert!(error.to_string().contains("position 65: the logit of token 3 is NaN"), "{error}");

    let mut foreign = golden;
    foreign.ids[1] = VOCAB as u32;
    let mut runner = playback(logits, 2, |_, _| {});
    let error = evaluate(&mut runner, &[foreign], Options::default()).unwrap_err();
    assert!(matches!(error, EvalError::Batch { .. }), "{error}");
    assert!(matches!(evaluate(&mut runner, &[], Options::default()), Err(EvalError::Empty)));
}

#[test]
fn the_demo_goldens_are_read_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/goldens.npz");
    let goldens = read_goldens(&path).unwrap();
    assert_eq!(goldens.len(), 12);
    for golden in &goldens {
        let ReferenceLogits::Top { top, lse } = &golden.reference else {
            panic!("the demo's goldens list the largest logits");
        };
        assert_eq!((top.positions(), lse.len()), (golden.ids.len(), golden.ids.len()));
        assert_eq!(golden.ids.len(), golden.prompt_len + 64);
        assert_eq!(golden.mtp.as_ref().unwrap().positions(), golden.ids.len());
        assert!(golden.request.as_ref().unwrap().starts_with('{'));
        assert!(golden.text.as_ref().unwrap().contains("<|im_start|>"));
    }
    assert_eq!(goldens[11].prompt_len, 2002);
}
