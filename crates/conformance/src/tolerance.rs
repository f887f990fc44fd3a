//! How far kernels may be from the reference: every bound in one table, each with its origin.
//!
//! Bounds are relative to the root mean square of the expected row (`calla_testkit::compare`). Where a result is stored
//! in bf16, its rounding is taken off first ([`BF16`]), so that a bound speaks of what the kernel computed.

/// Half a step of bf16, relative to the value.
pub const BF16: f32 = 1.0 / 256.0;

/// Weights of experts, absolute: an exponential of at most 2 ulp, a sum of up to 16 and a division, each 2^-24 of at
/// most 1. Measured: 3.6e-7.
pub const ROUTING: f32 = 1e-6;
/// Gate and up products of normed rows in f32, then SwiGLU: a rounding of 2^-24 for each of up to 4096 terms of random
/// sign in partial sums of 16, and a value of 5 rms multiplies one of the other. Measured: 4.1e-6.
pub const EXPERT_QMV_UP: f32 = 2e-5;
/// Products of up to 16 experts of random weights, and of the shared one, added to a residual of three times
/// their size. Measured: 3.6e-7.
pub const EXPERT_QMV_DOWN: f32 = 2e-6;
/// A sum of up to 18 terms in f32, in the reference's own order; the exponential of the gate differs.
/// Measured: 6.2e-7.
pub const COMBINE: f32 = 2e-6;
/// A product of a normed row with a quantised matrix in f32: a rounding of 2^-24 for each of up to 4160 terms of random
/// sign in partial sums of 8. Measured: 9.5e-7.
pub const QMV: f32 = 4e-6;
/// Two of them and SiLU: errors add, and a value of 5 rms multiplies one of the other. Measured: 1.6e-6.
pub const QMV_SWIGLU: f32 = 8e-6;
/// A row of the embedding, relative to its root mean square: one rounding or two, of values of up to 4 rms. Measured: 0.
pub const EMBED: f32 = 5e-7;
/// RMS norm: three roundings of values of up to 5 rms, and a sum of squares. Measured: 9.5e-7.
pub const RMS_NORM: f32 = 2e-6;
/// Norm and rotation of heads, relative to the rms of a head: as [`RMS_NORM`], then two products of values of up to 10 rms
/// whose cosines and sines are sums of two products, each 2^-24 off.
/// Measured: 1.9e-6.
pub const QK_PREP: f32 = 6e-6;
/// Attention with f32 products: sums of up to 1000 weighted values in parts, and weights e^s whose exponents, sums of 256
/// products of up to 3 rms, are 2^-24 of some 10 off. Measured: 8.5e-6.
pub const ATTENTION_DECODE: f32 = 3e-5;
/// The same in tiles, of bf16 inputs; the rounding of the result is taken off. Tensor cores cut off what they add where
/// others round, and weights count with 16 bits: over 1000 positions that is up to 2^-16 of a row. Measured: 3.8e-6; on
/// tensor cores 1.02e-5.
pub const ATTENTION_PREFILL: f32 = 1.6e-5;
/// A product of bf16 rows with a quantised matrix in f32: a rounding of 2^-24 for each of up to 2048 terms of random sign,
/// at 4.5 standard deviations 1.2e-5. Measured: 3.2e-6.
pub const QMM: f32 = 1.5e-5;
/// Two of them and SiLU, before the rounding to bf16, relative to the value or 1: errors add, and a value of 5 rms multiplies
/// one of the other.
pub const QMM_SWIGLU: f32 = 3e-5;
/// Terms of the recurrence: four products, an exponential, a norm over 128.
pub const DELTA_TERMS: f32 = 1e-5;
/// Log decays and write strengths, relative to each value: two exponentials and a logarithm.
pub const DELTA_GATES: f32 = 3e-6;
/// One decode step after another, in f32: the state is rounded at every token, and the reference's too.
pub const DELTA_STEP: f32 = 2e-5;
/// The recurrence in chunks, against f64 sums: f32 products over 128 keys and 64 rows, and the triangular inverse, whose
/// terms may cancel.
pub const DELTA_CHUNKS: f32 = 1e-4;
/// The state after chunks: a factor e^G whose exponent, a sum over up to 64 rows of some hundred in all, is a few times
/// 2^-24 of that off, on elements of up to 10 rms. Measured: 1.9e-4.
pub const DELTA_STATE: f32 = 5e-4;
/// Gated norm: a sum of squares and two exponentials.
pub const GATED_NORM: f32 = 1e-5;
/// Logits of a random network of up to five layers, the distance of a row from the expected one relative to that one:
/// activations of a prefill, keys, values and what convolutions see are rounded to bf16 some ten times a layer, each 1.1e-3
/// of the value, and a norm after sums that cancel makes more of it. Every expert is chosen. Measured: 6.5e-2.
pub const NETWORK: f64 = 1.3e-1;
/// The same of the middle one of many rows. Measured: 2.1e-2.
pub const NETWORK_MEDIAN: f64 = 4e-2;
/// The same where experts are chosen, and now and then others. Measured: 5.6e-2.
pub const NETWORK_MEDIAN_CHOSEN: f64 = 1e-1;
/// Logits of one position and of the next, if they were taken for one another: the middle distance is larger than this.
pub const NETWORK_OTHER_ROW: f64 = 0.8;
