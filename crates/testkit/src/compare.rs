//! Comparisons of activations that NaN and infinities cannot pass, with messages that say where and how
//! much.

use calla_eval::{Metrics, Position, ReferenceLogits, Summary};
use calla_ops::Rows;
use calla_ops::route::Routing;

/// How two sets of activations differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Largest difference of an element.
    pub max_abs: f32,
    /// Largest difference of an element over the root mean square of the expected row (at least 1 where
    /// the row is narrower than 16, and at least a 32nd of that of all rows).
    pub max_relative: f32,
    /// Where the relative one is: row and column.
    pub at: (usize, usize),
    /// What was there.
    pub actual: f32,
    /// What should have been.
    pub expected: f32,
}

/// Why activations do not agree.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// They have other dimensions.
    #[error("[{}, {}] instead of [{}, {}]", actual.0, actual.1, expected.0, expected.1)]
    Shape {
        /// Rows and columns found.
        actual: (usize, usize),
        /// Rows and columns expected.
        expected: (usize, usize),
    },
    /// A value is NaN or infinite.
    #[error("{which} row {row}, column {col} is {value}")]
    NotFinite {
        /// "actual" or "expected".
        which: &'static str,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// The value.
        value: f32,
    },
    /// They differ by more than the bound.
    #[error(
        "row {}, column {} is {} instead of {}: off by {:.2e} of the row's rms, allowed {bound:.2e}",
        .difference.at.0, .difference.at.1, .difference.actual, .difference.expected,
        .difference.max_relative
    )]
    Exceeds {
        /// The worst element.
        difference: Difference,
        /// The bound.
        bound: f32,
    },
    /// They are not the same bits.
    #[error(
        "{count} values differ in bits; first row {row}, column {col}: {actual:?} instead of {expected:?}"
    )]
    Bits {
        /// Values that differ.
        count: usize,
        /// Row of the first.
        row: usize,
        /// Column of the first.
        col: usize,
        /// What was there.
        actual: f32,
        /// What should have been.
        expected: f32,
    },
    /// Another expert was chosen, or with another weight.
    #[error("row {row}, rank {rank}: {problem}")]
    Routing {
        /// The row.
        row: usize,
        /// The rank of the expert.
        rank: usize,
        /// What is wrong.
        problem: String,
    },
}

/// Smallest root mean square that differences are related to: below it, a row counts as zero.
const RMS_FLOOR: f32 = 1e-6;
/// Rows narrower than this say little of the scale of the sums behind them (a single value may be a sum
/// that cancels), so their root mean square counts as at least 1: inputs here have unit variance.
const NARROW: usize = 16;
/// A row this many times smaller than all rows together is what is left of sums that cancel (the recurrence
/// read by a query orthogonal to the few keys there are): it counts as this part of them.
const SMALL_ROW: f32 = 32.0;

/// Measures how two sets of activations differ.
///
/// # Errors
/// If their dimensions differ or a value of either is not finite.
pub fn difference(actual: &Rows, expected: &Rows) -> Result<Difference, Mismatch> {
    check_shape(actual, expected)?;
    let mut worst =
        Difference { max_abs: 0.0, max_relative: 0.0, at: (0, 0), actual: 0.0, expected: 0.0 };
    let overall = rms(expected.as_slice());
    for (row, (a, e)) in actual.iter().zip(expected.iter()).enumerate() {
        for (which, values) in [("actual", a), ("expected", e)] {
            if let Some(col) = values.iter().position(|v| !v.is_finite()) {
                return Err(Mismatch::NotFinite { which, row, col, value: values[col] });
            }
        }
        let floor = if e.len() < NARROW { 1.0 } else { RMS_FLOOR.max(overall / SMALL_ROW) };
        let rms = rms(e).max(floor);
        for (col, (&actual, &expected)) in a.iter().zip(e).enumerate() {
            let off = (actual - expected).abs();
            worst.max_abs = worst.max_abs.max(off);
            if off / rms > worst.max_relative {
                let (max_abs, max_relative) = (worst.max_abs, off / rms);
                worst = Difference { max_abs, max_relative, at: (row, col), actual, expected };
            }
        }
    }
    Ok(worst)
}

