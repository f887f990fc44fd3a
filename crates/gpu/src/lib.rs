//! The GPU backend: Metal kernels and their dispatch twins, as plain data that any machine can inspect.
//!
//! One operation, one stem: `kernels/rms_norm.metal` is the kernel, `src/rms_norm.rs` its twin (a function that gives
//! the [`Dispatch`]), `tests/rms_norm.rs` holds it to the reference on the host driver.

pub mod advance;
pub mod argmax;
pub mod attention_decode;
pub mod attention_prefill;
pub mod cache;
pub mod check;
pub mod combine;
pub mod copy;
pub mod delta_prep;
pub mod delta_step;
pub mod described;
pub mod device;
pub mod dispatch;
pub mod embed;
mod entries;
pub mod estimate;
pub mod expert_qmm;
pub mod expert_qmv;
pub mod gated_delta;
pub mod gated_norm;
pub mod group_rows;
mod layout;
pub mod limits;
mod logits;
pub mod metal4;
pub mod mtp_rows;
pub mod pipelines;
pub mod plan;
pub mod products;
pub mod qk_prep;
pub mod qmm;
pub mod qmv;
pub mod recorder;
pub mod rms_norm;
pub mod rotations;
pub mod routing;
pub mod runner;
pub mod sample;
pub mod scratch;
pub mod shape_constants;
pub mod sources;
pub mod state;
pub mod step_tables;
pub mod tables;
pub mod tensor;
pub mod top_candidates;
pub mod top_k;
pub mod upload;
pub mod weights;

pub use described::Described;
pub use device::{Device, DeviceError, OverLimit};
pub use dispatch::{Access, Binding, Dispatch, Traffic};
pub use pipelines::Pipelines;
pub use plan::{BoundPlan, Part, Plan, PlanId, Recording};
pub use rotations::Rotations;
pub use routing::{Grouped, Routing};
pub use runner::{Choice, GpuRunner, RunnerSize};
pub use scratch::Scratch;
pub use state::{DeltaSlots, KvPool};
pub use tables::{ChunkEntry, SpanEntry, Tables};
pub use tensor::{BufferId, Dtype, Place, Range, Tensor};
pub use upload::{UploadError, upload};
pub use weights::{GpuExperts, GpuMatrix, GpuParts};
