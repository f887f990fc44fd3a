//! The faults as data: a text of a file, what takes its place, and the test that has to notice.

mod kernels;
mod plan;
mod twins;

use anyhow::{Result, bail};
use std::fmt;

/// Where the kernels lie.
pub(crate) const KERNELS: &str = "crates/gpu/kernels/";

/// A fault.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) class: Class,
    /// From the root of the tree.
    pub(crate) file: &'static str,
    /// What happens with it.
    pub(crate) name: &'static str,
    /// Occurs exactly once in the file.
    pub(crate) find: &'static str,
    pub(crate) replace: &'static str,
    pub(crate) check: Check,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// A barrier is missing.
    Barrier,
    /// An address is computed with a wrong stride.
    Stride,
    /// A mask or a tail: rows, columns, groups or positions that there are not take part.
    Mask,
    /// A later position is seen, or one is off.
    Position,
    /// Sums of tiles are joined in a wrong way, or in an order that depends on the batch.
    Order,
    /// Scale and bias of another group.
    Scale,
    /// A chunk or a span ends in the wrong place.
    Chunk,
    /// State is read from or written to another slot.
    Slot,
    /// Pages are taken where the page table does not say.
    Page,
    /// A dispatch declares other bytes than it touches.
    Range,
    /// A dispatch is of the wrong size or kernel.
    Dispatch,
    /// The plan lacks an edge, or reuses memory too early.
    Edge,
    /// A kernel and its twin do not fit.
    Entry,
    /// A number keeps fewer bits than it needs.
    Precision,
}

/// What has to notice a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// A test of `calla-gpu` fails.
    Test {
        /// The file or folder in `crates/gpu/tests`.
        target: &'static str,
        name: &'static str,
        /// With AddressSanitizer and with declared ranges enforced.
        sanitize: bool,
    },
    /// `calla-gpu` does not build, with this in the compiler's message.
    Build { message: &'static str },
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Test { target, name, sanitize, .. } => {
                let sanitized = if *sanitize { " (sanitized)" } else { "" };
                write!(f, "{target}::{name}{sanitized}")
            }
            Self::Build { .. } => f.write_str("the build"),
        }
    }
}

/// A test of `crates/gpu/tests`.
const fn test(target: &'static str, name: &'static str) -> Check {
    Check::Test { target, name, sanitize: false }
}

/// The same, with AddressSanitizer and with declared ranges enforced.
const fn sanitized(target: &'static str, name: &'static str) -> Check {
    Check::Test { target, name, sanitize: true }
}

impl Fault {
    /// Whether our crates have to be built with it. For a test of a kernel the host driver takes the kernel from a folder.
    pub(crate) fn is_built(&self) -> bool {
        matches!(self.check, Check::Build { .. }) || !self.file.starts_with(KERNELS)
    }

    /// The file's `text` with the fault in it.
    pub(crate) fn planted(&self, text: &str) -> Result<String> {
        match text.matches(self.find).count() {
            1 => Ok(text.replacen(self.find, self.replace, 1)),
            count => bail!(
                "{}: the text of the fault \"{}\" is there {count} times and not once; bring \
                 xtask/src/mutate/faults/ up to date:\n{}",
                self.file,
                self.name,
                self.find
            ),
        }
    }
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Fault> {
    kernels::FAULTS.iter().chain(twins::FAULTS).chain(plan::FAULTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;
    use std::collections::HashSet;
    use std::fs;

    /// Faults that there have to be.
    const COUNT_MIN: usize = 20;

    #[test]
    fn each_fault_can_be_planted_and_its_test_is_there() {
        let mut names = HashSet::new();
        for fault in all() {
            assert!(names.insert(fault.name), "two faults are called {:?}", fault.name);
            let text = fs::read_to_string(root().join(fault.file)).expect(fault.file);
            let planted = fault.planted(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_ne!(planted, text, "{}", fault.name);
            if let Check::Test { target, name, .. } = fault.check {
                // `module::name` is in a file of its module, where a test has several.
                let (module, name) = name.rsplit_once("::").unwrap_or(("", name));
                let nested = format!("crates/gpu/tests/{target}/{module}.rs");
                let file = match target {
                    _ if root().join(&nested).is_file() => nested,
                    test => format!("crates/gpu/tests/{test}.rs"),
                };
                let tests = fs::read_to_string(root().join(&file)).expect(&file);
                assert!(tests.contains(&format!("fn {name}()")), "{file} has no test {name}");
            }
        }
        assert!(names.len() >= COUNT_MIN, "{} faults", names.len());
    }

    #[test]
    fn each_kernel_has_a_fault() {
        let kernels = fs::read_dir(root().join("crates/gpu/kernels")).expect("kernels");
        for kernel in kernels {
            let name = kernel.expect("a file").file_name().to_string_lossy().into_owned();
            let is_kernel = name.ends_with(".metal");
            let file = format!("crates/gpu/kernels/{name}");
            assert!(!is_kernel || all().any(|fault| fault.file == file), "{file} has none");
        }
    }
}
