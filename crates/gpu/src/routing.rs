//! Where the choice of experts lies on a device, row by row and sorted by expert.

use crate::scratch::Scratch;
use crate::shape_constants::width;
use crate::tensor::{Dtype, Tensor};
use calla_model::Shape;

/// Experts of each row, in order of falling probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Expert of each rank, `u32 [n, top_k]`.
    pub experts: Tensor,
    /// Its weight, f32 `[n, top_k]`; a row's weights sum to 1.
    pub weights: Tensor,
}

impl Routing {
    /// Rows that were routed.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.experts.rows
    }

    /// Number of pairs of a row and one of its experts.
    #[must_use]
    pub fn pairs(&self) -> u32 {
        self.experts.rows * self.experts.cols
    }

    /// Checks dtypes and dimensions for `rows` rows.
    ///
    /// # Panics
    /// If they are others.
    pub(crate) fn check(&self, shape: &Shape, rows: u32) {
        self.experts.check("experts of rows", rows, width(shape.top_k), Dtype::U32);
        self.weights.check("weights of rows", rows, width(shape.top_k), Dtype::F32);
    }
}

/// Pairs `row * top_k + rank` sorted by expert, and cut into blocks of rows that one expert takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped {
    /// Pair at each sorted position, `u32 [1, n * top_k]`: by expert, then by pair.
    pub pairs: Tensor,
    /// First sorted position of each expert, and the number of pairs at the end: `u32 [1, experts + 1]`.
    pub offsets: Tensor,
    /// Blocks in order of experts, `u32 [max_blocks, 4]`: expert, first sorted position, number of positions
    /// (1 to `block_rows`), 0. Those from `block_count` on are all 0.
    pub blocks: Tensor,
    /// Number of blocks, `u32 [1, 1]`.
    pub block_count: Tensor,
    /// Positions of a full block: 32 or 64.
    pub block_rows: u32,
}

impl Grouped {
    /// The most blocks that `pairs` pairs can give: full ones, and one that is not full for each expert that has any.
    #[must_use]
    pub fn max_blocks(shape: &Shape, pairs: u32, block_rows: u32) -> u32 {
        pairs / block_rows + pairs.min(width(shape.experts))
    }

    /// Tensors for `pairs` pairs.
    pub fn new(shape: &Shape, pairs: u32, block_rows: u32, scratch: &mut dyn Scratch) -> Self {
        let max_blocks = Self::max_blocks(shape, pairs, block_rows);
        let this = Self {
            pairs: scratch.tensor(1, pairs, Dtype::U32),
            offsets: scratch.tensor(1, width(shape.experts) + 1, Dtype::U32),
            blocks: scratch.tensor(max_blocks, 4, Dtype::U32),
            block_count: scratch.tensor(1, 1, Dtype::U32),
            block_rows,
        };
        this.check(shape, pairs);
        this
    }

    /// Checks dtypes and dimensions for `pairs` pairs.
    ///
    /// # Panics
    /// If they are others.
    pub(crate) fn check(&self, shape: &Shape, pairs: u32) {
        assert!(matches!(self.block_rows, 32 | 64), "blocks of {} rows", self.block_rows);
        self.pairs.check("sorted pairs", 1, pairs, Dtype::U32);
        self.offsets.check("offsets", 1, width(shape.experts) + 1, Dtype::U32);
        self.block_count.check("block count", 1, 1, Dtype::U32);
        let blocks = Self::max_blocks(shape, pairs, self.block_rows);
        self.blocks.check("blocks", blocks, 4, Dtype::U32);
    }
}
