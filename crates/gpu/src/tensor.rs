//! Where values lie on a device, and what they are.

/// A buffer that a device has allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// What a range is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A buffer that outlives the plan: weights, state, tables, results.
    Buffer(BufferId),
    /// A tensor of the plan itself. Placement turns it into a part of the scratch buffer.
    Scratch(u32),
}

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// What they are a part of.
    pub place: Place,
    /// Where they start.
    pub start: u64,
    /// How many they are.
    pub len: u64,
}

impl Range {
    /// No bytes, where it starts: what a buffer of a kernel is bound to that a dispatch does not use.
    #[must_use]
    pub fn nothing(self) -> Self {
        Self { len: 0, ..self }
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.place == other.place
            && self.len.min(other.len) > 0
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}

/// Type of stored elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// Unsigned integers: tokens, indices, packed weights.
    U32,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Elements `[rows, cols]` in a row, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where they lie.
    pub range: Range,
    /// Number of rows.
    pub rows: u32,
    /// Elements of a row.
    pub cols: u32,
    /// Type of the elements.
    pub dtype: Dtype,
}

impl Tensor {
    /// A tensor at byte `start` of `place`.
    #[must_use]
    pub fn new(place: Place, start: u64, rows: u32, cols: u32, dtype: Dtype) -> Self {
        let len = u64::from(rows) * u64::from(cols) * dtype.size();
        Self { range: Range { place, start, len }, rows, cols, dtype }
    }

    /// A tensor that a whole buffer holds.
    #[must_use]
    pub fn whole(buffer: BufferId, rows: u32, cols: u32, dtype: Dtype) -> Self {
        Self::new(Place::Buffer(buffer), 0, rows, cols, dtype)
    }

    /// Requires dimensions and type, for a twin of the tensor that it calls `what`.
    ///
    /// # Panics
    /// If they are others.
    #[track_caller]
    pub(crate) fn check(&self, what: &str, rows: u32, cols: u32, dtype: Dtype) {
        assert_eq!((self.rows, self.cols, self.dtype), (rows, cols, dtype), "{what}");
    }

    /// The same for any number of rows.
    ///
    /// # Panics
    /// If width or type are others.
    #[track_caller]
    pub(crate) fn check_width(&self, what: &str, cols: u32, dtype: Dtype) {
        assert_eq!((self.cols, self.dtype), (cols, dtype), "{what}");
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.cols) * self.dtype.size()
    }
}
