//! Networks without data on a device of the model, driven as the engine drives them.

use super::contract::Contract;
use calla_gpu::{
    Device as _, DeviceError, Dtype, GpuExperts, GpuMatrix, GpuParts, GpuRunner, Place, Range,
    RunnerSize, Tensor,
};
use calla_gpu_metal::{Kernels, MetalDevice};
use calla_model::budget::mlx_4bit_format;
use calla_model::network::Source;
use calla_model::{Config, Network, Shape, VectorKind};
use calla_ops::{Batch, CacheSize, Runner as _, Span, SpanKind, StepError};

/// Each module in a buffer of its own, unwritten.
struct Unwritten<'a>(&'a mut MetalDevice<Contract>);

impl Unwritten<'_> {
    fn range(&mut self, name: &str, len: u64) -> Result<Range, DeviceError> {
        let place = Place::Buffer(self.0.allocate(name, len)?);
        Ok(Range { place, start: 0, len })
    }
}

impl Source<GpuParts> for Unwritten<'_> {
    type Error = DeviceError;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<GpuMatrix, DeviceError> {
        let bits = mlx_4bit_format(name).bits() as u32;
        let (rows, cols) = (rows as u32, cols as u32);
        let group = GpuMatrix::group_bytes(rows, cols);
        let packed = self.range(name, GpuMatrix::packed_bytes(rows, cols, bits))?;
        let (scales, biases) = (self.range(name, group)?, self.range(name, group)?);
        Ok(GpuMatrix { rows, cols, bits, packed, scales, biases })
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<GpuExperts, DeviceError> {
        let stacked = self.matrix(&format!("{layer_mlp}.{projection}"), count * rows, cols)?;
        Ok(GpuExperts { count: count as u32, stacked })
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Tensor, DeviceError> {
        let Place::Buffer(buffer) = self.range(name, len as u64 * 4)?.place else { unreachable!() };
        Ok(Tensor::whole(buffer, 1, len as u32, Dtype::F32))
    }

    fn has_mtp(&self) -> bool {
        true
    }
}

/// The demo's shape.
pub fn demo() -> Shape {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/config.json");
    let config = Config::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    config.shape
}

/// Room for the steps below.
const SEQUENCES: usize = 4;
const PAGES: usize = 32;

/// A runner with drafts.
pub fn runner(shape: &Shape, contract: &Contract) -> GpuRunner<MetalDevice<Contract>> {
    runner_on(shape, MetalDevice::new(contract.clone(), Kernels::Plain).unwrap())
}

/// The same on a device that is there.
pub fn runner_on(
    shape: &Shape,
    mut device: MetalDevice<Contract>,
) -> GpuRunner<MetalDevice<Contract>> {
    let network = Network::build(shape, &mut Unwritten(&mut device)).unwrap();
    runner_of(shape, device, network)
}

/// The same with weights that are there.
pub fn runner_of(
    shape: &Shape,
    device: MetalDevice<Contract>,
    network: Network<GpuParts>,
) -> GpuRunner<MetalDevice<Contract>> {
    let cache = CacheSize { pages: PAGES * SEQUENCES, slots: SEQUENCES + 4 };
    let size = RunnerSize { cache, sequences: SEQUENCES, drafting: true };
    GpuRunner::new(device, "Metal", shape, network, size).unwrap()
}

/// A step of so many sequences.
pub fn batch(shape: &Shape, kind: SpanKind, sequences: usize, rows: usize, at: usize) -> Batch {
    let span = |i: usize| Span {
        kind,
        rows: i * rows..(i + 1) * rows,
        position: at,
        slot: i,
        pages: (i * PAGES..(i + 1) * PAGES).collect(),
        checkpoints: vec![],
        cuts: vec![],
    };
    let spans: Vec<Span> = (0..sequences).map(span).collect();
    let outputs = spans.iter().map(|span| span.rows.end - 1).collect();
    let size = CacheSize { pages: PAGES * SEQUENCES, slots: SEQUENCES + 4 };
    Batch::new(vec![1; sequences * rows], spans, outputs, shape.vocab_size, size).unwrap()
}

/// Prefill, decode, moves of state.
pub fn drive(
    shape: &Shape,
    runner: &mut GpuRunner<MetalDevice<Contract>>,
) -> Result<(), StepError> {
    runner.clear_slot(0);
    for (kind, sequences, rows, at) in [
        (SpanKind::Prefill, 1, 256, 0),
        (SpanKind::Prefill, 2, 100, 256),
        (SpanKind::Prefill, 1, 3, 512),
        (SpanKind::Decode, 1, 1, 600),
        (SpanKind::Decode, 4, 1, 1000),
        (SpanKind::Decode, 1, 1, 601),
    ] {
        let logits = runner.step(&batch(shape, kind, sequences, rows, at))?;
        assert_eq!(logits.iter().count(), sequences);
    }
    runner.copy_slot(0, 1);
    runner.copy_page(0, 1);
    let mut bytes = vec![];
    runner.read_slot(1, &mut bytes)?;
    runner.write_slot(2, &bytes)?;
    bytes.clear();
    runner.read_page(1, &mut bytes)?;
    runner.write_page(2, &bytes)
}
