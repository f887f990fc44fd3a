//! SwiGLU and the scalar functions it is made of.

use crate::tensor::Rows;

/// `1 / (1 + e^-x)`.
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
#[must_use]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, without overflow for large `x`.
#[must_use]
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `silu(gate) * up`, element by element.
#[must_use]
pub fn reference(gate: &Rows, up: &Rows) -> Rows {
    let values = gate.as_slice().iter().zip(up.as_slice()).map(|(&g, &u)| silu(g) * u);
    Rows::from_vec(gate.cols(), values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_arguments_stay_finite() {
        for x in [-1e30_f32, -100.0, 0.0, 100.0, 1e30] {
            assert!(sigmoid(x).is_finite() && silu(x).is_finite() && softplus(x).is_finite());
        }
        assert_eq!(softplus(100.0), 100.0);
        assert!((softplus(0.0) - 2_f32.ln()).abs() < 1e-7);
    }
}
