//! The values of a random tensor: any piece of it, at any time, on any thread.

use calla_model::AffineFormat;
use half::bf16;
use std::sync::Arc;

/// How a tensor's values come about. `stream` identifies the module and the seed.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// Packed integers, uniform.
    Packed { stream: u64 },
    /// Scales or biases of a quantised matrix, bf16.
    Group { stream: u64, group: Group, what: GroupValue },
    /// Plain values, bf16, each a function of its random number in `[0, 1)`.
    Each { stream: u64, value: Value },
}

/// Which of a group's two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupValue {
    Scale,
    Bias,
}

/// Parameters of a quantised matrix.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) format: AffineFormat,
    /// Standard deviation of the matrix's values.
    pub(super) std: f32,
    /// Groups per row.
    pub(super) per_row: usize,
    /// Added to the values of each row's first group: one number for all rows, or one per row.
    pub(super) first_group_shifts: Option<Arc<[f32]>>,
}

/// Distribution of plain values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// Uniform, mean 0, of this standard deviation.
    Uniform { std: f32 },
    /// A norm's scale: 0.9 to 1.1.
    Norm,
    /// Decay rates from 1 to 16, as in training's initial values (Mamba-2), as logarithms.
    ALog,
    /// Time steps from 0.001 to 0.1, log-uniform, through the inverse of softplus (Mamba-2).
    DtBias,
}

impl Fill {
    /// Writes the bytes of the tensor from `offset` on into `out`. `offset` is a multiple of 8.
    pub(super) fn fill(&self, offset: usize, out: &mut [u8]) {
        match self {
            Self::Packed { stream } => {
                let mut counter = offset as u64 / 8;
                let mut words = out.chunks_exact_mut(8);
                for word in &mut words {
                    word.copy_from_slice(&random(*stream, counter).to_le_bytes());
                    counter += 1;
                }
                let rest = words.into_remainder();
                rest.copy_from_slice(&random(*stream, counter).to_le_bytes()[..rest.len()]);
            }
            Self::Group { stream, group, what } => {
                fill_bf16(offset, out, group.values(*stream, *what));
            }
            Self::Each { stream, value } => {
                fill_bf16(offset, out, |i| value.of(unit(random(*stream, i as u64))));
            }
        }
    }
}

fn fill_bf16(offset: usize, out: &mut [u8], value: impl Fn(usize) -> f32) {
    for (i, bytes) in out.chunks_exact_mut(2).enumerate() {
        bytes.copy_from_slice(&bf16::from_f32(value(offset / 2 + i)).to_le_bytes());
    }
}

impl Group {
    /// The scale or bias of each group, by its index in the matrix.
    fn values(&self, stream: u64, what: GroupValue) -> impl Fn(usize) -> f32 {
        let levels = ((1_u32 << self.format.bits()) - 1) as f32;
        // Standard deviation of a uniform integer in 0..=levels.
        let integer_std = (levels * (levels + 2.0) / 12.0).sqrt();
        let size = self.std / integer_std;
        move |index| {
            let bits = random(stream, index as u64);
            // Scales differ by group, and half of them are negative, as MLX's are.
            let magnitude = short(size * (0.75 + 0.5 * unit(bits)));
            let scale = if bits & 1 == 0 { magnitude } else { -magnitude };
            match what {
                GroupValue::Scale => scale,
                // The mean of the group is 0 before the shift.
                GroupValue::Bias => -0.5 * levels * scale + self.shift(index),
            }
        }
    }

    fn shift(&self, index: usize) -> f32 {
        match &self.first_group_shifts {
            Some(shifts) if index.is_multiple_of(self.per_row) => {
                shifts[index / self.per_row % shifts.len()]
            }
            _ => 0.0,
        }
    }
}

/// Rounds to 4 significant bits, so that bf16 holds -7.5 times the value exactly and a 4-bit group's mean
/// is exactly 0.
fn short(value: f32) -> f32 {
    f32::from_bits((value.to_bits() + (1 << 19)) & !((1 << 20) - 1))
}

impl Value {
    fn of(self, unit: f32) -> f32 {
        match self {
            Self::Uniform { std } => (2.0 * unit - 1.0) * 3.0_f32.sqrt() * std,
            Self::Norm => 0.9 + 0.2 * unit,
            Self::ALog => (1.0 + 15.0 * unit).ln(),
            Self::DtBias => {
                let (min, max) = (0.001_f32.ln(), 0.1_f32.ln());
                let step = (min + (max - min) * unit).exp();
                step + (-(-step).exp_m1()).ln()
            }
        }
    }
}

/// The key of a named stream of random numbers (FNV-1a of the name, mixed with the seed).
pub(super) fn stream(seed: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(mix(seed) ^ hash)
}

/// Number `counter` of a stream (splitmix64).
pub(super) fn random(stream: u64, counter: u64) -> u64 {
    mix(stream.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The top 24 bits as a number in `[0, 1)`.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 24) as f32
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
