//! One model in every layout loads to the same values.

mod common;

use calla_weights::{Checkpoint, Layout, NormConvention, Placement, inspect};
use common::*;
use std::path::Path;
use tempfile::TempDir;

const MLX: &str = "language_model.";

/// A random tiny model, unquantised, with its MTP layer, in MLX's multimodal layout.
fn dense() -> (TempDir, Tensors) {
    let dir = tempfile::tempdir().unwrap();
    let tensors = dequantised(&tiny(dir.path(), true));
    forget_quantization(dir.path());
    write(dir.path(), &tensors);
    (dir, tensors)
}

fn load(dir: &Path) -> (Vec<Vec<f32>>, calla_weights::LoadReport) {
    let (network, report) =
        Checkpoint::open(dir).unwrap().load_with_report(Placement::Aligned).unwrap();
    (values(&network), report)
}

fn renamed(tensors: &Tensors, name: impl Fn(&str) -> String) -> Tensors {
    tensors.iter().map(|(old, tensor)| (name(old), tensor.clone())).collect()
}

/// Norms less 1, except DeltaNet's gated norm.
fn zero_centred(tensors: &mut Tensors, part: impl Fn(&str) -> bool) {
    for (name, tensor) in tensors {
        if part(name)
            && name.ends_with("norm.weight") | name.contains("_fc_norm_")
            && !name.ends_with("linear_attn.norm.weight")
        {
            let values = tensor.values().into_iter().map(|x| x - 1.0);
            *tensor = RawTensor::bf16(&tensor.shape, values);
        }
    }
}

/// Raw Hugging Face tensors; experts fused, or one tensor each.
fn hugging_face(tensors: &Tensors, fused: bool) -> Tensors {
    let mut result = Tensors::new();
    for (name, tensor) in tensors {
        let name = match name.strip_prefix("language_model.model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.strip_prefix(MLX).unwrap_or(name).to_owned(),
        };
        let mut tensor = tensor.clone();
        if name.ends_with("conv1d.weight") {
            tensor.shape.swap(1, 2);
        }
        let Some((mlp, projection)) = name.split_once(".switch_mlp.") else {
            result.insert(name, tensor);
            continue;
        };
        let projection = projection.strip_suffix(".weight").unwrap();
        let experts = tensor.shape[0];
        let pieces: Vec<Vec<u8>> =
            tensor.bytes.chunks_exact(tensor.bytes.len() / experts).map(<[u8]>::to_vec).collect();
        if !fused {
            for (expert, bytes) in pieces.into_iter().enumerate() {
                let shape = tensor.shape[1..].to_vec();
                let one = RawTensor { dtype: tensor.dtype.clone(), shape, bytes };
                result.insert(format!("{mlp}.experts.{expert}.{projection}.weight"), one);
            }
        } else if projection == "down_proj" {
            result.insert(format!("{mlp}.experts.down_proj"), tensor);
        } else {
            // Gate first, then up; `gate_proj` comes first in the map.
            let name = format!("{mlp}.experts.gate_up_proj");
            let halves = match result.remove(&name) {
                None => tensor,
                Some(gate) => {
                    let gates = gate.bytes.chunks_exact(gate.bytes.len() / experts);
                    let bytes = gates.zip(pieces).flat_map(|(g, up)| [g.to_vec(), up].concat());
                    let shape = vec![experts, 2 * tensor.shape[1], tensor.shape[2]];
                    RawTensor { dtype: tensor.dtype, shape, bytes: bytes.collect() }
                }
            };
            result.insert(name, halves);
        }
    }
    zero_centred(&mut result, |_| true);
    result
}

#[test]
fn all_layouts_hold_the_same_network() {
    let (dir, tensors) = dense();
    let (expected, report) = load(dir.path());
    assert_eq!(report.layout, Layout::Mlx);
    assert_eq!(report.mtp_norms, Some(NormConvention::Full));

    let flat = |tensors: &Tensors| renamed(tensors, |name| name.replace("language_model.", ""));
    for (variant, layout) in [
        (flat(&tensors), Layout::Mlx),
        (hugging_face(&tensors, true), Layout::HuggingFace),
        (hugging_face(&tensors, false), Layout::HuggingFace),
        (flat(&hugging_face(&tensors, true)), Layout::HuggingFace),
    ] {
        write(dir.path(), &variant);
        let (values, report) = load(dir.path());
        let names = variant.keys().collect::<Vec<_>>();
        assert_eq!(report.layout, layout, "{names:?}");
        assert_eq!(report.warnings, [""; 0], "{names:?}");
        assert!(values == expected, "{names:?}");
        inspect(&Checkpoint::open(dir.path()).unwrap()).unwrap();
    }
}

