//! Tensors that do not make the model that config.json describes are refused by name, with the bound.

mod common;

use calla_weights::{Checkpoint, verify};
use common::*;
use serde_json::json;
use tempfile::TempDir;

const LAYER: &str = "language_model.model.layers.0";

struct Tiny {
    dir: TempDir,
    tensors: Tensors,
}

fn tiny_model() -> Tiny {
    let dir = tempfile::tempdir().unwrap();
    let tensors = tiny(dir.path(), false);
    Tiny { dir, tensors }
}

impl Tiny {
    /// The message after one change of the tensors.
    fn refusal(&self, change: impl FnOnce(&mut Tensors)) -> String {
        let mut tensors = self.tensors.clone();
        change(&mut tensors);
        write(self.dir.path(), &tensors);
        refusal(self.dir.path())
    }

    /// The message after changing one tensor.
    fn refusal_of(&self, name: &str, change: impl FnOnce(&mut RawTensor)) -> String {
        self.refusal(|tensors| change(tensors.get_mut(name).unwrap()))
    }
}

/// The tensor as another type of the same size.
fn retyped(dtype: &str) -> impl FnOnce(&mut RawTensor) + '_ {
    move |tensor| dtype.clone_into(&mut tensor.dtype)
}

#[test]
fn missing_and_superfluous_tensors_are_named() {
    let tiny = tiny_model();
    for name in
        ["self_attn.q_norm.weight", "self_attn.q_proj.weight", "mlp.switch_mlp.up_proj.weight"]
    {
        let name = format!("language_model.model.layers.1.{name}");
        let message = tiny.refusal(|tensors| {
            tensors.remove(&name).unwrap();
        });
        assert_says(&message, &["no tensor \"model.layers.1.", "looked for"]);
    }
    let message = tiny.refusal(|tensors| {
        for i in 0..7 {
            tensors.insert(format!("lora.{i}"), RawTensor::bf16(&[1], [0.0]));
        }
    });
    assert_says(
        &message,
        &["7 tensors are not part of the model", "\"lora.0\" of model", "\"lora.4\""],
    );
    assert!(!message.contains("lora.5"), "{message}");
    // Both a stack of experts and single ones.
    let message = tiny.refusal(|tensors| {
        let name = format!("{LAYER}.mlp.experts.0.up_proj.weight");
        tensors.insert(name, RawTensor::bf16(&[32, 64], [0.0; 2048]));
    });
    assert_says(&message, &["1 tensors are not part", "experts.0.up_proj"]);
    // One layer more in the files than in config.json.
    edit_config(tiny.dir.path(), |config| {
        config["text_config"]["num_hidden_layers"] = json!(1);
        config["text_config"]["layer_types"] = json!(["linear_attention"]);
    });
    assert_says(&tiny.refusal(|_| {}), &["tensors are not part of the model", "layers.1."]);
}

#[test]
fn shapes_must_be_those_of_the_configuration() {
    let tiny = tiny_model();
    let reshaped = |name: &str, shape: &[usize], parts: &[&str]| {
        let name = format!("{LAYER}.{name}");
        let message = tiny.refusal_of(&name, |tensor| {
            let per_value = tensor.bytes.len() / tensor.shape.iter().product::<usize>();
            tensor.shape = shape.to_vec();
            tensor.bytes.resize(per_value * shape.iter().product::<usize>(), 0);
        });
        // The biases are held to the scales, so theirs is the name where these differ.
        let module = name.trim_end_matches(".scales");
        assert_says(&message, &[module]);
        assert_says(&message, parts);
    };
    reshaped("input_layernorm.weight", &[63], &["has shape [63]", "asks for [64]"]);
    reshaped("input_layernorm.weight", &[64, 1], &["has shape [64, 1]", "asks for [64]"]);
    reshaped("linear_attn.A_log", &[3], &["has shape [3]", "asks for [2]"]);
    let conv = &["has shape [512, 2, 2]", "asks for [512, 4, 1] or [512, 1, 4]"];
    reshaped("linear_attn.conv1d.weight", &[512, 2, 2], conv);
    reshaped("linear_attn.out_proj.weight", &[63, 32], &["[63, 32]", "[64, 256 values packed]"]);
    reshaped("mlp.switch_mlp.up_proj.weight", &[96, 8], &["[96, 8]", "[3, 32, 64 values packed]"]);
    let unknown = &["7 packed words and 1 groups for 64 values are no known format"];
    reshaped("linear_attn.in_proj_z.weight", &[256, 7], unknown);
    let unknown = &["no known format", "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"];
    reshaped("mlp.switch_mlp.down_proj.weight", &[3, 64, 28], unknown);
    reshaped("linear_attn.in_proj_z.scales", &[256, 3], &["biases", "[256, 3], like the scales"]);
    reshaped(
        "linear_attn.in_proj_z.scales",
        &[255, 1],
        &["[255, 1]", "[256] and the number of groups"],
    );
}