fn rms(values: &[f32]) -> f32 {
    let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (squares / values.len().max(1) as f64).sqrt() as f32
}

/// Requires that no element is off by more than `bound` times the root mean square of its expected row.
///
/// # Errors
/// If one is, or as [`difference`].
pub fn within(actual: &Rows, expected: &Rows, bound: f32) -> Result<Difference, Mismatch> {
    let difference = difference(actual, expected)?;
    // Written so that a NaN difference would fail too.
    if difference.max_relative <= bound {
        Ok(difference)
    } else {
        Err(Mismatch::Exceeds { difference, bound })
    }
}

/// Requires the same bits, all finite.
///
/// # Errors
/// If dimensions or a bit differ, or a value is not finite.
pub fn identical(actual: &Rows, expected: &Rows) -> Result<(), Mismatch> {
    difference(actual, expected)?;
    let differs = |(a, e): (&f32, &f32)| a.to_bits() != e.to_bits();
    let pairs = || actual.as_slice().iter().zip(expected.as_slice());
    let Some(first) = pairs().position(differs) else { return Ok(()) };
    let (row, col) = (first / actual.cols(), first % actual.cols());
    Err(Mismatch::Bits {
        count: pairs().filter(|&pair| differs(pair)).count(),
        row,
        col,
        actual: actual.row(row)[col],
        expected: expected.row(row)[col],
    })
}