#[test]
fn quantised_experts_may_be_one_tensor_each() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = tiny(dir.path(), true);
    let (expected, _) = load(dir.path());
    let mut separate = Tensors::new();
    for (name, tensor) in &tensors {
        let Some((mlp, rest)) = name.split_once(".switch_mlp.") else {
            separate.insert(name.clone(), tensor.clone());
            continue;
        };
        let pieces = tensor.bytes.chunks_exact(tensor.bytes.len() / tensor.shape[0]);
        for (expert, bytes) in pieces.enumerate() {
            let (dtype, shape) = (tensor.dtype.clone(), tensor.shape[1..].to_vec());
            let one = RawTensor { dtype, shape, bytes: bytes.to_vec() };
            separate.insert(format!("{mlp}.experts.{expert}.{rest}"), one);
        }
    }
    write(dir.path(), &separate);
    // config.json spoke of the stacked modules.
    forget_quantization(dir.path());
    assert!(load(dir.path()).0 == expected);
}

#[test]
fn mtp_norms_have_a_convention_of_their_own_and_files_too() {
    let (dir, tensors) = dense();
    let (expected, _) = load(dir.path());
    let mut mixed = tensors.clone();
    zero_centred(&mut mixed, |name| name.starts_with("mtp."));
    let (mtp, trunk): (Tensors, Tensors) =
        mixed.into_iter().partition(|(name, _)| name.starts_with("mtp."));
    write(dir.path(), &trunk);
    assert!(Checkpoint::open(dir.path()).unwrap().load().unwrap().mtp.is_none());
    write_as(dir.path(), "mtp-00001.safetensors", &mtp);
    let (values, report) = load(dir.path());
    assert_eq!(report.layout, Layout::Mlx);
    assert_eq!(report.mtp_norms, Some(NormConvention::ZeroCentred));
    assert!(values == expected);
}

#[test]
fn a_norm_offset_applied_twice_is_warned_of() {
    let (dir, mut tensors) = dense();
    for (name, tensor) in &mut tensors {
        if name.ends_with("input_layernorm.weight") && name.starts_with(MLX) {
            let values = tensor.values().into_iter().map(|x| x + 1.0);
            *tensor = RawTensor::bf16(&tensor.shape, values);
        }
    }
    write(dir.path(), &tensors);
    let (_, report) = load(dir.path());
    assert_eq!(report.warnings.len(), 1);
    assert_says(&report.warnings[0], &["input norms of the layers", "outside of 0.3 to 1.7"]);
    let verification = calla_weights::verify(&Checkpoint::open(dir.path()).unwrap());
    assert_eq!(verification.problems.len(), 1, "{verification:?}");
    assert_says(&verification.problems[0].problem, &["outside of 0.3 to 1.7"]);
}

#[test]
fn small_vectors_may_be_f32_and_modules_f16_or_f32() {
    let (dir, mut tensors) = dense();
    let (expected, _) = load(dir.path());
    for (name, tensor) in &mut tensors {
        if name.ends_with("A_log") || name.ends_with("in_proj_b.weight") {
            *tensor = RawTensor::f32(&tensor.shape, tensor.values());
        } else if name.ends_with("dt_bias") || name.ends_with("mlp.gate.weight") {
            let bytes =
                tensor.values().into_iter().flat_map(|x| half::f16::from_f32(x).to_le_bytes());
            let bytes = bytes.collect();
            *tensor = RawTensor { dtype: "F16".to_owned(), shape: tensor.shape.clone(), bytes };
        }
    }
    write(dir.path(), &tensors);
    let (values, _) = load(dir.path());
    for (ours, theirs) in values.iter().zip(&expected) {
        for (x, y) in ours.iter().zip(theirs) {
            assert!((x - y).abs() <= 1e-3 * y.abs().max(1e-3), "{x} {y}");
        }
    }
}

