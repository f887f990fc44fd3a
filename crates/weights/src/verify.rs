//! A scan of every value of a checkpoint: no NaN, no infinity, and norms that a trained network can have.

use crate::checkpoint::{Checkpoint, Tensor, float_type};
use crate::error::TensorName;
use crate::layout::{is_mtp, is_norm};
use crate::norms;
use calla_model::FloatType;
use rayon::prelude::*;

/// Bytes that one thread scans at a time; a multiple of every element's size.
const SCAN_CHUNK_BYTES: usize = 4 << 20;
/// Range of the mean of one norm's scale. Wide: single norms grow large in training.
const NORM_MEAN: std::ops::RangeInclusive<f32> = 0.01..=100.0;
/// Range of `A_log`: outside of it the decay is 0 or 1 for every input.
const A_LOG: std::ops::RangeInclusive<f32> = -30.0..=10.0;

/// What [`verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Tensors whose values were scanned.
    pub scanned_tensors: usize,
    /// Their bytes.
    pub scanned_bytes: u64,
    /// Tensors of packed integers: any bit pattern is a valid value, so there is nothing to scan.
    pub integer_tensors: usize,
    /// What is wrong, in the order of the names.
    pub problems: Vec<Problem>,
}

/// Something wrong with a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which tensor.
    pub tensor: TensorName,
    /// What is wrong, as a sentence without its subject.
    pub problem: String,
}

impl Verification {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads every value of every tensor, the vision tower's too, on all cores.
#[must_use]
pub fn verify(checkpoint: &Checkpoint) -> Verification {
    let mut result = Verification::default();
    let mut tensors: Vec<(Option<&str>, Tensor<'_>, FloatType)> = Vec::new();
    let text = checkpoint.text_tensors().map(|(name, tensor)| (Some(name), tensor));
    for (name, tensor) in text.chain(checkpoint.vision_tensors().map(|tensor| (None, tensor))) {
        match float_type(tensor.entry.dtype) {
            Some(dtype) => {
                tensors.push((name, tensor, dtype));
                result.scanned_bytes += tensor.len_bytes() as u64;
            }
            None => result.integer_tensors += 1,
        }
    }
    result.scanned_tensors = tensors.len();
    // Both levels in parallel: few tensors are large, and many are small.
    let problems: Vec<Vec<Problem>> = tensors
        .par_iter()
        .map(|&(name, tensor, dtype)| {
            let mut problems: Vec<String> =
                count_bad(&tensor.bytes(), dtype).sentence().into_iter().collect();
            // A vector of NaN needs no second complaint.
            if problems.is_empty()
                && let Some(name) = name
            {
                problems.extend(implausible(checkpoint, name, tensor));
            }
            problems.into_iter().map(|problem| Problem { tensor: tensor.name(), problem }).collect()
        })
        .collect();
    result.problems = problems.into_iter().flatten().collect();
    result.problems.extend(trunk_mean(checkpoint));
    result
}

/// Values that are not numbers to compute with.
#[derive(Clone, Copy, Default)]
struct Bad {
    nan: usize,
    infinite: usize,
}

impl Bad {
    fn sentence(self) -> Option<String> {
        (self.nan + self.infinite > 0)
            .then(|| format!("holds {} NaN and {} infinite values", self.nan, self.infinite))
    }
}

fn count_bad(bytes: &[u8], dtype: FloatType) -> Bad {
    bytes
        .par_chunks(SCAN_CHUNK_BYTES)
        .map(|chunk| match dtype {
            FloatType::Bf16 => count_16(chunk, 0x7f80),
            FloatType::F16 => count_16(chunk, 0x7c00),
            FloatType::F32 => count_32(chunk),
        })
        .reduce(Bad::default, |a, b| Bad { nan: a.nan + b.nan, infinite: a.infinite + b.infinite })
}

/// Counts 16-bit floats whose exponent, under the mask `infinity`, is all ones.
fn count_16(bytes: &[u8], infinity: u16) -> Bad {
    let magnitude = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7fff;
    let not_finite = bytes.chunks_exact(2).filter(|b| magnitude(b) >= infinity).count();
    if not_finite == 0 {
        return Bad::default();
    }
    let infinite = bytes.chunks_exact(2).filter(|b| magnitude(b) == infinity).count();
    Bad { nan: not_finite - infinite, infinite }
}

fn count_32(bytes: &[u8]) -> Bad {
    let mut bad = Bad::default();
    for b in bytes.chunks_exact(4) {
        let value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        bad.nan += usize::from(value.is_nan());
        bad.infinite += usize::from(value.is_infinite());
    }
    bad
}

/// What is odd about a small vector of finite values.
fn implausible(checkpoint: &Checkpoint, name: &str, tensor: Tensor<'_>) -> Option<String> {
    let is_a_log = name.ends_with(".A_log");
    if !tensor.is_small_vector() || !(is_norm(name) || is_a_log) {
        return None;
    }
    let values = tensor.to_f32().ok()?;
    if is_a_log {
        let odd = values.iter().find(|value| !A_LOG.contains(value))?;
        return Some(format!(
            "holds the log decay rate {odd}, outside of {} to {}",
            A_LOG.start(),
            A_LOG.end()
        ));
    }
    let convention = match checkpoint.mtp_norms() {
        Some(convention) if is_mtp(name) => convention,
        _ => checkpoint.layout().norms(),
    };
    let mean = norms::mean(&values) + convention.offset();
    (!NORM_MEAN.contains(&mean)).then(|| {
        format!(
            "has a mean scale of {mean}, outside of {} to {}",
            NORM_MEAN.start(),
            NORM_MEAN.end()
        )
    })
}

/// The mean over all layers is near 1 in every trained network, unless the offset was taken wrongly.
fn trunk_mean(checkpoint: &Checkpoint) -> Option<Problem> {
    let mut first = None;
    let mut means = Vec::new();
    for (name, tensor) in checkpoint.text_tensors() {
        if name.ends_with(".input_layernorm.weight") && !is_mtp(name) && tensor.is_small_vector() {
            first.get_or_insert(tensor);
            means.push(norms::mean(&tensor.to_f32().ok()?));
        }
    }
    let mean = norms::mean(&means) + checkpoint.layout().norms().offset();
    let (min, max) = (norms::TRUNK_MEAN_MIN, norms::TRUNK_MEAN_MAX);
    // NaN has been reported with its tensor.
    (mean < min || mean > max).then_some(first).flatten().map(|tensor| Problem {
        tensor: tensor.name(),
        problem: format!(
            "has, averaged with the input norms of all layers, a mean scale of {mean:.3}, outside of {min} \
             to {max}: were they stored with an unusual offset?"
        ),
    })
}
