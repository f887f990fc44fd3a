//! Weights on a device: they arrive, and what kernels do not take is refused.

#[path = "../common/mod.rs"]
mod common;
mod in_place;
mod memory;

use calla_gpu::limits::{Bound, ShapeLimit};
use calla_gpu::{BufferId, embed::embed};
use calla_gpu::{Described, Device, DeviceError, GpuParts, Place, Range, UploadError, upload};
use calla_model::budget::{Mlx4Bit, PartBytes, Size, SizeParts};
use calla_model::network::{CheckpointParts, Mixer, Source};
use calla_model::{Experts, FloatType, MatrixData, Network, Shape, VectorKind};
use calla_testkit::weights::{Stored, matrix as random_matrix};
use calla_testkit::{Random, compare, places, shapes};
use common::{quantised, tolerance};
use memory::{Memory, compared};
use std::convert::Infallible;

/// Uploads a network, reads everything back, and gives the bytes of its weights.
fn uploaded(network: &Network<CheckpointParts>, shape: &Shape) -> u64 {
    let mut memory = Memory::default();
    // Ids need not start at 0.
    memory.allocate("something else", 16).unwrap();
    let actual = upload(&mut memory, network, shape).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(actual.lm_head.is_none(), shape.tied_embeddings);
    assert!(memory.longest_write <= 16 << 20, "{}", memory.longest_write);
    compared(&memory, network, &actual, shape).iter().map(|range| range.len).sum()
}

fn odd() -> Shape {
    Shape { expert_hidden: 64, shared_hidden: 192, ..shapes::odd() }
}

/// One head of everything, three experts of which all are taken, tied embeddings.
fn tiny() -> Shape {
    Shape { hidden: 64, expert_hidden: 64, shared_hidden: 64, ..shapes::tiny() }
}

#[test]
fn the_demo_arrives() {
    let checkpoint = calla_weights::Checkpoint::open(places::demo()).unwrap();
    let (network, shape) = (checkpoint.load().unwrap(), checkpoint.shape());
    assert!(network.mtp.is_some());
    assert!(uploaded(&network, shape) > 14_000_000);
}

#[test]
fn odd_shapes_arrive() {
    let small_vectors = Shape { mtp_layers: 0, ..odd() };
    for (seed, shape) in (0..).zip([odd(), small_vectors, tiny(), shapes::small()]) {
        assert!(uploaded(&quantised::network(&shape, seed), &shape) > 0);
    }
}

#[test]
fn matrices_beyond_a_piece_arrive() {
    let wide =
        Shape { hidden: 2048, top_k: 1, layers: vec![calla_model::LayerKind::Attention], ..tiny() };
    // An embedding of 14 pieces, and stacks of experts that end in another piece than they start in.
    let high = Shape { vocab_size: 220_000, expert_hidden: 192, experts: 100, ..wide.clone() };
    assert!(uploaded(&quantised::network(&high, 5), &high) > 220_000 * 1024);
    // Experts that are written one by one, but for their scales.
    let large = Shape { expert_hidden: 256, ..wide };
    assert!(uploaded(&quantised::network(&large, 6), &large) > 9 << 18);
}

#[test]
fn kernels_find_what_was_uploaded() {
    let Some(mut device) = common::device() else { return };
    let shape = odd();
    let network = quantised::network(&shape, 8);
    let on_device = upload(&mut device, &network, &shape).unwrap_or_else(|e| panic!("{e}"));
    let ids = [776, 0, 5];
    let tokens = common::u32s(&mut device, &ids, 1);
    let out = common::output(&mut device, ids.len(), shape.hidden, calla_gpu::Dtype::F32);
    common::run(&mut device, &[embed(&on_device.embed_tokens, tokens, out)]);
    let expected = calla_ops::embed::reference(&network.embed_tokens, &ids);
    let actual = common::rows(&mut device, out);
    compare::within(&actual, &expected, tolerance::EMBED).unwrap_or_else(|error| panic!("{error}"));
}

