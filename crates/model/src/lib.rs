//! What the model *is*: its shape, layer schedule, module names, number formats and byte counts.
//!
//! The family is that of Qwen3.6-35B-A3B (`model_type` `qwen3_5_moe`): a stack of gated-DeltaNet and
//! gated-attention layers, each followed by a mixture of experts. Constants of the family are fixed at
//! compile time ([`shape`]); widths and counts come from `config.json` and are validated once into a
//! [`Shape`] that every other crate can trust.
//!
//! This crate never does I/O, never computes an activation and knows no backend.

pub mod budget;
pub mod config;
pub mod format;
pub mod mapped;
pub mod matrix;
mod modules;
pub mod network;
pub mod shape;

pub use config::{Config, ConfigError, Quantization};
pub use format::{AffineFormat, FloatType};
pub use mapped::{MappedFile, MappedPages};
pub use matrix::{Experts, Matrix, MatrixData, MatrixError};
pub use network::{Network, Parts, Source, VectorKind};
pub use shape::{LayerKind, Shape};