#[test]
fn types_must_be_those_that_are_read() {
    let tiny = tiny_model();
    let says = |name: &str, dtype: &str, parts: &[&str]| {
        let name = format!("{LAYER}.{name}");
        let message = tiny.refusal_of(&name, retyped(dtype));
        assert_says(&message, &[&name]);
        assert_says(&message, parts);
    };
    says("input_layernorm.weight", "I16", &["has dtype I16", "BF16, F16 or F32"]);
    says("linear_attn.in_proj_z.weight", "I32", &["has dtype I32", "U32, because .scales"]);
    says("linear_attn.in_proj_z.scales", "U16", &["has dtype U16", "BF16, F16 or F32"]);
    says("linear_attn.in_proj_z.biases", "F16", &["has dtype F16", "that of the scales beside it"]);

    let module = format!("{LAYER}.linear_attn.in_proj_z");
    let without = |suffix: &str| {
        tiny.refusal(|tensors| {
            tensors.remove(&format!("{module}.{suffix}")).unwrap();
        })
    };
    assert_says(&without("scales"), &[&module, "packed integers (U32) but has no .scales"]);
    assert_says(&without("biases"), &[&module, "has .scales but no .biases", "affine"]);
}

#[test]
fn a_quantised_recurrence_is_refused() {
    let tiny = tiny_model();
    let name = format!("{LAYER}.linear_attn.A_log");
    let bf16 = || RawTensor::bf16(&[2], [1.0, 1.0]);
    let message = tiny.refusal(|tensors| {
        tensors.insert(format!("{name}.scales"), bf16());
        tensors.insert(format!("{name}.biases"), bf16());
    });
    assert_says(&message, &[&name, "is quantised", "convert the checkpoint again"]);
    let packed = RawTensor { dtype: "U32".to_owned(), shape: vec![2], bytes: vec![0; 8] };
    let message = tiny.refusal(|tensors| {
        tensors.insert(name.clone(), packed);
    });
    assert_says(&message, &[&name, "is quantised"]);
}

#[test]
fn the_configuration_must_agree_where_it_speaks_of_a_module() {
    let tiny = tiny_model();
    let module = format!("{LAYER}.mlp.gate");
    let with = |entry: serde_json::Value, name: &str| {
        edit_config(tiny.dir.path(), |config| {
            config["quantization"][name] = entry;
        });
        tiny.refusal(|_| {})
    };
    let entry = |bits: u32, group: u32| json!({"bits": bits, "group_size": group});
    let parts = [
        &module,
        "config.json says 6 bits in groups of 64",
        "the tensors hold 8 bits in groups of 64",
    ];
    assert_says(&with(entry(6, 64), &module), &parts);
    assert_says(
        &with(json!(false), &module),
        &["config.json says unquantised values", "hold 8 bits"],
    );
    with_fixed(&tiny, &module);

    // The default speaks of every quantised module of the trunk.
    edit_config(tiny.dir.path(), |config| config["quantization"]["bits"] = json!(5));
    assert_says(&tiny.refusal(|_| {}), &["embed_tokens", "config.json says 5 bits", "hold 4 bits"]);
    edit_config(tiny.dir.path(), |config| config["quantization"]["bits"] = json!(4));

    // An entry for a module that is not quantised.
    let dense = dequantised(&tiny.tensors);
    let path = "language_model.model.layers.0.linear_attn.out_proj";
    let message = tiny.refusal(|tensors| {
        tensors.retain(|name, _| !name.starts_with(path));
        tensors.insert(format!("{path}.weight"), dense[&format!("{path}.weight")].clone());
        edit_config(tiny.dir.path(), |config| config["quantization"][path] = entry(4, 64));
    });
    assert_says(&message, &[path, "config.json says 4 bits", "hold unquantised values"]);
    // Without an entry, a module may be left unquantised.
    edit_config(tiny.dir.path(), |config| {
        config["quantization"].as_object_mut().unwrap().remove(path);
    });
    Checkpoint::open(tiny.dir.path()).unwrap().load().unwrap();
}