/// What `upload` says of a network, and that it asked for nothing before.
fn refused(network: &Network<CheckpointParts>, shape: &Shape) -> UploadError {
    let mut memory = Memory::default();
    let error = upload(&mut memory, network, shape).err().expect("a refusal");
    assert!(memory.buffers.is_empty(), "{error}");
    error
}

#[test]
fn formats_that_kernels_do_not_take_are_refused_by_name() {
    let shape = odd();
    let mut formats = 0;
    for stored in Stored::all() {
        let mut random = Random::new(3);
        let width = shape.delta_value_dim();
        let mut network = quantised::network(&shape, 1);
        let Mixer::DeltaNet(last) = &mut network.layers[3].mixer else { panic!("the schedule") };
        last.out_proj = random_matrix(&mut random, shape.hidden, width, stored, 1.0);
        let MatrixData::Affine { format, dtype, .. } = last.out_proj.data() else {
            let error = refused(&network, &shape).to_string();
            let found = format!("model.layers.3.linear_attn.out_proj is stored as plain {stored},");
            assert!(error.starts_with(&found) && error.contains("--device cpu"), "{error}");
            continue;
        };
        let (bits, group) = (format.bits(), format.group());
        if matches!(bits, 4 | 8) && group == 64 && *dtype == FloatType::Bf16 {
            continue;
        }
        let scales = dtype.name();
        let found = format!("{bits} bits in groups of {group} with {scales} scales");
        let module = "model.layers.3.linear_attn.out_proj".to_owned();
        assert_eq!(refused(&network, &shape), UploadError::Format { module, found });
        formats += 1;
    }
    assert!(formats >= 16, "{formats}");
}

#[test]
fn scales_of_other_types_are_refused() {
    let shape = tiny();
    let mut types = vec![];
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut network = quantised::network(&shape, 1);
        let stored = Stored::Affine(common::format(8));
        network.layers[0].moe.gate =
            random_matrix(&mut random, shape.experts, shape.hidden, stored, 1.0);
        let MatrixData::Affine { dtype, .. } = network.layers[0].moe.gate.data() else { continue };
        if *dtype == FloatType::Bf16 {
            continue;
        }
        let found = format!("8 bits in groups of 64 with {} scales", dtype.name());
        let module = "model.layers.0.mlp.gate".to_owned();
        assert_eq!(refused(&network, &shape), UploadError::Format { module, found });
        types.push(*dtype);
    }
    assert!(types.contains(&FloatType::F16) && types.contains(&FloatType::F32), "{types:?}");
}

#[test]
fn experts_of_unlike_formats_are_refused() {
    let shape = tiny();
    let mut network = quantised::network(&shape, 1);
    let mut random = Random::new(2);
    let bits = [4, 4, 8];
    let experts = bits.map(|bits| quantised::matrix(&mut random, 64, 64, bits));
    network.layers[1].moe.down_proj = Experts::new(experts.to_vec());
    let module = "model.layers.1.mlp.down_proj".to_owned();
    let found = "experts of 4 and of 8 bits".to_owned();
    assert_eq!(refused(&network, &shape), UploadError::Format { module, found });
}

