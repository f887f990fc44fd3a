//! Configurations that are read, and those that are refused with a reason.

use calla_model::{AffineFormat, Config, LayerKind, Shape};
use serde_json::{Value, json};

fn demo() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/config.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn refusal(config: &Value) -> String {
    Config::parse(&config.to_string()).unwrap_err().to_string()
}

/// The demo configuration with one key of its text part replaced.
fn with(key: &str, value: Value) -> Value {
    let mut config = demo();
    config["text_config"][key] = value;
    config
}

#[test]
fn the_demo_configuration_is_the_demo_shape() {
    let config = Config::parse(&demo().to_string()).unwrap();
    assert_eq!(config.shape, Shape::demo());
    assert_eq!(config.eos_token_ids, [4087, 4089]);
    assert_eq!(config.quantization.default, Some(AffineFormat::Q4_64));
    let gate = config.quantization.of("language_model.model.layers.0.mlp.gate");
    assert_eq!(gate, Some(AffineFormat::Q8_64));
}

#[test]
fn the_flat_form_is_the_same_model() {
    let mut flat = demo()["text_config"].clone();
    flat["eos_token_id"] = json!(7);
    let config = Config::parse(&flat.to_string()).unwrap();
    assert_eq!(config.shape, Shape::demo());
    assert_eq!(config.eos_token_ids, [7]);
    assert_eq!(config.quantization.default, None);
}

#[test]
fn layer_types_follow_the_interval_when_absent() {
    let mut config = demo();
    config["text_config"].as_object_mut().unwrap().remove("layer_types");
    let shape = Config::parse(&config.to_string()).unwrap().shape;
    assert_eq!(shape.layers[3], LayerKind::Attention);
    assert_eq!(shape.layers_of(LayerKind::DeltaNet), 6);
}

#[test]
fn keys_that_name_code_are_ignored() {
    let mut config = demo();
    config["auto_map"] = json!({"AutoModel": "evil.py"});
    config["model_file"] = json!("/etc/passwd");
    assert!(Config::parse(&config.to_string()).is_ok());
}

#[test]
fn bad_values_are_refused_with_key_bound_and_value() {
    for (key, value, words) in [
        ("hidden_size", json!(0), "from 1 to 65536 but is 0"),
        ("hidden_size", json!(-1), "but is -1"),
        ("hidden_size", json!(1e300), "but is 1e"),
        ("hidden_size", json!("256"), "but is \"256\""),
        ("vocab_size", json!(1_u64 << 62), "but is 4611686018427387904"),
        ("num_hidden_layers", json!(9), "layer_types has 8 entries but num_hidden_layers is 9"),
        ("num_experts_per_tok", json!(33), "is more than num_experts (32)"),
        ("num_attention_heads", json!(7), "is not a multiple of num_key_value_heads"),
        ("linear_num_value_heads", json!(3), "is not a multiple of linear_num_key_heads"),
        ("head_dim", json!(128), "\"head_dim\" must be 256 in this family but is 128"),
        ("layer_types", json!(vec!["mamba"; 8]), "\"mamba\""),
        ("rms_norm_eps", json!(0.0), "rms_norm_eps"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "YaRN"),
        ("rope_scaling", json!({"factor": 4}), "rope_scaling"),
        ("norm_topk_prob", json!(false), "norm_topk_prob"),
        ("mtp_num_hidden_layers", json!(2), "from 0 to 1"),
        ("hidden_act", json!("gelu\u{1b}[31m"), "gelu\\u001b"),
    ] {
        let message = refusal(&with(key, value.clone()));
        assert!(message.contains(words), "{key} = {value}: {message}");
    }
}

#[test]
fn other_models_and_broken_files_are_refused() {
    for (text, words) in [
        (r#"{"model_type": "llama"}"#, "\"llama\" model; calla runs only"),
        (r#"{"model_type": "qwen3_5_moe"}"#, "text_config"),
        (r#"{"model_type": 3}"#, "must be a string but is 3"),
        ("{}", "model_type"),
        ("[]", "not a JSON object"),
        ("{\"model_type\": ", "not a JSON object"),
    ] {
        let message = Config::parse(text).unwrap_err().to_string();
        assert!(message.contains(words), "{text}: {message}");
    }
    let deep = "[".repeat(100_000);
    assert!(Config::parse(&deep).unwrap_err().to_string().contains("recursion"));
}

#[test]
fn other_quantisations_are_refused() {
    for (value, words) in [
        (json!({"bits": 7, "group_size": 64}), "bits of 2, 3, 4, 5, 6 or 8"),
        (json!({"bits": 4, "group_size": 0}), "group_size of 32, 64 or 128"),
        (json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}), "\"affine\" but is \"mxfp4\""),
        (json!({"quant_method": "gptq"}), "gptq"),
        (json!(4), "an object"),
    ] {
        let mut config = demo();
        config["quantization"] = value;
        let message = refusal(&config);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn the_published_configuration_is_the_full_shape() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/qwen3.6/config.mlx-4bit.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: the published configuration is not beside the checkout");
        return;
    };
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.shape, Shape::full(40));
    let head = "language_model.model.layers.39.mlp.shared_expert_gate";
    assert_eq!(config.quantization.of(head), Some(AffineFormat::Q8_64));
}
