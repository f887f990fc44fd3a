//! How far a backend may be from the reference: every bound in one table, each with its origin.
//!
//! Bounds of operations are relative to the root mean square of the expected row
//! ([`crate::compare::Difference`]), for inputs of unit variance. With u = 2^-24 (rounding of f32), a sum of n
//! products of random sign in f32 is off by about u * sqrt(n) of its own size; the largest error of some
//! 10^5 elements is about 4.5 standard deviations.

/// Bounds for one kind of arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Decoded stored values (embedding).
    pub decode: f32,
    /// Norms, activations, rotations, gates, convolution, weighted sums: a few roundings, exponentials in
    /// f32.
    pub elementwise: f32,
    /// The recurrence over some hundred tokens.
    pub recurrence: f32,
    /// Attention over some hundred positions.
    pub attention: f32,
    /// A product with stored weights.
    pub linear: f32,
    /// Two products and what lies between (SwiGLU multiplies two of them, so errors add).
    pub experts: f32,
    /// A fused operation against the same backend's composition of it.
    pub fused: f32,
    /// Router logits this close may be ranked either way (their deviation is about 2).
    pub router_tie: f32,
    /// Weights of chosen experts.
    pub router_weight: f32,
    /// Mean divergence of the logits of a whole random network.
    pub kl_mean: f64,
    /// Where the reference's margin exceeds this, the first token must be the same.
    pub sure_margin: f64,
}

/// The reference in another order of summation (its chunked recurrence): f32 values, f64 sums.
pub const REFERENCE: Tolerance = Tolerance {
    decode: 0.0,
    elementwise: 0.0,
    // The recurrent form rounds its state to f32 at every token: u * sqrt(200) * 4.5 = 4e-6, and up to 32
    // times that in a row that is small because its query is nearly orthogonal to the few keys there are.
    // Measured: 2.6e-5.
    recurrence: 1.3e-4,
    attention: 0.0,
    linear: 0.0,
    experts: 0.0,
    fused: 0.0,
    router_tie: 0.0,
    router_weight: 0.0,
    // Divergence is quadratic in the logits' error: errors of 1e-5 give 1e-10.
    kl_mean: 1e-8,
    sure_margin: 0.01,
};

/// Arithmetic in f32 throughout. "Measured" is the CPU backend, AVX-512 and portable.
pub const F32: Tolerance = Tolerance {
    // One rounding where the reference has a fused multiply-add, of terms up to 2 rms. Measured: 0.
    decode: 1e-6,
    // About ten roundings of terms up to 5 rms, and exp of an argument up to 30, whose relative error is
    // 30 u = 2e-6. Measured: 3.6e-6 (gated norm).
    elementwise: 1e-5,
    // As in REFERENCE, with sums of 128 products in f32 for each read. Measured: 2.7e-5.
    recurrence: 1.5e-4,
    // Scores up to 8 with an error of u * sqrt(256) * 8 = 8e-6 in the exponent. Measured: 8.4e-6.
    attention: 3e-5,
    // u * sqrt(384) * 4.5 = 5e-6. Weights may also be multiplied as s * sum(x q) + b * sum(x), whose parts
    // cancel and are some times as large as the result. Measured: 1.2e-6.
    linear: 2e-5,
    // Measured: 3.7e-6.
    experts: 5e-5,
    // A fused operation may sum in another order than its parts, so both errors count.
    fused: 2e-4,
    // `linear` times 2 (the logits' deviation) times 2 (two of them), with room.
    router_tie: 1e-4,
    router_weight: 1e-4,
    // Errors of 1e-4 in logits give 1e-8; a near tie of experts that falls the other way at one position in
    // a hundred gives more.
    kl_mean: 1e-6,
    sure_margin: 0.05,
};

/// Activations rounded to 8 bits per block before products with stored weights, the rest in f32.
pub const INT8_ACTIVATIONS: Tolerance = Tolerance {
    // A block's step is max / 127, about 3 rms / 127 (10 / 127 with an outlier), its rounding error
    // step / sqrt(12) per product: 0.7 % of the result's rms, 2 % in a row with an outlier; times 4.5.
    linear: 0.1,
    experts: 0.3,
    fused: 0.1,
    // A router's logits have a deviation of about 2, so an error of 0.7 to 2 % is 0.015 to 0.04; the difference
    // of two, 4.5 deviations out.
    router_tie: 0.3,
    router_weight: 0.1,
    // Random weights flip experts easily: llama.cpp, which rounds the same way, measures 4.3e-3 on such a
    // network.
    kl_mean: 2e-2,
    sure_margin: 1.0,
    ..F32
};