#[test]
fn shapes_beyond_the_kernels_are_refused() {
    let shape = tiny();
    let network = quantised::network(&shape, 1);
    for (shape, what, value, bound) in [
        (Shape { hidden: 96, ..shape.clone() }, "hidden_size is", 96, Bound::MultipleOf(64)),
        (
            Shape { expert_hidden: 32, ..shape.clone() },
            "moe_intermediate_size is",
            32,
            Bound::MultipleOf(64),
        ),
        (
            Shape { shared_hidden: 100, ..shape.clone() },
            "shared_expert_intermediate_size is",
            100,
            Bound::MultipleOf(64),
        ),
        (
            Shape { vocab_size: 262_145, ..shape.clone() },
            "vocab_size is",
            262_145,
            Bound::AtMost(262_144),
        ),
        (Shape { experts: 513, ..shape.clone() }, "num_experts is", 513, Bound::AtMost(512)),
        (
            Shape { experts: 17, top_k: 17, ..shape.clone() },
            "num_experts_per_tok is",
            17,
            Bound::AtMost(16),
        ),
        (
            Shape { attention_heads: 66, kv_heads: 2, ..shape.clone() },
            "num_attention_heads over num_key_value_heads is",
            33,
            Bound::AtMost(32),
        ),
    ] {
        let limit = ShapeLimit { what, value, bound };
        assert_eq!(refused(&network, &shape), UploadError::Shape(limit));
        assert!(limit.to_string().contains("--device cpu"), "{limit}");
    }
}

#[test]
fn a_network_of_another_shape_is_refused() {
    let shape = tiny();
    let network = quantised::network(&shape, 1);
    let module = |module: &str, expected: &[usize]| UploadError::Module {
        module: module.to_owned(),
        expected: expected.to_vec(),
    };
    let untied = Shape { tied_embeddings: false, ..shape.clone() };
    assert_eq!(refused(&network, &untied), module("lm_head", &[65, 64]));
    let four = Shape { experts: 4, ..shape.clone() };
    assert_eq!(refused(&network, &four), module("model.layers.0.mlp.gate", &[4, 64]));
    let wide = Shape { expert_hidden: 128, ..shape };
    assert_eq!(refused(&network, &wide), module("model.layers.0.mlp.gate_proj", &[3, 128, 64]));
}

#[test]
fn failures_of_the_device_say_how_far_it_came() {
    let shape = tiny();
    let network = quantised::network(&shape, 1);
    let mut memory = Memory { limit: Some(1000), ..Memory::default() };
    let error = upload(&mut memory, &network, &shape).err().expect("no memory");
    let UploadError::Memory { done: 0, total, source } = &error else { panic!("{error}") };
    assert!(matches!(source, DeviceError::OutOfMemory { bytes, .. } if bytes == total), "{error}");
    assert!(error.to_string().contains("weights from model.embed_tokens on"), "{error}");

    // The embedding's three arrays and the norm are there.
    let mut memory = Memory { writes_left: Some(4), ..Memory::default() };
    let error = upload(&mut memory, &network, &shape).err().expect("a failure");
    let UploadError::Device { module, done, .. } = &error else { panic!("{error}") };
    let embedding = 65 * (32 + 2 + 2);
    assert_eq!((&module[..], *done), ("model.layers.0.self_attn.q_proj", embedding + 4 * 64));
    assert!(error.to_string().contains("unplugged"), "{error}");
}

/// Numbers of values in vectors, and bytes of matrices, of a described network.
fn described(shape: &Shape, mtp: bool) -> (u64, u64, Described) {
    let mut device = Described::new(mtp);
    let network: Network<GpuParts> = Network::build(shape, &mut device).unwrap();
    let mut sum = Sum { network: &network, vectors: 0, matrices: 0 };
    assert!(Network::build(shape, &mut sum).is_ok());
    (sum.vectors, sum.matrices, device)
}

struct Sum<'a> {
    network: &'a Network<GpuParts>,
    vectors: u64,
    matrices: u64,
}

impl Source<SizeParts> for Sum<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, _: usize, _: usize) -> Result<Size, Infallible> {
        self.matrices += self.network.matrix(name).expect(name).size_bytes();
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
        self.matrices += experts.stacked.size_bytes();
        Ok(Size::default())
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Size, Infallible> {
        let tensor = self.network.vector(name).expect(name);
        assert_eq!(tensor.range.len, 4 * len as u64);
        self.vectors += len as u64;
        Ok(Size::default())
    }

    fn has_mtp(&self) -> bool {
        self.network.mtp.is_some()
    }
}

