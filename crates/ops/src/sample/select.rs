//! Scans of a whole vocabulary of logits that compile to vector instructions: the largest, the n-th
//! largest, an estimate of the softmax's denominator.

/// Values compared at once; a multiple of every vector's width.
const LANES: usize = 32;

/// Index of the largest value, the first of equals; NaN never wins.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty(), "argmax of no logits");
    let largest = largest(logits);
    // Nothing equals the largest only if all are NaN.
    logits.iter().position(|&logit| logit == largest).unwrap_or(logits.len() - 1) as u32
}

/// The largest value, ignoring NaN; minus infinity if there is none.
pub(super) fn largest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &v| if v > max { v } else { max })
}

/// Whether all values are finite.
pub(super) fn all_finite(logits: &[f32]) -> bool {
    // Zero times infinity or NaN is NaN, and NaN stays.
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += chunk[i] * 0.0;
        }
    }
    lanes.iter().all(|&lane| lane == 0.0) && rest.iter().all(|v| v.is_finite())
}

/// The `n`-th largest of the values, counting equal ones each; none if fewer than `n` exceed minus
/// infinity. Values must not be NaN.
pub(super) fn nth_largest(logits: &[f32], n: usize) -> Option<f32> {
    if n == 0 || n > logits.len() {
        return None;
    }
    // Holds at least the n largest so far; what does not exceed the n-th of those cannot change it.
    let capacity = (4 * n).max(1024);
    let mut kept: Vec<f32> = Vec::with_capacity((capacity + LANES).min(logits.len()));
    let mut threshold = f32::NEG_INFINITY;
    let shrink = |kept: &mut Vec<f32>| {
        let (_, &mut nth, _) = kept.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a));
        kept.truncate(n);
        nth
    };
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        if any_exceeds(chunk, threshold) {
            kept.extend(chunk.iter().filter(|&&v| v > threshold));
            if kept.len() >= capacity {
                threshold = shrink(&mut kept);
            }
        }
    }
    kept.extend(rest.iter().filter(|&&v| v > threshold));
    (kept.len() >= n).then(|| shrink(&mut kept))
}

/// Calls `take` with each index and value that is `least` or more, in order.
pub(super) fn for_each_at_least(logits: &[f32], least: f32, mut take: impl FnMut(u32, f32)) {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut token = 0;
    for chunk in chunks {
        if any_reaches(chunk, least) {
            for (&v, token) in chunk.iter().zip(token..).filter(|&(&v, _)| v >= least) {
                take(token, v);
            }
        }
        token += LANES as u32;
    }
    for (&v, token) in rest.iter().zip(token..).filter(|&(&v, _)| v >= least) {
        take(token, v);
    }
}

fn any_exceeds(chunk: &[f32; LANES], threshold: f32) -> bool {
    // A sum of flags and not `any`: that would branch at each value.
    chunk.iter().map(|&v| u32::from(v > threshold)).sum::<u32>() > 0
}

fn any_reaches(chunk: &[f32; LANES], least: f32) -> bool {
    chunk.iter().map(|&v| u32::from(v >= least)).sum::<u32>() > 0
}

/// How far [`softmax_total`] may be off, relative to the exact sum. Its parts: the exponent, at most 60, is
/// rounded three times in `f32` (1.1e-5 together); the polynomial (3e-6); 64 additions in `f32` (4e-6);
/// tokens below e^-60 (under 1e-20).
pub(super) const TOTAL_ERROR: f64 = 1e-4;

/// Sum of exp((logit - max) / temperature) with a relative error below [`TOTAL_ERROR`]; `max` is the largest
/// logit, and logits may be minus infinity.
pub(super) fn softmax_total(logits: &[f32], max: f32, temperature: f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(64 * LANES) {
        let mut lanes = [0.0_f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += exp((chunk[i] - max) / temperature);
            }
        }
        total += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        total += rest.iter().map(|&v| f64::from(exp((v - max) / temperature))).sum::<f64>();
    }
    total
}

/// e^x for x <= 0 in vector instructions: 2^n times the Taylor polynomial of the rest, whose exponent is at
/// most ln(2)/2; below -60 as at -60.
fn exp(x: f32) -> f32 {
    // Adding this makes `f32` round to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let x = if x > -60.0 { x } else { -60.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * std::f32::consts::LN_2;
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0)))));
    // n + 127, the biased exponent of 2^n, moved to its place; n is -87 or more, so it stays positive.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    series * power
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random values with many ties.
    fn values(len: usize, seed: u32) -> Vec<f32> {
        let step = |s: u32| s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::iter::successors(Some(step(seed)), |&s| Some(step(s)))
            .map(|s| ((s >> 20) as f32 - 2048.0) / 64.0)
            .take(len)
            .collect()
    }

    #[test]
    fn the_first_of_the_largest_wins_and_nan_never() {
        assert_eq!(argmax(&[f32::NAN, -1.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
        for len in [1, 31, 32, 33, 1000, 5000] {
            let values = values(len, len as u32);
            let (first, _) =
                values.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
            assert_eq!(argmax(&values) as usize, first);
        }
    }

    #[test]
    fn every_place_of_a_value_that_is_not_finite_is_found() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for i in 0..70 {
                let mut values = values(70, 1);
                assert!(all_finite(&values));
                values[i] = bad;
                assert!(!all_finite(&values), "{bad} at {i}");
            }
        }
        assert!(all_finite(&[f32::MAX, f32::MIN, -0.0]));
    }

    #[test]
    fn the_nth_largest_is_that_of_the_sorted() {
        for len in [1, 33, 1000, 20_000] {
            let values = values(len, 7);
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for n in [1, 2, 20, 256, 999, 2048] {
                assert_eq!(nth_largest(&values, n), sorted.get(n - 1).copied(), "{n} of {len}");
            }
        }
        let excluded = f32::NEG_INFINITY;
        assert_eq!(nth_largest(&[excluded, 1.0, excluded], 2), None);
        assert_eq!(nth_largest(&[excluded, 1.0, excluded], 1), Some(1.0));
    }

    #[test]
    fn values_at_a_bound_are_taken_in_order() {
        let values = values(1000, 3);
        let mut taken = Vec::new();
        for_each_at_least(&values, values[500], |token, v| taken.push((token, v)));
        let expected: Vec<(u32, f32)> =
            (0..).zip(values.iter().copied()).filter(|&(_, v)| v >= values[500]).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn the_estimated_total_keeps_its_bound() {
        for (len, seed) in [(1, 1), (100, 2), (50_000, 3)] {
            let mut values = values(len, seed);
            let max = largest(&values);
            values.push(f32::NEG_INFINITY);
            for temperature in [1e-30, 0.01, 0.3, 0.7, 1.0, 2.5, 100.0] {
                let exact: f64 = values
                    .iter()
                    .map(|&v| (f64::from(v - max) / f64::from(temperature)).exp())
                    .sum();
                let error = (softmax_total(&values, max, temperature) / exact - 1.0).abs();
                // A fifth: the bound must not be nearly reached.
                assert!(error < TOTAL_ERROR / 5.0, "{error} at temperature {temperature}");
            }
        }
    }
}
