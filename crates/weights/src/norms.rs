//! Means of norm scales: which convention they are stored in, and whether they are plausible.

use crate::layout::NormConvention;

/// A scale's mean in a trained network lies near 1: that is where training starts. Applying the offset
/// twice gives about 2, forgetting it about 0; both load without an error and then output noise.
pub(crate) const TRUNK_MEAN_MIN: f32 = 0.3;
/// See [`TRUNK_MEAN_MIN`].
pub(crate) const TRUNK_MEAN_MAX: f32 = 1.7;

/// Mean of a vector, in double precision; 0 for an empty one.
pub(crate) fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&x| f64::from(x)).sum();
    if values.is_empty() { 0.0 } else { (sum / values.len() as f64) as f32 }
}

/// The convention that most of the stored vectors show; ties count as full scale.
///
/// A vector is taken as zero-centred if its mean is below a half or more than a twentieth of its values
/// are negative: a full scale is almost never negative, since training starts it at 1.
pub(crate) fn convention<'a>(vectors: impl Iterator<Item = &'a [f32]>) -> NormConvention {
    let (mut zero_centred, mut count) = (0, 0);
    for vector in vectors {
        count += 1;
        let negative = vector.iter().filter(|&&x| x < 0.0).count();
        if mean(vector) < 0.5 || negative * 20 > vector.len() {
            zero_centred += 1;
        }
    }
    if zero_centred * 2 > count { NormConvention::ZeroCentred } else { NormConvention::Full }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_decides() {
        let full = [0.9, 1.1, 1.3, 0.8];
        let zero = [-0.1, 0.1, 0.3, -0.2];
        // A final norm may have grown large in either convention.
        let grown = [3.0, 4.0, 5.0, 2.5];
        let of = |list: &[&[f32]]| convention(list.iter().copied());
        assert_eq!(of(&[&full, &full, &grown]), NormConvention::Full);
        assert_eq!(of(&[&zero, &zero, &grown]), NormConvention::ZeroCentred);
    }
}
