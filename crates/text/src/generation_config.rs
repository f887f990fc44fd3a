//! Sampling defaults that a checkpoint ships in `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::Result;
use crate::files::{CONFIG_BYTES_MAX, bad_file, read_text_if_present};

/// What `generation_config.json` says; every field is optional and within its bounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether to sample at all; `false` means greedy.
    pub do_sample: Option<bool>,
    /// Softmax temperature, in 0..=100, as the sampler takes it.
    pub temperature: Option<f32>,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Probability mass kept, in 0..=1.
    pub top_p: Option<f32>,
    /// Least probability relative to the most likely token's, in 0..=1.
    pub min_p: Option<f32>,
    /// Multiplicative repetition penalty, in 0.01..=100, as the sampler takes it.
    pub repetition_penalty: Option<f32>,
    /// Ids that end a reply; written as one integer or a list.
    pub eos_token_id: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json` of a checkpoint directory; all fields are empty without the file.
    ///
    /// # Errors
    /// An unreadable or malformed file, or a field outside its bounds; the message names it.
    pub fn load(dir: &Path) -> Result<GenerationDefaults> {
        let path = dir.join("generation_config.json");
        match read_text_if_present(&path, CONFIG_BYTES_MAX)? {
            None => Ok(GenerationDefaults::default()),
            Some(json) => parse(&json).map_err(|reason| bad_file(&path, &reason)),
        }
    }
}

fn parse(json: &str) -> Result<GenerationDefaults, String> {
    let map: Map<String, Value> = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let number = |name: &str, min: f64, max: f64| match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(x) if (min..=max).contains(&x) => Ok(Some(x as f32)),
            _ => Err(format!("`{name}` must be a number in {min}..={max}, it is {value}")),
        },
    };
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("`eos_token_id` must be token ids, it holds {value}"))
    };
    let do_sample = match map.get("do_sample") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(b)) => Some(*b),
        Some(value) => return Err(format!("`do_sample` must be true or false, it is {value}")),
    };
    let top_k = number("top_k", 0.0, u32::MAX.into())?;
    if let Some(k) = map.get("top_k").and_then(Value::as_f64)
        && k.fract() != 0.0
    {
        return Err(format!("`top_k` must be a whole number, it is {k}"));
    }
    Ok(GenerationDefaults {
        do_sample,
        temperature: number("temperature", 0.0, 100.0)?,
        top_k: top_k.and(map.get("top_k").and_then(Value::as_f64)).map(|k| k as u32),
        top_p: number("top_p", 0.0, 1.0)?,
        min_p: number("min_p", 0.0, 1.0)?,
        repetition_penalty: number("repetition_penalty", 0.01, 100.0)?,
        eos_token_id: match map.get("eos_token_id") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => list.iter().map(id).collect::<Result<_, _>>()?,
            Some(value) => vec![id(value)?],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_one_id_or_a_list() {
        let defaults = parse(
            r#"{"do_sample": true, "temperature": 1.0, "top_k": 20, "top_p": 0.95,
                "eos_token_id": [5, 7], "transformers_version": "4.57.0"}"#,
        )
        .unwrap();
        assert_eq!(defaults.do_sample, Some(true));
        assert_eq!(defaults.top_k, Some(20));
        assert_eq!(defaults.top_p, Some(0.95));
        assert_eq!(defaults.min_p, None);
        assert_eq!(defaults.eos_token_id, [5, 7]);
        assert_eq!(parse(r#"{"eos_token_id": 5}"#).unwrap().eos_token_id, [5]);
        assert_eq!(parse("{}").unwrap(), GenerationDefaults::default());
    }

    #[test]
    fn names_the_field_that_is_out_of_bounds() {
        for (json, field) in [
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": 101}"#, "`temperature` must be a number in 0..=100, it is 101"),
            (r#"{"repetition_penalty": 0.001}"#, "in 0.01..=100, it is 0.001"),
            (r#"{"repetition_penalty": 1000.0}"#, "in 0.01..=100, it is 1000.0"),
            (r#"{"top_k": -1}"#, "top_k"),
            (r#"{"top_k": 1.5}"#, "top_k"),
            (r#"{"top_k": 4294967296}"#, "top_k"),
            (r#"{"top_p": 1.1}"#, "top_p"),
            (r#"{"min_p": []}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"do_sample": 1}"#, "do_sample"),
            (r#"{"eos_token_id": -1}"#, "eos_token_id"),
            (r#"{"eos_token_id": [1, "2"]}"#, "eos_token_id"),
            (r#"{"eos_token_id": 4294967296}"#, "eos_token_id"),
        ] {
            let reason = parse(json).unwrap_err();
            assert!(reason.contains(field), "{json}: {reason}");
        }
        assert!(parse("[]").is_err());
        assert!(parse("{").is_err());
    }
}
