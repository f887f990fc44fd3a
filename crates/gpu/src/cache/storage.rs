//! The buffers of a cache.

use crate::device::DeviceError;
use crate::shape_constants::width;
use crate::state::{DeltaSlots, KvPool};
use crate::tensor::{BufferId, Dtype, Tensor};
use calla_model::shape::PAGE_TOKENS;
use calla_model::{LayerKind, Shape};

/// A buffer for each layer and kind of state.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) attention: Vec<KvPool>,
    pub(super) delta: Vec<DeltaSlots>,
    pub(super) kept: Option<Tensor>,
}

impl Storage {
    pub(super) fn new(
        shape: &Shape,
        pages: u32,
        slots: u32,
        drafting: bool,
        allocate: &mut dyn FnMut(&str, u64) -> Result<BufferId, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut entries = |label: String, rows: u32, len: usize, dtype: Dtype| {
            let cols = width(len);
            let buffer = allocate(&label, u64::from(rows) * u64::from(cols) * dtype.size())?;
            Ok(Tensor::whole(buffer, rows, cols, dtype))
        };
        let (page, state, window) =
            (PAGE_TOKENS * shape.kv_dim(), shape.delta_state_len(), shape.conv_state_len());
        let attention = (0..shape.layers_of(LayerKind::Attention) + usize::from(drafting))
            .map(|i| {
                Ok(KvPool {
                    keys: entries(format!("attention.{i} keys"), pages, page, Dtype::Bf16)?,
                    values: entries(format!("attention.{i} values"), pages, page, Dtype::Bf16)?,
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        let delta = (0..shape.layers_of(LayerKind::DeltaNet))
            .map(|i| {
                Ok(DeltaSlots {
                    states: entries(format!("delta.{i} states"), slots, state, Dtype::F32)?,
                    windows: entries(format!("delta.{i} windows"), slots, window, Dtype::Bf16)?,
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        let kept = drafting
            .then(|| entries("hidden rows".to_owned(), slots, shape.hidden, Dtype::F32))
            .transpose()?;
        Ok(Self { attention, delta, kept })
    }

    /// What a slot consists of, in the order of its bytes.
    pub(super) fn slot_parts(&self) -> impl Iterator<Item = Tensor> {
        self.delta.iter().flat_map(|layer| [layer.states, layer.windows]).chain(self.kept)
    }

    /// What a page consists of, in the order of its bytes.
    pub(super) fn page_parts(&self) -> impl Iterator<Item = Tensor> {
        self.attention.iter().flat_map(|layer| [layer.keys, layer.values])
    }

    /// All buffers.
    pub(super) fn tensors(&self) -> impl Iterator<Item = Tensor> {
        self.page_parts().chain(self.slot_parts())
    }
}
