//! `config.json`: parsed once into a [`Shape`] that can be trusted, or refused with the reason.
//!
//! Both the multimodal wrapper (`qwen3_5_moe` with a `text_config`) and the flat text form
//! (`qwen3_5_moe_text`) are read. Keys that could run code or load other files (`auto_map`, `model_file`)
//! are ignored like every unknown key.

use crate::format::AffineFormat;
use crate::shape::{CONV_TAPS, DELTA_HEAD_DIM, HEAD_DIM, LayerKind, ROTARY_DIM, Shape, schedule};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Everything the engine takes from `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Widths and counts.
    pub shape: Shape,
    /// What the file says of quantisation; the tensors themselves decide.
    pub quantization: Quantization,
    /// End-of-sequence ids named here (often incomplete: generation_config.json knows more).
    pub eos_token_ids: Vec<u32>,
}

/// The `quantization` entry of an MLX checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantization {
    /// Format of modules without an entry of their own; `None` when the checkpoint is not quantised.
    pub default: Option<AffineFormat>,
    /// Modules with their own entry, by full module path; `None` means not quantised.
    pub overrides: BTreeMap<String, Option<AffineFormat>>,
}

impl Quantization {
    /// What the file says of module `path` (as MLX names it): its format, or `None` for unquantised.
    #[must_use]
    pub fn of(&self, path: &str) -> Option<AffineFormat> {
        self.overrides.get(path).copied().unwrap_or(self.default)
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON, or not an object.
    #[error("config.json is not a JSON object: {0}")]
    Json(String),
    /// A key is missing.
    #[error("config.json has no \"{0}\"")]
    Missing(&'static str),
    /// A key has a value of the wrong type or out of range.
    #[error("config.json: \"{key}\" must be {expected} but is {value}")]
    Value {
        /// The key.
        key: String,
        /// What is allowed.
        expected: String,
        /// What was found, shortened.
        value: String,
    },
    /// The model is of another architecture.
    #[error(
        "this checkpoint is a \"{0}\" model; calla runs only the Qwen3.5/3.6-MoE family \
         (model_type qwen3_5_moe or qwen3_5_moe_text)"
    )]
    Architecture(String),
    /// Two values contradict each other.
    #[error("config.json: {0}")]
    Inconsistent(String),
}

/// The range of a count in config.json, with the words of its error message.
struct Limit {
    key: &'static str,
    min: u64,
    max: u64,
}

// Upper bounds lie far above any model of the family; they keep every product of two widths and a count
// below 2^63, so that later sizes cannot overflow.
const VOCAB_SIZE: Limit = Limit { key: "vocab_size", min: 1, max: 1 << 22 };
const HIDDEN: Limit = Limit { key: "hidden_size", min: 1, max: 1 << 16 };
const LAYERS: Limit = Limit { key: "num_hidden_layers", min: 1, max: 1024 };
const ATTENTION_HEADS: Limit = Limit { key: "num_attention_heads", min: 1, max: 1024 };
const KV_HEADS: Limit = Limit { key: "num_key_value_heads", min: 1, max: 1024 };
const DELTA_KEY_HEADS: Limit = Limit { key: "linear_num_key_heads", min: 1, max: 1024 };
const DELTA_VALUE_HEADS: Limit = Limit { key: "linear_num_value_heads", min: 1, max: 1024 };
const EXPERTS: Limit = Limit { key: "num_experts", min: 1, max: 4096 };
const TOP_K: Limit = Limit { key: "num_experts_per_tok", min: 1, max: 4096 };
const EXPERT_HIDDEN: Limit = Limit { key: "moe_intermediate_size", min: 1, max: 1 << 16 };
const SHARED_HIDDEN: Limit = Limit { key: "shared_expert_intermediate_size", min: 1, max: 1 << 16 };
const MAX_POSITIONS: Limit = Limit { key: "max_position_embeddings", min: 1, max: 1 << 24 };
const MTP_LAYERS: Limit = Limit { key: "mtp_num_hidden_layers", min: 0, max: 1 };
const INTERVAL: Limit = Limit { key: "full_attention_interval", min: 1, max: 1024 };

impl Config {
    /// Parses the text of `config.json`.
    ///
    /// # Errors
    /// If it is not JSON, names another architecture, or holds a value outside the family.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| ConfigError::Json(e.to_string()))?;
        let Value::Object(top) = value else {
            return Err(ConfigError::Json(format!("it is {}", shorten(&value))));
        };
        let text = text_config(&top)?;
        let keys = Keys { text, top: &top };
        keys.check_family()?;
        Ok(Self {
            shape: keys.shape()?,
            quantization: quantization(&top)?,
            eos_token_ids: keys.eos_token_ids()?,
        })
    }
}

fn text_config(top: &Map<String, Value>) -> Result<&Map<String, Value>, ConfigError> {
    let model_type = top.get("model_type").ok_or(ConfigError::Missing("model_type"))?;
    match (model_type.as_str(), top.get("text_config")) {
        (Some("qwen3_5_moe"), Some(Value::Object(text))) => {
            match text.get("model_type").and_then(Value::as_str) {
                None | Some("qwen3_5_moe_text") => Ok(text),
                Some(other) => Err(ConfigError::Architecture(shorten_str(other))),
            }
        }
        (Some("qwen3_5_moe"), None) => Err(ConfigError::Missing("text_config")),
        (Some("qwen3_5_moe"), Some(other)) => Err(wrong("text_config", "an object", other)),
        (Some("qwen3_5_moe_text"), _) => Ok(top),
        (Some(other), _) => Err(ConfigError::Architecture(shorten_str(other))),
        (None, _) => Err(wrong("model_type", "a string", model_type)),
    }
}

/// The keys of the text model, with the wrapper's as a fallback.
struct Keys<'a> {
    text: &'a Map<String, Value>,
    top: &'a Map<String, Value>,
}

impl Keys<'_> {
    /// The value of a key that is present and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.text.get(key).or_else(|| self.top.get(key)).filter(|v| !v.is_null())
    }

    fn count(&self, limit: &Limit, default: Option<u64>) -> Result<usize, ConfigError> {
        let Some(value) = self.get(limit.key) else {
            return default.map(|n| n as usize).ok_or(ConfigError::Missing(limit.key));
        };
        value
            .as_u64()
            .filter(|n| (limit.min..=limit.max).contains(n))
            .map(|n| n as usize)
            .ok_or_else(|| {
                wrong(limit.key, &format!("an integer from {} to {}", limit.min, limit.max), value)
            })
    }

    /// A key whose value the family fixes; absent means the same.
    fn fixed(&self, key: &str, expected: &Value) -> Result<(), ConfigError> {
        match self.get(key) {
            None => Ok(()),
            Some(v) if v == expected => Ok(()),
            // 128 and 128.0, 0.25 and 2.5e-1 are the same number.
            Some(v) if v.is_number() && v.as_f64() == expected.as_f64() => Ok(()),
            Some(v) => Err(wrong(key, &format!("{expected} in this family"), v)),
        }
    }

    fn check_family(&self) -> Result<(), ConfigError> {
        for (key, value) in [
            ("head_dim", Value::from(HEAD_DIM)),
            ("linear_key_head_dim", Value::from(DELTA_HEAD_DIM)),
            ("linear_value_head_dim", Value::from(DELTA_HEAD_DIM)),
            ("linear_conv_kernel_dim", Value::from(CONV_TAPS)),
            ("partial_rotary_factor", Value::from(ROTARY_DIM as f64 / HEAD_DIM as f64)),
            ("attn_output_gate", Value::Bool(true)),
            ("attention_bias", Value::Bool(false)),
            ("norm_topk_prob", Value::Bool(true)),
            ("hidden_act", Value::from("silu")),
            ("decoder_sparse_step", Value::from(1)),
            ("mlp_only_layers", Value::Array(vec![])),
            ("mtp_use_dedicated_embeddings", Value::Bool(false)),
        ] {
            self.fixed(key, &value)?;
        }
        // head_dim has no safe default: Hugging Face would derive another value from hidden_size.
        if self.get("head_dim").is_none() {
            return Err(ConfigError::Missing("head_dim"));
        }
        match self.get("output_gate_type") {
            None => {}
            Some(v) if matches!(v.as_str(), Some("silu" | "swish")) => {}
            Some(v) => return Err(wrong("output_gate_type", "\"silu\" or \"swish\"", v)),
        }
        if let Some(v) = self.get("rope_scaling") {
            return Err(wrong("rope_scaling", "absent (scaled RoPE is not supported yet)", v));
        }
        Ok(())
    }

    fn shape(&self) -> Result<Shape, ConfigError> {
        let layer_count = self.count(&LAYERS, None)?;
        let shape = Shape {
            vocab_size: self.count(&VOCAB_SIZE, None)?,
            hidden: self.count(&HIDDEN, None)?,
            layers: self.layers(layer_count)?,
            attention_heads: self.count(&ATTENTION_HEADS, None)?,
            kv_heads: self.count(&KV_HEADS, None)?,
            delta_key_heads: self.count(&DELTA_KEY_HEADS, None)?,
            delta_value_heads: self.count(&DELTA_VALUE_HEADS, None)?,
            experts: self.count(&EXPERTS, None)?,
            top_k: self.count(&TOP_K, None)?,
            expert_hidden: self.count(&EXPERT_HIDDEN, None)?,
            shared_hidden: self.count(&SHARED_HIDDEN, None)?,
            rms_norm_eps: self.float("rms_norm_eps", 1e-6, 1e-12, 1e-2)?,
            rope_theta: self.rope_theta()?,
            max_positions: self.count(&MAX_POSITIONS, Some(262_144))?,
            tied_embeddings: self.flag("tie_word_embeddings", false)?,
            mtp_layers: self.count(&MTP_LAYERS, Some(0))?,
        };
        divides(&ATTENTION_HEADS, shape.attention_heads, &KV_HEADS, shape.kv_heads)?;
        divides(
            &DELTA_VALUE_HEADS,
            shape.delta_value_heads,
            &DELTA_KEY_HEADS,
            shape.delta_key_heads,
        )?;
        if shape.top_k > shape.experts {
            return Err(ConfigError::Inconsistent(format!(
                "num_experts_per_tok ({}) is more than num_experts ({})",
                shape.top_k, shape.experts
            )));
        }
        Ok(shape)
    }

    fn layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigError> {
        let Some(types) = self.get("layer_types") else {
            return Ok(schedule(count, self.count(&INTERVAL, Some(4))?));
        };
        let expected = "a list of \"linear_attention\" and \"full_attention\"";
        let list = types.as_array().ok_or_else(|| wrong("layer_types", expected, types))?;
        if list.len() != count {
            return Err(ConfigError::Inconsistent(format!(
                "layer_types has {} entries but num_hidden_layers is {count}",
                list.len()
            )));
        }
        list.iter()
            .map(|kind| match kind.as_str() {
                Some("linear_attention") => Ok(LayerKind::DeltaNet),
                Some("full_attention") => Ok(LayerKind::Attention),
                _ => Err(wrong("layer_types", expected, kind)),
            })
            .collect()
    }

    fn rope_theta(&self) -> Result<f32, ConfigError> {
        const KEY: &str = "rope_theta";
        let Some(parameters) = self.get("rope_parameters") else {
            return self.float(KEY, 1e7, 1.0, 1e12);
        };
        let Value::Object(map) = parameters else {
            return Err(wrong("rope_parameters", "an object", parameters));
        };
        let rope = Keys { text: map, top: self.text };
        for key in ["rope_type", "type"] {
            match map.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::String(s)) if s == "default" => {}
                Some(v) => {
                    let expected = "\"default\" (scaled RoPE such as YaRN is not supported yet)";
                    return Err(wrong(&format!("rope_parameters.{key}"), expected, v));
                }
            }
        }
        rope.fixed("partial_rotary_factor", &Value::from(0.25))?;
        rope.float(KEY, 1e7, 1.0, 1e12)
    }

    fn float(&self, key: &str, default: f32, min: f64, max: f64) -> Result<f32, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value
            .as_f64()
            .filter(|x| (min..=max).contains(x))
            .map(|x| x as f32)
            .ok_or_else(|| wrong(key, &format!("a number from {min:e} to {max:e}"), value))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| wrong(key, "true or false", value))
    }

    /// The ids of the text part and of the wrapper together: either may be incomplete.
    fn eos_token_ids(&self) -> Result<Vec<u32>, ConfigError> {
        const KEY: &str = "eos_token_id";
        let id = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| wrong(KEY, "a token id or a list of token ids", v))
        };
        let mut ids = Vec::new();
        for value in [self.text.get(KEY), self.top.get(KEY)].into_iter().flatten() {
            match value {
                Value::Null => {}
                Value::Array(list) => {
                    for v in list {
                        ids.push(id(v)?);
                    }
                }
                single => ids.push(id(single)?),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn divides(many: &Limit, n: usize, few: &Limit, d: usize) -> Result<(), ConfigError> {
    if n.is_multiple_of(d) {
        return Ok(());
    }
    Err(ConfigError::Inconsistent(format!(
        "{} ({n}) is not a multiple of {} ({d})",
        many.key, few.key
    )))
}

fn quantization(top: &Map<String, Value>) -> Result<Quantization, ConfigError> {
    let key = if top.contains_key("quantization") { "quantization" } else { "quantization_config" };
    let Some(value) = top.get(key).filter(|v| !v.is_null()) else {
        return Ok(Quantization::default());
    };
    let Value::Object(map) = value else { return Err(wrong(key, "an object", value)) };
    if let Some(method) = map.get("quant_method") {
        return Err(wrong(
            &format!("{key}.quant_method"),
            "absent: only MLX affine quantisation and unquantised checkpoints are read",
            method,
        ));
    }
    let mut result = Quantization { default: Some(affine(key, map)?), overrides: BTreeMap::new() };
    for (path, entry) in map {
        let format = match entry {
            Value::Object(entry) => Some(affine(&format!("{key}.{path}"), entry)?),
            Value::Bool(false) => None,
            // `true` and the scalar keys (bits, group_size, mode) say nothing of a module.
            _ => continue,
        };
        result.overrides.insert(path.clone(), format);
    }
    Ok(result)
}

fn affine(key: &str, map: &Map<String, Value>) -> Result<AffineFormat, ConfigError> {
    match map.get("mode") {
        None => {}
        Some(Value::String(mode)) if mode == "affine" => {}
        Some(other) => return Err(wrong(&format!("{key}.mode"), "\"affine\"", other)),
    }
    let number = |name: &str| map.get(name).and_then(Value::as_u64).unwrap_or(0) as usize;
    AffineFormat::new(number("bits"), number("group_size")).ok_or_else(|| {
        wrong(
            key,
            "bits of 2, 3, 4, 5, 6 or 8 with a group_size of 32, 64 or 128",
            &Value::Object(map.iter().take(3).map(|(k, v)| (k.clone(), v.clone())).collect()),
        )
    })
}

fn wrong(key: &str, expected: &str, value: &Value) -> ConfigError {
    ConfigError::Value {
        key: shorten_str(key),
        expected: expected.to_owned(),
        value: shorten(value),
    }
}

fn shorten(value: &Value) -> String {
    match value {
        Value::Array(list) if list.len() > 8 => format!("a list of {} entries", list.len()),
        Value::Object(map) if map.len() > 8 => format!("an object of {} entries", map.len()),
        other => shorten_str(&other.to_string()),
    }
}

/// The text, cut to 80 characters and without control characters: it may come from a hostile file.
fn shorten_str(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut out: String = text.chars().take(80).map(visible).collect();
    if text.chars().nth(80).is_some() {
        out.push_str("...");
    }
    out
}
