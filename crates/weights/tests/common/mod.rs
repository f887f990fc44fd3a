//! A tiny checkpoint that tests take apart, change and write again.

#![allow(dead_code, reason = "each test program uses some of it")]

use calla_model::network::{CheckpointParts, Mixer};
use calla_model::{AffineFormat, LayerKind, Matrix, Network, Shape};
use calla_weights::{Checkpoint, header, synth};
use std::collections::BTreeMap;
use std::path::Path;

/// Two layers, one of each kind, as small as the family's fixed widths allow.
pub(crate) fn tiny_shape() -> Shape {
    Shape {
        vocab_size: 16,
        hidden: 64,
        layers: vec![LayerKind::DeltaNet, LayerKind::Attention],
        attention_heads: 2,
        kv_heads: 1,
        delta_key_heads: 1,
        delta_value_heads: 2,
        experts: 3,
        top_k: 2,
        expert_hidden: 32,
        shared_hidden: 64,
        ..Shape::demo()
    }
}

/// A tensor in memory: dtype, shape, bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RawTensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl RawTensor {
    pub(crate) fn bf16(shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes =
            values.into_iter().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect();
        Self { dtype: "BF16".to_owned(), shape: shape.to_vec(), bytes }
    }

    pub(crate) fn f32(shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { dtype: "F32".to_owned(), shape: shape.to_vec(), bytes }
    }

    /// Values of a bf16 tensor.
    pub(crate) fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "BF16");
        self.bytes
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect()
    }
}

/// All tensors of a checkpoint by name.
pub(crate) type Tensors = BTreeMap<String, RawTensor>;

/// A random checkpoint of [`tiny_shape`] in `dir`, and its tensors.
pub(crate) fn tiny(dir: &Path, mtp: bool) -> Tensors {
    let options = synth::Options { shape: tiny_shape(), seed: 1, mtp, skew: 0.0, tokenizer: None };
    synth(&options, dir, &|_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let file = std::fs::read(dir.join("model.safetensors")).unwrap();
    tensors_of(&file)
}

pub(crate) fn tensors_of(file: &[u8]) -> Tensors {
    let entries = header::read(file).unwrap();
    entries
        .into_iter()
        .map(|t| {
            let (dtype, bytes) = (format!("{:?}", t.dtype), file[t.range].to_vec());
            (t.name, RawTensor { dtype, shape: t.shape, bytes })
        })
        .collect()
}

/// A whole file from a header and the bytes behind it.
pub(crate) fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A safetensors file of the tensors; the header is padded to `8 n + pad` bytes.
pub(crate) fn file_with_padding(tensors: &Tensors, pad: usize) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    // Wide elements first, so that a padded header aligns all.
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_by_key(|(_, t)| t.dtype == "BF16");
    for (name, tensor) in sorted {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        entries.push(format!(
            "{name:?}:{{\"dtype\":{:?},\"shape\":{:?},\"data_offsets\":[{begin},{}]}}",
            tensor.dtype,
            tensor.shape,
            data.len()
        ));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    while header.len() % 8 != pad {
        header.push(' ');
    }
    file_of(&header, &data)
}

/// Writes the tensors as the single file of the model in `dir`.
pub(crate) fn write(dir: &Path, tensors: &Tensors) {
    write_as(dir, "model.safetensors", tensors);
}

pub(crate) fn write_as(dir: &Path, name: &str, tensors: &Tensors) {
    std::fs::write(dir.join(name), file_with_padding(tensors, 0)).unwrap();
}

/// The message that opening and loading `dir` fails with.
pub(crate) fn refusal(dir: &Path) -> String {
    match Checkpoint::open(dir).and_then(|checkpoint| checkpoint.load()) {
        Ok(_) => panic!("{} loads", dir.display()),
        Err(error) => error.to_string(),
    }
}

/// Asserts that a message holds every part.
pub(crate) fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// The tensors with every quantised module replaced by its values in bf16.
pub(crate) fn dequantised(tensors: &Tensors) -> Tensors {
    let mut result = tensors.clone();
    for (name, scales) in tensors {
        let Some(path) = name.strip_suffix(".scales") else { continue };
        let [weight, biases] =
            [".weight", ".biases"].map(|suffix| &tensors[&format!("{path}{suffix}")]);
        let bits = if path.ends_with("gate") { 8 } else { 4 };
        let cols = weight.shape.last().unwrap() * 32 / bits;
        let format = AffineFormat::new(bits, cols / scales.shape.last().unwrap()).unwrap();
        let (s, b) = (scales.values(), biases.values());
        let rows = weight.bytes.chunks_exact(format.packed_row_bytes(cols)).enumerate();
        let values = rows.flat_map(|(i, row)| {
            let (s, b) = (&s[i * format.groups(cols)..], &b[i * format.groups(cols)..]);
            (0..cols)
                .map(|j| {
                    let group = j / format.group();
                    s[group].mul_add(format.unpack(row, j) as f32, b[group])
                })
                .collect::<Vec<_>>()
        });
        let shape = [&weight.shape[..weight.shape.len() - 1], &[cols]].concat();
        result.insert(format!("{path}.weight"), RawTensor::bf16(&shape, values));
        result.remove(name);
        result.remove(&format!("{path}.biases"));
    }
    result
}

/// Takes everything about quantisation out of the configuration in `dir`.
pub(crate) fn forget_quantization(dir: &Path) {
    edit_config(dir, |config| {
        config.as_object_mut().unwrap().remove("quantization");
    });
}

pub(crate) fn edit_config(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

/// All values of a network, module by module in the order of the walk.
pub(crate) fn values(network: &Network<CheckpointParts>) -> Vec<Vec<f32>> {
    let mut all = vec![matrix(&network.embed_tokens), network.norm.clone()];
    all.extend(network.lm_head.as_ref().map(matrix));
    let layers = network.layers.iter().chain(network.mtp.as_ref().map(|mtp| &mtp.layer));
    for layer in layers {
        all.push(layer.input_layernorm.clone());
        match &layer.mixer {
            Mixer::DeltaNet(m) => {
                let matrices =
                    [&m.in_proj_qkv, &m.in_proj_z, &m.in_proj_b, &m.in_proj_a, &m.out_proj];
                all.extend(matrices.map(matrix));
                all.extend([&m.conv1d, &m.a_log, &m.dt_bias, &m.norm].map(Clone::clone));
            }
            Mixer::Attention(m) => {
                all.extend([&m.q_proj, &m.k_proj, &m.v_proj, &m.o_proj].map(matrix));
                all.extend([&m.q_norm, &m.k_norm].map(Clone::clone));
            }
        }
        all.push(layer.post_attention_layernorm.clone());
        let moe = &layer.moe;
        let shared = [&moe.shared_gate_proj, &moe.shared_up_proj, &moe.shared_down_proj];
        all.extend([&moe.gate, &moe.shared_expert_gate].into_iter().chain(shared).map(matrix));
        for experts in [&moe.gate_proj, &moe.up_proj, &moe.down_proj] {
            all.extend(experts.iter().map(matrix));
        }
    }
    if let Some(mtp) = &network.mtp {
        all.push(matrix(&mtp.fc));
        let norms = [&mtp.pre_fc_norm_embedding, &mtp.pre_fc_norm_hidden, &mtp.norm];
        all.extend(norms.map(Clone::clone));
    }
    all
}

fn matrix(matrix: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows() * matrix.cols()];
    for (i, row) in out.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.read_row(i, row);
    }
    out
}
