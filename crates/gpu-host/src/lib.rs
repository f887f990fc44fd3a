//! Runs plans on this machine's processor, one fiber for each GPU thread: how Metal kernels are proven where there is
//! no GPU. For tests only.

mod options;

pub use options::Options;
