//! Makes the archive of machine code that a release is built with: which pipelines a program asks for, compiled for each
//! architecture. NVRTC has to be there; no GPU has.

pub mod asked;
pub mod make;
pub mod noting;