#[test]
fn misaligned_tensors_are_copied_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = tiny(dir.path(), true);
    let (expected, report) = load(dir.path());
    assert_eq!((report.repacked_bytes, report.repacked_tensors), (0, 0));
    for pad in [1, 2, 3, 4] {
        let file = file_with_padding(&tensors, pad);
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        let (values, report) = load(dir.path());
        assert!(values == expected, "padding {pad}");
        let packed = |t: &&RawTensor| t.dtype == "U32";
        let matrices = tensors.iter().filter(|(name, t)| packed(t) || !name.ends_with(".weight"));
        let matrices =
            matrices.filter(|(name, _)| !name.ends_with("A_log") && !name.ends_with("dt_bias"));
        let copied: Vec<&RawTensor> = match pad {
            4 => vec![],
            2 => tensors.values().filter(packed).collect(),
            _ => matrices.map(|(_, tensor)| tensor).collect(),
        };
        assert_eq!(report.repacked_tensors, copied.len(), "padding {pad}");
        let bytes: usize = copied.iter().map(|t| t.bytes.len()).sum();
        assert_eq!(report.repacked_bytes, bytes as u64, "padding {pad}");
        let inspection = inspect(&Checkpoint::open(dir.path()).unwrap()).unwrap();
        assert_eq!(inspection.misaligned_tensors, copied.len(), "padding {pad}");
        assert_eq!(inspection.misaligned_bytes, bytes as u64, "padding {pad}");
    }
}

#[test]
fn misaligned_halves_of_fused_experts_are_copied() {
    let (dir, tensors) = dense();
    let (expected, _) = load(dir.path());
    let file = file_with_padding(&hugging_face(&tensors, true), 1);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let (values, report) = load(dir.path());
    assert!(values == expected);
    let inspection = inspect(&Checkpoint::open(dir.path()).unwrap()).unwrap();
    assert_eq!(inspection.misaligned_bytes, report.repacked_bytes);
    assert_eq!(inspection.misaligned_tensors, report.repacked_tensors);
}

#[test]
fn the_vision_tower_is_skipped_and_reported() {
    for prefix in ["vision_tower.", "model.visual.", "visual."] {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors = tiny(dir.path(), false);
        let (expected, _) = load(dir.path());
        for i in 0..3 {
            let name = format!("{prefix}blocks.{i}.norm1.weight");
            tensors.insert(name, RawTensor::bf16(&[8], [1.0; 8]));
        }
        write(dir.path(), &tensors);
        let (values, report) = load(dir.path());
        assert!(values == expected);
        assert_eq!((report.skipped_vision_tensors, report.skipped_vision_bytes), (3, 48));
        let parts = inspect(&Checkpoint::open(dir.path()).unwrap()).unwrap().bytes_by_part();
        assert!(parts.contains(&(calla_weights::inspect::Part::Vision, 48)), "{parts:?}");
    }
}

#[test]
fn the_same_weights_converted_by_mlx_and_raw_have_the_same_vectors() {
    // What `tools/peers/make_random_mlx_checkpoint.py OUT` writes: a source and its conversion.
    let Some(dir) = std::env::var_os("CALLA_RANDOM_CHECKPOINT") else {
        println!("skipped: CALLA_RANDOM_CHECKPOINT does not name a folder with src/ and mlx/");
        return;
    };
    let [raw, mlx] =
        ["src", "mlx"].map(|name| Checkpoint::open(Path::new(&dir).join(name)).unwrap());
    assert_eq!((raw.layout(), mlx.layout()), (Layout::HuggingFace, Layout::Mlx));
    let (raw, mlx) = (values(&raw.load().unwrap()), values(&mlx.load().unwrap()));
    assert_eq!(raw.len(), mlx.len());
    for (a, b) in raw.iter().zip(&mlx) {
        assert_eq!(a.len(), b.len());
        let difference: f32 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f32>().sqrt();
        let size: f32 = a.iter().map(|x| x * x).sum::<f32>().sqrt();
        // 4 bits keep a matrix to about a tenth of its size.
        assert!(difference <= 0.2 * size, "{difference} of {size}");
    }
}
