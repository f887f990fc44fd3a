//! Number formats of stored weights: float types and MLX's affine quantisation, with its plain decoder.
//!
//! Affine: along the input dimension, groups of `group` values share a scale `s` and a bias `b`, and
//! value j is `s * q[j] + b` with `q` an unsigned integer of `bits` bits. The integers of a row form one
//! little-endian bit stream: value j occupies bits `[bits*j, bits*(j+1))`, least significant first. For
//! 2, 4 and 8 bits values never straddle a 32-bit word; for 3, 5 and 6 bits they do.
//! (MLX `affine_quantize`; checked against arrays packed by MLX in `weights`' tests.)

use half::{bf16, f16};

/// A floating-point type that checkpoints store values in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl FloatType {
    /// Bytes of one value.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Value `index` of a little-endian array.
    ///
    /// # Panics
    /// If the array is too short.
    #[must_use]
    pub fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            Self::Bf16 => bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            Self::F16 => f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            Self::F32 => {
                let at = 4 * index;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
        }
    }

    /// Its name in user-facing text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

/// Parameters of affine quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffineFormat {
    bits: u8,
    group: u16,
}

impl AffineFormat {
    /// Bit widths that MLX writes.
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
    /// Group sizes that MLX writes.
    pub const GROUPS: [usize; 3] = [32, 64, 128];
    /// What the published MLX checkpoint uses almost everywhere.
    pub const Q4_64: Self = Self { bits: 4, group: 64 };
    /// What it uses for the router and the shared expert's gate.
    pub const Q8_64: Self = Self { bits: 8, group: 64 };

    /// A supported format, or `None`.
    #[must_use]
    pub fn new(bits: usize, group: usize) -> Option<Self> {
        (Self::BITS.contains(&bits) && Self::GROUPS.contains(&group))
            .then_some(Self { bits: bits as u8, group: group as u16 })
    }

    /// Bits of one value.
    #[must_use]
    pub fn bits(self) -> usize {
        usize::from(self.bits)
    }

    /// Values that share a scale and a bias.
    #[must_use]
    pub fn group(self) -> usize {
        usize::from(self.group)
    }

    /// Bytes of the packed integers of a row of `cols` values (`cols` a multiple of the group).
    #[must_use]
    pub fn packed_row_bytes(self, cols: usize) -> usize {
        cols * self.bits() / 8
    }

    /// Groups in a row of `cols` values.
    #[must_use]
    pub fn groups(self, cols: usize) -> usize {
        cols / self.group()
    }

    /// Integer `index` of a packed row.
    ///
    /// # Panics
    /// If the row is too short.
    #[must_use]
    pub fn unpack(self, row: &[u8], index: usize) -> u32 {
        let bit = index * self.bits();
        let (byte, shift) = (bit / 8, bit % 8);
        // A value of at most 8 bits spans at most two bytes of the stream.
        let low = u32::from(row[byte]);
        let high = if shift + self.bits() > 8 { u32::from(row[byte + 1]) } else { 0 };
        ((low | high << 8) >> shift) & ((1 << self.bits()) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpack_reads_a_little_endian_bit_stream() {
        // 3 bits: values 0..8 in order are the octal digits of the stream, least significant first.
        let format = AffineFormat::new(3, 32).unwrap();
        let stream = 0o76543210_u32.to_le_bytes();
        let values: Vec<u32> = (0..8).map(|i| format.unpack(&stream, i)).collect();
        assert_eq!(values, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(AffineFormat::Q4_64.unpack(&[0x21, 0x43], 3), 4);
        assert_eq!(AffineFormat::Q8_64.unpack(&[0x21, 0x43], 1), 0x43);
    }

    #[test]
    fn unsupported_formats_are_refused() {
        assert!(AffineFormat::new(7, 64).is_none());
        assert!(AffineFormat::new(4, 16).is_none());
        assert!(AffineFormat::new(0, 0).is_none());
    }
}