/// Puts the entry of a router back, and checks that the model loads then.
fn with_fixed(tiny: &Tiny, module: &str) {
    edit_config(tiny.dir.path(), |config| {
        config["quantization"][module] = json!({"bits": 8, "group_size": 64});
    });
    write(tiny.dir.path(), &tiny.tensors);
    Checkpoint::open(tiny.dir.path()).unwrap().load().unwrap();
}

#[test]
fn two_layouts_in_one_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shape =
        calla_model::Shape { layers: vec![calla_model::LayerKind::DeltaNet; 2], ..tiny_shape() };
    let options =
        calla_weights::synth::Options { shape, seed: 1, mtp: false, skew: 0.0, tokenizer: None };
    calla_weights::synth(&options, dir.path(), &|_, _| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let file = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let mut tensors = tensors_of(&file);
    let name = format!("{LAYER}.linear_attn.conv1d.weight");
    tensors.get_mut(&name).unwrap().shape.swap(1, 2);
    write(dir.path(), &tensors);
    assert_says(
        &refusal(dir.path()),
        &[&name, "[512, 1, 4] and [512, 4, 1]", "two different layouts"],
    );
}

#[test]
fn a_truncated_download_is_called_so() {
    let tiny = tiny_model();
    let path = tiny.dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    for (len, part) in [
        (file.len() - 1, "reach beyond"),
        (file.len() / 2, "reach beyond"),
        (1000, "only 992 follow its length"),
        (4, "the file has 4 bytes"),
        (0, "the file has 0 bytes"),
    ] {
        std::fs::write(&path, &file[..len]).unwrap();
        assert_says(&refusal(tiny.dir.path()), &["model.safetensors: ", part]);
    }
}

#[test]
fn values_that_are_not_numbers_are_found() {
    let tiny = tiny_model();
    let path = tiny.dir.path().join("model.safetensors");
    let mut tensors = tiny.tensors.clone();
    let mut set = |name: &str, index: usize, value: f32| {
        let bytes = half::bf16::from_f32(value).to_le_bytes();
        tensors.get_mut(name).unwrap().bytes[2 * index..2 * index + 2].copy_from_slice(&bytes);
    };
    let scales = format!("{LAYER}.mlp.switch_mlp.up_proj.scales");
    set(&scales, 5, f32::NAN);
    set(&scales, 6, f32::NEG_INFINITY);
    set(&scales, 7, f32::INFINITY);
    let a_log = format!("{LAYER}.linear_attn.A_log");
    set(&a_log, 1, 90.0);
    let norm = "language_model.model.norm.weight";
    tensors.insert(norm.to_owned(), RawTensor::bf16(&[64], [0.0; 64]));
    let vision = "vision_tower.x";
    tensors.insert(vision.to_owned(), RawTensor::f32(&[2], [f32::NAN, 1.0]));
    for pad in [0, 1] {
        std::fs::write(&path, file_with_padding(&tensors, pad)).unwrap();
        let checkpoint = Checkpoint::open(tiny.dir.path()).unwrap();
        let verification = verify(&checkpoint);
        let problem = |name: &str| {
            let found: Vec<_> =
                verification.problems.iter().filter(|p| p.tensor.name == name).collect();
            assert_eq!(found.len(), 1, "{name}: {verification:?}");
            found[0].problem.clone()
        };
        assert_says(&problem(&scales), &["holds 1 NaN and 2 infinite values"]);
        assert_says(&problem(&a_log), &["log decay rate 90", "-30 to 10"]);
        assert_says(&problem(norm), &["mean scale of 0", "0.01 to 100"]);
        assert_says(&problem(vision), &["holds 1 NaN and 0 infinite values"]);
        assert_eq!(verification.problems.len(), 4);
        assert!(!verification.is_clean());
    }
}
