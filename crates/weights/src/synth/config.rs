//! `config.json` of a random checkpoint.

use super::Options;
use super::plan::PlannedTensor;
use calla_model::shape::{CONV_TAPS, DELTA_HEAD_DIM, HEAD_DIM, ROTARY_DIM};
use calla_model::{AffineFormat, LayerKind};
use serde_json::{Map, Value, json};

/// The text of `config.json`, in the form of the published multimodal checkpoint.
pub(super) fn config_json(options: &Options, tensors: &[PlannedTensor]) -> String {
    let shape = &options.shape;
    let layer_types: Vec<&str> = shape
        .layers
        .iter()
        .map(|kind| match kind {
            LayerKind::DeltaNet => "linear_attention",
            LayerKind::Attention => "full_attention",
        })
        .collect();
    let rotary = ROTARY_DIM as f64 / HEAD_DIM as f64;
    let config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": shape.tied_embeddings,
        "quantization": quantization(tensors),
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers.len(),
            "layer_types": layer_types,
            "num_attention_heads": shape.attention_heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": HEAD_DIM,
            "attn_output_gate": true,
            "attention_bias": false,
            "partial_rotary_factor": rotary,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": shape.rope_theta,
                "partial_rotary_factor": rotary,
            },
            "max_position_embeddings": shape.max_positions,
            "linear_num_key_heads": shape.delta_key_heads,
            "linear_num_value_heads": shape.delta_value_heads,
            "linear_key_head_dim": DELTA_HEAD_DIM,
            "linear_value_head_dim": DELTA_HEAD_DIM,
            "linear_conv_kernel_dim": CONV_TAPS,
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.expert_hidden,
            "shared_expert_intermediate_size": shape.shared_hidden,
            "hidden_act": "silu",
            // Shortest decimal that reads back as the same f32.
            "rms_norm_eps": shape.rms_norm_eps.to_string().parse::<f64>().unwrap_or(1e-6),
            "mtp_num_hidden_layers": u8::from(options.mtp),
            "tie_word_embeddings": shape.tied_embeddings,
            "dtype": "bfloat16",
        },
    });
    format!("{config:#}\n")
}

/// The `quantization` entry: a default, and every module that differs from it.
fn quantization(tensors: &[PlannedTensor]) -> Value {
    let default = AffineFormat::Q4_64;
    let entry = |format: AffineFormat| json!({"group_size": format.group(), "bits": format.bits()});
    let mut map = Map::new();
    map.insert("group_size".to_owned(), default.group().into());
    map.insert("bits".to_owned(), default.bits().into());
    map.insert("mode".to_owned(), "affine".into());
    for (path, format) in tensors.iter().filter_map(|tensor| tensor.module.as_ref()) {
        if *format != Some(default) {
            map.insert(path.clone(), format.map_or(Value::Bool(false), entry));
        }
    }
    Value::Object(map)
}
