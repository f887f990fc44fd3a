//! The demo's weights in mapped files, on a device of the model.

use super::contract::Contract;
use calla_gpu::{Device, GpuMatrix, GpuParts, MappedFile, Range, upload_mapped};
use calla_gpu_metal::{Kernels, MetalDevice};
use calla_model::budget::{Size, SizeParts};
use calla_model::network::{CheckpointParts, Source};
use calla_model::{Network, Shape, VectorKind};
use calla_testkit::shards::write_demo;
use calla_weights::Checkpoint;
use std::convert::Infallible;

/// The demo in files whose data start at these remainders of 64.
pub struct Demo {
    pub network: Network<CheckpointParts>,
    pub shape: Shape,
    pub files: Vec<MappedFile>,
}

/// The files are gone from the folder, and mapped as long as something holds them.
pub fn demo(starts: &[usize]) -> Demo {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path(), starts);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (network, shape) = (checkpoint.load().unwrap(), checkpoint.shape().clone());
    Demo { network, shape, files: checkpoint.mapped_files() }
}

/// Brings the demo to a device, which uses these files.
pub fn bring(
    demo: &Demo,
    contract: &Contract,
    files: &[MappedFile],
) -> (MetalDevice<Contract>, Network<GpuParts>) {
    let mut device = MetalDevice::new(contract.clone(), Kernels::Plain).unwrap();
    let network = upload_mapped(&mut device, &demo.network, &demo.shape, files).unwrap();
    (device, network)
}

/// The bytes of all modules, in the order of the walk, as a device gives them.
pub fn bytes(
    device: &mut MetalDevice<Contract>,
    network: &Network<GpuParts>,
    shape: &Shape,
) -> Vec<Vec<u8>> {
    let mut walk = Walk { device, network, all: vec![] };
    let walked = Network::build(shape, &mut walk);
    assert!(walked.is_ok_and(|walked| walked.layers.len() == shape.layers.len()));
    walk.all
}

struct Walk<'a> {
    device: &'a mut MetalDevice<Contract>,
    network: &'a Network<GpuParts>,
    all: Vec<Vec<u8>>,
}

impl Walk<'_> {
    fn range(&mut self, range: Range) {
        let mut bytes = vec![0; range.len as usize];
        self.device.read(range, &mut bytes).unwrap();
        self.all.push(bytes);
    }

    fn matrix(&mut self, GpuMatrix { packed, scales, biases, .. }: &GpuMatrix) {
        [*packed, *scales, *biases].into_iter().for_each(|range| self.range(range));
    }
}

impl Source<SizeParts> for Walk<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, _: usize, _: usize) -> Result<Size, Infallible> {
        self.matrix(self.network.matrix(name).expect(name));
        Ok(Size::default())
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        _: usize,
        _: usize,
        _: usize,
    ) -> Result<Size, Infallible> {
        let experts = self.network.experts(layer_mlp, projection).expect(projection);
        self.matrix(&experts.stacked);
        Ok(Size::default())
    }

    fn vector(&mut self, name: &str, _: VectorKind, _: usize) -> Result<Size, Infallible> {
        self.range(self.network.vector(name).expect(name).range);
        Ok(Size::default())
    }

    fn has_mtp(&self) -> bool {
        self.network.mtp.is_some()
    }
}
