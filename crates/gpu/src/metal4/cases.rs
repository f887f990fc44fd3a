//! The cases of the self-test: sizes around the edges of tiles, blocks and pages.

use super::{VARIANTS, Variant};
use crate::entries;
use std::ops::Range;

/// What a case computes, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `qmm`: products with matrices `[columns, width]`.
    Products {
        /// Input width.
        width: usize,
        /// Output widths of one to four matrices.
        columns: &'static [usize],
        /// Bits of all.
        bits: u32,
        /// Added to what the outputs hold.
        add: bool,
    },
    /// `qmm_swiglu`.
    Swiglu {
        /// Input width.
        width: usize,
        /// Output width.
        columns: usize,
        /// Bits of gate and of up.
        bits: [u32; 2],
    },
    /// `expert_qmm_up`.
    ExpertsUp(Experts),
    /// `expert_qmm_down`.
    ExpertsDown(Experts),
    /// `attention_prefill` of the rows of one sequence.
    Attention {
        /// Query heads.
        heads: usize,
        /// Heads of keys and values.
        kv_heads: usize,
        /// Position of the first row.
        position: usize,
    },
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub experts: usize,
    /// How many a row takes.
    pub top_k: usize,
    /// Width of a row.
    pub hidden: usize,
    /// Inner width of an expert.
    pub expert_hidden: usize,
    /// Bits of gate and of up; down has the former.
    pub bits: [u32; 2],
}

/// One case: `rows` rows of an operation, with inputs made from `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Of all that is random.
    pub seed: u64,
    /// Rows of activations.
    pub rows: usize,
    /// What is computed.
    pub operation: Operation,
}

const fn products(
    rows: usize,
    width: usize,
    columns: &'static [usize],
    bits: u32,
    add: bool,
) -> Case {
    let seed = (rows * 1000 + width) as u64;
    Case { seed, rows, operation: Operation::Products { width, columns, bits, add } }
}

const fn swiglu(rows: usize, width: usize, columns: usize, bits: [u32; 2]) -> Case {
    let seed = (rows * 1000 + width) as u64;
    Case { seed, rows, operation: Operation::Swiglu { width, columns, bits } }
}

const fn attention(rows: usize, heads: usize, kv_heads: usize, position: usize) -> Case {
    let seed = (rows * 1000 + position) as u64;
    Case { seed, rows, operation: Operation::Attention { heads, kv_heads, position } }
}

const ODD: Experts =
    Experts { experts: 20, top_k: 5, hidden: 192, expert_hidden: 64, bits: [4, 8] };
const FEW: Experts =
    Experts { experts: 3, top_k: 2, hidden: 320, expert_hidden: 128, bits: [8, 8] };

/// All cases. Small ones around edges, and of each operation one as long as the largest model's.
pub const CASES: &[Case] = &[
    products(1, 64, &[1], 4, false),
    products(15, 192, &[33, 1, 64, 20], 8, false),
    products(33, 128, &[65], 4, true),
    products(65, 256, &[130, 7], 8, true),
    products(97, 2048, &[64, 20], 4, false),
    swiglu(17, 64, 20, [4, 8]),
    swiglu(65, 2048, 40, [4, 4]),
    Case { seed: 1, rows: 33, operation: Operation::ExpertsUp(ODD) },
    Case { seed: 2, rows: 70, operation: Operation::ExpertsUp(FEW) },
    Case { seed: 3, rows: 33, operation: Operation::ExpertsDown(ODD) },
    Case { seed: 4, rows: 70, operation: Operation::ExpertsDown(FEW) },
    attention(9, 8, 2, 0),
    attention(35, 3, 1, 60),
    attention(66, 16, 2, 190),
    attention(40, 2, 2, 1000),
];

impl Case {
    /// The kernel that computes it with tiles of so many rows.
    pub(super) fn variant(&self, tile: u32) -> &'static Variant {
        let [r32, r64] = match self.operation {
            Operation::Products { .. } => [entries::QMM_R32, entries::QMM_R64],
            Operation::Swiglu { .. } => [entries::QMM_SWIGLU_R32, entries::QMM_SWIGLU_R64],
            Operation::ExpertsUp(_) => [entries::EXPERT_QMM_UP_R32, entries::EXPERT_QMM_UP_R64],
            Operation::ExpertsDown(_) => {
                [entries::EXPERT_QMM_DOWN_R32, entries::EXPERT_QMM_DOWN_R64]
            }
            Operation::Attention { .. } => [entries::ATTENTION_PREFILL; 2],
        };
        let entry = if tile == 32 { r32 } else { r64 };
        VARIANTS.iter().find(|variant| variant.entry == entry).expect("all operations have one")
    }

    /// Whether its results are stored in bf16.
    pub(super) fn is_rounded(&self) -> bool {
        match self.operation {
            Operation::Products { .. } | Operation::ExpertsDown(_) => false,
            Operation::Swiglu { .. } | Operation::ExpertsUp(_) | Operation::Attention { .. } => {
                true
            }
        }
    }

    /// Rows to compute without the others: the first, the last, and some between.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        let rows = self.rows;
        let some = rows / 3..rows - rows / 4;
        [0..1, some, rows - 1..rows].into_iter().filter(|part| !part.is_empty()).collect()
    }
}
