//! A tiny checkpoint that tests take apart, change and write again.

#![allow(dead_code, reason = "each test program uses some of it")]

use calla_model::{LayerKind, Shape};
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
    synth(&options, dir, &|_, _| {}).unwrap();
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