#[test]
fn a_described_network_of_full_size_weighs_what_the_budget_says() {
    let shape = Shape::full(40);
    let (vectors, matrices, device) = described(&shape, false);
    // Per layer two norms; 30 mixers with taps, rates, biases and a norm, 10 with two norms; the last norm.
    assert_eq!(vectors, 40 * 2 * 2048 + 30 * (8192 * 4 + 2 * 32 + 128) + 10 * 2 * 256 + 2048);
    // The budget has them in bf16, a device in f32: 2 bytes more for each.
    assert_eq!(matrices + 2 * vectors, 19_508_787_456);
    assert_eq!(matrices + 4 * vectors, 19_508_787_456 + 2 * 1_159_808);
    // What is left is gaps between arrays.
    assert!(device.bytes() - (matrices + 4 * vectors) < 100_000, "{}", device.bytes());

    let (vectors, matrices, _) = described(&shape, true);
    let budget = Network::build(&shape, &mut Mlx4Bit { mtp: true });
    let budget = PartBytes::of(&budget.unwrap_or_else(|never| match never {})).total();
    assert_eq!(matrices + 2 * vectors, budget);
}

#[test]
fn a_described_network_lies_where_an_uploaded_one_does() {
    for (seed, shape) in (0..).zip([odd(), tiny(), shapes::small()]) {
        let network = quantised::network(&shape, seed);
        let mut memory = Memory::default();
        let actual = upload(&mut memory, &network, &shape).unwrap();
        let mut device = Described::new(network.mtp.is_some());
        let described: Network<GpuParts> = Network::build(&shape, &mut device).unwrap();
        assert_eq!(device.bytes(), memory.used());
        assert_eq!(described.norm, actual.norm);
        assert_eq!(described.embed_tokens, actual.embed_tokens);
        assert_eq!(described.lm_head, actual.lm_head);
        for (described, actual) in described.layers.iter().zip(&actual.layers) {
            assert_eq!(described.moe.down_proj, actual.moe.down_proj);
        }
    }
}

#[test]
fn a_described_device_gives_addresses_and_no_data() {
    let mut device = Described::new(false);
    let shape = tiny();
    let before: Network<GpuParts> = Network::build(&shape, &mut device).unwrap();
    let other = device.allocate("state", 20).unwrap();
    let after: Network<GpuParts> = Network::build(&shape, &mut device).unwrap();
    let Place::Buffer(first) = before.norm.range.place else { panic!("{:?}", before.norm) };
    let Place::Buffer(third) = after.norm.range.place else { panic!("{:?}", after.norm) };
    assert_eq!([first, other, third], [0, 1, 2].map(BufferId));
    let range = |start, len| Range { place: Place::Buffer(other), start, len };
    assert_eq!(device.write(range(16, 16), &[0; 16]), Ok(()));
    assert!(device.write(range(16, 17), &[0; 17]).is_err());
    assert!(device.write(range(u64::MAX, 2), &[0; 2]).is_err());
    assert!(device.read(range(0, 4), &mut [0; 4]).is_err());
    let rotations = calla_gpu::Rotations::upload(&mut device, &shape).unwrap();
    assert!(rotations.positions() >= shape.max_positions as u64);
}

#[test]
fn a_description_refuses_widths_that_have_no_groups() {
    let shape = Shape { shared_hidden: 96, ..tiny() };
    let error = Network::<GpuParts>::build(&shape, &mut Described::new(false)).err();
    let module = "model.layers.0.mlp.shared_expert.down_proj".to_owned();
    let found = "rows of 96 values".to_owned();
    assert_eq!(error, Some(UploadError::Format { module, found }));
    let huge = Shape { vocab_size: 1 << 22, hidden: 1 << 11, ..tiny() };
    let error = Network::<GpuParts>::build(&huge, &mut Described::new(false)).err();
    assert!(
        matches!(error, Some(UploadError::Size { bytes, .. }) if bytes == 9 << 29),
        "{error:?}"
    );
}
