//! Names of all entry points, as `build.rs` finds them in `kernels/`: twins name kernels by these.
//!
//! So neither can be without the other. A kernel that no twin dispatches is a constant that is never used, which fails
//! the build; a twin of a kernel that there is not names a constant that there is not.
#![deny(dead_code, reason = "every kernel is dispatched by a twin")]

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