/// Requires the experts that `logits` demand: at each rank one whose logit is within `logit_tie` of the
/// logit that belongs there (so only a tie may fall either way), each at most once, with the softmax of the
/// chosen logits as weights within `weight`.
///
/// # Errors
/// If another expert was chosen or a weight is off.
pub fn routing(
    actual: &Routing,
    logits: &Rows,
    top_k: usize,
    logit_tie: f32,
    weight: f32,
) -> Result<(), Mismatch> {
    let pairs = logits.rows() * top_k;
    if (actual.top_k, actual.experts.len(), actual.weights.len()) != (top_k, pairs, pairs) {
        let actual = (actual.experts.len(), actual.top_k);
        return Err(Mismatch::Shape { actual, expected: (pairs, top_k) });
    }
    let ideal = calla_ops::route::reference(logits, top_k);
    for (row, logits) in logits.iter().enumerate() {
        let pairs = row * top_k..(row + 1) * top_k;
        let (chosen, weights) = (&actual.experts[pairs.clone()], &actual.weights[pairs.clone()]);
        let fail = |rank, problem| Err(Mismatch::Routing { row, rank, problem });
        for (rank, &expert) in chosen.iter().enumerate() {
            let Some(&logit) = logits.get(expert as usize) else {
                return fail(rank, format!("expert {expert} of {}", logits.len()));
            };
            if chosen[..rank].contains(&expert) {
                return fail(rank, format!("expert {expert} was chosen twice"));
            }
            let due = ideal.experts[pairs.start + rank];
            let off = (logit - logits[due as usize]).abs();
            if expert != due && (off > logit_tie || off.is_nan()) {
                return fail(
                    rank,
                    format!("expert {expert} instead of {due}, whose logit differs by {off:.2e}"),
                );
            }
        }
        let max = chosen.iter().map(|&e| logits[e as usize]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = chosen.iter().map(|&e| (logits[e as usize] - max).exp()).sum();
        for (rank, (&expert, &w)) in chosen.iter().zip(weights).enumerate() {
            let due = (logits[expert as usize] - max).exp() / sum;
            if (w - due).abs() > weight || w.is_nan() || due.is_nan() {
                return fail(rank, format!("weight {w} of expert {expert} instead of {due}"));
            }
        }
    }
    Ok(())
}

/// Agreement of logits `[positions, vocabulary]` with the reference's; `margin` is the threshold of
/// [`Metrics::top1_margin`].
///
/// # Errors
/// A description, if dimensions differ, a logit is not finite or there are no positions.
pub fn logits(actual: &Rows, expected: &Rows, margin: f64) -> Result<Metrics, String> {
    if let Err(mismatch) = difference(actual, expected) {
        return Err(mismatch.to_string());
    }
    let reference = ReferenceLogits::Full(expected.clone());
    let mut summary = Summary::new(margin);
    for (position, actual) in actual.iter().enumerate() {
        summary.add(&Position::compare(&reference, position, actual, None)?);
    }
    summary.metrics().ok_or_else(|| "there are no positions".to_owned())
}

fn check_shape(actual: &Rows, expected: &Rows) -> Result<(), Mismatch> {
    let dimensions = |x: &Rows| (x.rows(), x.cols());
    if dimensions(actual) == dimensions(expected) {
        return Ok(());
    }
    Err(Mismatch::Shape { actual: dimensions(actual), expected: dimensions(expected) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of values, repeated to rows that are wide enough.
    fn rows(values: &[f32]) -> Rows {
        let wide = |pair: &[f32]| pair.iter().copied().cycle().take(NARROW).collect::<Vec<f32>>();
        Rows::from_vec(NARROW, values.chunks_exact(2).flat_map(wide).collect())
    }

    #[test]
    fn nan_passes_nothing() {
        let (good, bad) = (rows(&[1.0, 2.0]), rows(&[1.0, f32::NAN]));
        for (a, e) in [(&good, &bad), (&bad, &good), (&bad, &bad)] {
            assert!(matches!(within(a, e, f32::INFINITY), Err(Mismatch::NotFinite { .. })));
            assert!(matches!(identical(a, e), Err(Mismatch::NotFinite { .. })));
            assert!(logits(a, e, 0.0).is_err());
        }
        assert!(matches!(within(&good, &good, f32::NAN), Err(Mismatch::Exceeds { .. })));
    }

    #[test]
    fn the_worst_element_is_named() {
        let expected = rows(&[3.0, 4.0, 30.0, 40.0]);
        let actual = rows(&[3.0, 4.1, 30.0, 40.5]);
        let error = within(&actual, &expected, 1e-3).unwrap_err();
        let Mismatch::Exceeds { difference, .. } = error else { panic!("{error}") };
        assert_eq!(difference.at, (0, 1));
        assert!((difference.max_abs - 0.5).abs() < 1e-6);
        assert!(within(&actual, &expected, 0.03).is_ok());
        let error = identical(&actual, &expected).unwrap_err();
        assert!(matches!(error, Mismatch::Bits { count: 16, row: 0, col: 1, .. }));
        assert!(identical(&rows(&[0.0, 1.0]), &rows(&[-0.0, 1.0])).is_err());
        assert!(within(&actual, &Rows::zeros(2, 3), 1.0).is_err());
    }

    #[test]
    fn only_ties_may_be_routed_either_way() {
        let logits = Rows::from_vec(4, vec![0.0, 2.0, 1.0, 1.0 + 1e-6]);
        let mut routing_ = calla_ops::route::reference(&logits, 2);
        assert_eq!(routing(&routing_, &logits, 2, 0.0, 1e-6), Ok(()));
        routing_.experts[1] = 2;
        assert!(routing(&routing_, &logits, 2, 0.0, 1e-6).is_err());
        assert_eq!(routing(&routing_, &logits, 2, 1e-5, 1e-6), Ok(()));
        routing_.weights[0] += 1e-3;
        assert!(routing(&routing_, &logits, 2, 1e-5, 1e-4).is_err());
        routing_.weights[0] = f32::NAN;
        assert!(routing(&routing_, &logits, 2, 1e-5, 1e-4).is_err());
        routing_.experts[1] = 1;
        assert!(routing(&routing_, &logits, 2, 10.0, 10.0).is_err());
    }
}
