//! What tests of several crates share: seeded random models and batches, comparisons that NaN cannot pass,
//! and the conformance suite that every backend must pass.
//!
//! For tests: most functions here panic, with a message that says where and how much, when what they check does not hold.
//! Of what ships, only `calla-conformance` and `calla doctor` use any of it: inputs, comparisons and
//! [`conformance::Suite::check`], which say what is wrong instead.

pub mod batches;
pub mod compare;
pub mod composed;
pub mod conformance;
mod corners;
pub mod goldens;
pub mod networks;
pub mod operations;
pub mod places;
pub mod random;
pub mod shapes;
pub mod shards;
mod speculation;
pub mod tolerance;
pub mod weights;

pub use composed::Composed;
pub use random::Random;
pub use tolerance::Tolerance;
