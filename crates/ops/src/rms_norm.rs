//! RMS norm: `x / sqrt(mean(x^2) + eps) * scale`.
//!
//! `scale` is the full factor. Raw Hugging Face files store it less one; `weights` adds the one back.

use crate::tensor::Rows;

/// Norms each row.
#[must_use]
pub fn reference(x: &Rows, scale: &[f32], eps: f32) -> Rows {
    let mut y = x.clone();
    for row in y.iter_mut() {
        normalize(row, scale, eps);
    }
    y
}

/// Norms one vector in place.
///
/// # Panics
/// If the lengths differ.
pub fn normalize(x: &mut [f32], scale: &[f32], eps: f32) {
    assert_eq!(x.len(), scale.len());
    let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let inverse = (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32;
    for (x, s) in x.iter_mut().zip(scale) {
        *x = *x * inverse * s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_mean_square_becomes_the_scale() {
        let y = reference(&Rows::from_vec(2, vec![3.0, 4.0, 0.0, 0.0]), &[2.0, 2.0], 1e-6);
        let rms = ((y.row(0)[0].powi(2) + y.row(0)[1].powi(2)) / 2.0).sqrt();
        assert!((rms - 2.0).abs() < 1e-5);
        assert_eq!(y.row(1), [0.0, 0.0]);
    }
}
