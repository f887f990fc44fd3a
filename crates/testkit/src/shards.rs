//! The demo checkpoint's weights in other files: several, or with their data at other offsets.

use crate::places;
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Writes the demo's weights and its configuration to a folder: one file for each of `starts`, in which tensors follow one
/// another as in the demo's, the first from an offset on that leaves this remainder when divided by 64.
///
/// # Panics
/// If the demo cannot be read or the folder not written.
pub fn write_demo(dir: &Path, starts: &[usize]) {
    let file = fs::read(places::demo().join("model.safetensors")).expect("the demo's weights");
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let (header, data) = file[8..].split_at(header_len);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let mut tensors: Vec<(&String, &Value, Range<usize>)> = header
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, value)| {
            let at = |i: usize| value["data_offsets"][i].as_u64().expect("an offset") as usize;
            (name, value, at(0)..at(1))
        })
        .collect();
    tensors.sort_by_key(|(.., range)| range.start);
    let mut weight_map = Map::new();
    let per_file = tensors.len().div_ceil(starts.len());
    for (i, (tensors, start)) in tensors.chunks(per_file).zip(starts).enumerate() {
        let name = match starts.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let (mut entries, mut bytes) = (Map::new(), vec![]);
        for (tensor, value, range) in tensors {
            let begin = bytes.len();
            bytes.extend_from_slice(&data[range.clone()]);
            let mut entry = (*value).clone();
            entry["data_offsets"] = json!([begin, bytes.len()]);
            entries.insert((*tensor).clone(), entry);
            weight_map.insert((*tensor).clone(), json!(name));
        }
        let mut header = Value::Object(entries).to_string();
        while (8 + header.len()) % 64 != *start {
            header.push(' ');
        }
        let len = (header.len() as u64).to_le_bytes();
        let file = [&len[..], header.as_bytes(), &bytes].concat();
        fs::write(dir.join(name), file).expect("room for the weights");
    }
    if starts.len() > 1 {
        let index = json!({"metadata": {}, "weight_map": weight_map});
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).expect("an index");
    }
    fs::copy(places::demo().join("config.json"), dir.join("config.json")).expect("a configuration");
}
