//! One run of a kernel, as plain data: what it is called, what it touches, how large it is.

use crate::tensor::{Range, Tensor};
use bytemuck::NoUninit;

/// What a kernel may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `device const T*`: it is only read.
    Read,
    /// `device T*`, and nothing of what was there before is read.
    Write,
    /// `device T*`, read and written.
    ReadWrite,
}

impl Access {
    /// Whether it reads what others wrote.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// A range at a buffer index of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// All that may be touched.
    pub range: Range,
    /// How.
    pub access: Access,
}

/// What of the memory a dispatch is expected to move, in bytes. Ranges say what *may* be touched; an expert gather may
/// touch all experts and moves eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// One run of a kernel.
///
/// Buffer indices are given in order: each of the methods that bind takes the next one, and the parameters, where there
/// are any, take the last. Every kernel declares its buffers in that order.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// Name of the entry point (`host_name`).
    pub entry: &'static str,
    /// What it does here, for traces and errors: `layers.3 experts_up`.
    pub label: String,
    /// Function constants by index, sorted. Together with `entry` they name a pipeline.
    pub constants: Vec<(u32, u32)>,
    /// What it touches, by buffer index.
    pub bindings: Vec<Binding>,
    /// Bytes of the kernel's parameter structure, bound after `bindings`; empty if it has none.
    pub params: Vec<u8>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: [u32; 3],
    /// Bytes that it moves.
    pub traffic: Traffic,
    /// Floating-point operations, a multiplication and an addition counted as two.
    pub flops: u64,
}

impl Dispatch {
    /// A dispatch of one threadgroup of 32 threads that touches nothing.
    #[must_use]
    pub fn new(entry: &'static str) -> Self {
        Self {
            entry,
            label: entry.to_owned(),
            constants: vec![],
            bindings: vec![],
            params: vec![],
            grid: [1; 3],
            threads: [32, 1, 1],
            traffic: Traffic::default(),
            flops: 0,
        }
    }

    /// Sets a function constant (see `kernels/shape.h` for their indices).
    #[must_use]
    pub fn constant(mut self, index: u32, value: u32) -> Self {
        let at = self.constants.partition_point(|&(other, _)| other < index);
        assert!(
            self.constants.get(at).is_none_or(|&(other, _)| other != index),
            "constant {index} twice"
        );
        self.constants.insert(at, (index, value));
        self
    }

    /// Binds a tensor that is read once, whole.
    #[must_use]
    pub fn read(self, tensor: Tensor) -> Self {
        self.read_part(tensor.range, tensor.range.len)
    }

    /// Binds a range of which `bytes` are expected to be read from memory.
    #[must_use]
    pub fn read_part(self, range: Range, bytes: u64) -> Self {
        self.bind(range, Access::Read, Traffic { read: bytes, written: 0 })
    }

    /// Binds a tensor that is written, whole.
    #[must_use]
    pub fn write(self, tensor: Tensor) -> Self {
        self.write_part(tensor.range, tensor.range.len)
    }

    /// Binds a range of which `bytes` are written. Bytes that are not written keep what they had, so where some may be
    /// left out and matter later (pages, slots) use [`Dispatch::read_write_part`].
    #[must_use]
    pub fn write_part(self, range: Range, bytes: u64) -> Self {
        self.bind(range, Access::Write, Traffic { read: 0, written: bytes })
    }

    /// Binds a tensor that is read and written, whole.
    #[must_use]
    pub fn read_write(self, tensor: Tensor) -> Self {
        let bytes = tensor.range.len;
        self.read_write_part(tensor.range, bytes, bytes)
    }

    /// Binds a range of which so many bytes are read and written.
    #[must_use]
    pub fn read_write_part(self, range: Range, read: u64, written: u64) -> Self {
        self.bind(range, Access::ReadWrite, Traffic { read, written })
    }

    fn bind(mut self, range: Range, access: Access, traffic: Traffic) -> Self {
        assert!(self.params.is_empty(), "parameters come last");
        self.bindings.push(Binding { range, access });
        self.traffic.read += traffic.read;
        self.traffic.written += traffic.written;
        self
    }

    /// Sets the parameters, a structure that the kernel takes as `constant T&`.
    #[must_use]
    pub fn params<T: NoUninit>(mut self, params: &T) -> Self {
        self.params = bytemuck::bytes_of(params).to_vec();
        self
    }

    /// Sets the number of threadgroups and the threads of each.
    #[must_use]
    pub fn grid(mut self, threadgroups: [u32; 3], threads: [u32; 3]) -> Self {
        (self.grid, self.threads) = (threadgroups, threads);
        self
    }

    /// Adds floating-point operations.
    #[must_use]
    pub fn flops(mut self, flops: u64) -> Self {
        self.flops += flops;
        self
    }

    /// Says what it does in the plan.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }
}
