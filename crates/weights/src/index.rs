//! `model.safetensors.index.json`: which file each tensor lies in, checked against the files' headers.

use crate::error::shown;
use crate::header::TensorEntry;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// File name of each tensor.
pub(crate) type WeightMap = BTreeMap<String, String>;

/// Reads the text of an index; the error is a sentence about the file.
pub(crate) fn parse(text: &str) -> Result<WeightMap, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let readable = |e: serde_json::Error| shown(&e.to_string()).into_owned();
    let map = json.deserialize_map(TopVisitor).map_err(readable)?;
    json.end().map_err(readable)?;
    let map = map.ok_or("it has no \"weight_map\"")?;
    if map.is_empty() { Err("its \"weight_map\" is empty".to_owned()) } else { Ok(map) }
}

/// The files that the map names, sorted, each once.
pub(crate) fn files(map: &WeightMap) -> Vec<String> {
    let mut files: Vec<String> = map.values().cloned().collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// Checks that the map and the header of `file` list the same tensors for it.
pub(crate) fn agree(map: &WeightMap, file: &str, tensors: &[TensorEntry]) -> Result<(), String> {
    for tensor in tensors {
        match map.get(&tensor.name) {
            Some(listed) if listed == file => {}
            Some(listed) => {
                return Err(format!(
                    "it lists tensor \"{}\" in {}, but {file} holds one too",
                    shown(&tensor.name),
                    shown(listed)
                ));
            }
            None => {
                return Err(format!(
                    "it does not list tensor \"{}\", which {file} holds",
                    shown(&tensor.name)
                ));
            }
        }
    }
    let listed = map.values().filter(|listed| *listed == file).count();
    if listed == tensors.len() {
        return Ok(());
    }
    let held: std::collections::HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let missing = map
        .iter()
        .find(|(name, listed)| *listed == file && !held.contains(name.as_str()))
        .map_or("", |(name, _)| name.as_str());
    Err(format!("it lists tensor \"{}\" in {file}, which does not hold it", shown(missing)))
}

/// The index: an object with a `weight_map` and anything else.
struct TopVisitor;

impl<'de> Visitor<'de> for TopVisitor {
    type Value = Option<WeightMap>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut result = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if result.replace(map.next_value_seed(WeightMapSeed)?).is_some() {
                return Err(A::Error::custom("\"weight_map\" occurs twice"));
            }
        }
        Ok(result)
    }
}

/// An object from tensor to file, refusing a tensor that occurs twice.
struct WeightMapSeed;

impl<'de> DeserializeSeed<'de> for WeightMapSeed {
    type Value = WeightMap;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WeightMap, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to file names in \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut result = WeightMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            let name = shown(&tensor).into_owned();
            if result.insert(tensor, file).is_some() {
                return Err(A::Error::custom(format_args!("tensor \"{name}\" occurs twice")));
            }
        }
        Ok(result)
    }
}
