//! Where a thread is: the attributes that tell a kernel's parameters from each other.

/// A value that each thread gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Metal's own names")]
pub enum Builtin {
    ThreadPositionInGrid,
    ThreadgroupPositionInGrid,
    ThreadPositionInThreadgroup,
    ThreadsPerThreadgroup,
    ThreadgroupsPerGrid,
    ThreadsPerGrid,
    ThreadIndexInThreadgroup,
    ThreadIndexInSimdgroup,
    SimdgroupIndexInThreadgroup,
    SimdgroupsPerThreadgroup,
    ThreadsPerSimdgroup,
}

const ALL: [(&str, Builtin); 11] = [
    ("thread_position_in_grid", Builtin::ThreadPositionInGrid),
    ("threadgroup_position_in_grid", Builtin::ThreadgroupPositionInGrid),
    ("thread_position_in_threadgroup", Builtin::ThreadPositionInThreadgroup),
    ("threads_per_threadgroup", Builtin::ThreadsPerThreadgroup),
    ("threadgroups_per_grid", Builtin::ThreadgroupsPerGrid),
    ("threads_per_grid", Builtin::ThreadsPerGrid),
    ("thread_index_in_threadgroup", Builtin::ThreadIndexInThreadgroup),
    ("thread_index_in_simdgroup", Builtin::ThreadIndexInSimdgroup),
    ("simdgroup_index_in_threadgroup", Builtin::SimdgroupIndexInThreadgroup),
    ("simdgroups_per_threadgroup", Builtin::SimdgroupsPerThreadgroup),
    ("threads_per_simdgroup", Builtin::ThreadsPerSimdgroup),
];

impl Builtin {
    /// The one that an attribute names.
    #[must_use]
    pub fn named(attribute: &str) -> Option<Self> {
        ALL.iter().find(|(name, _)| *name == attribute).map(|&(_, builtin)| builtin)
    }

    /// Whether it is one number, whatever the shape of the grid.
    #[must_use]
    pub fn is_scalar(self) -> bool {
        matches!(
            self,
            Self::ThreadIndexInThreadgroup
                | Self::ThreadIndexInSimdgroup
                | Self::SimdgroupIndexInThreadgroup
                | Self::SimdgroupsPerThreadgroup
                | Self::ThreadsPerSimdgroup
        )
    }
}
