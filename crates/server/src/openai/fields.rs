//! Fields that several requests have, with forms that clients vary.

use crate::error::ApiError;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use utoipa::ToSchema;

/// One string or a list of them.
#[derive(Clone, Debug, Default, PartialEq, ToSchema)]
#[schema(value_type = Option<Object>)]
pub(crate) struct Strings(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E>(self, text: &str) -> Result<Strings, E> {
                Ok(Strings(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Strings, A::Error> {
                let mut strings = vec![];
                while let Some(text) = list.next_element()? {
                    strings.push(text);
                }
                Ok(Strings(strings))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// `logit_bias`: token ids, which JSON writes as strings, to biases.
#[derive(Clone, Debug, Default, PartialEq, ToSchema)]
#[schema(value_type = Option<BTreeMap<String, f32>>)]
pub(crate) struct LogitBias(pub(crate) BTreeMap<u32, f32>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = LogitBias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids and biases")
            }

            // An empty list is what some clients write for none.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LogitBias, A::Error> {
                match list.next_element::<IgnoredAny>()? {
                    None => Ok(LogitBias::default()),
                    Some(_) => Err(A::Error::custom("a list: expected an object")),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = BTreeMap::new();
                while let Some((key, bias)) = map.next_entry::<String, f32>()? {
                    let token = key.parse().map_err(|_| {
                        let key: String = key.chars().take(80).collect();
                        A::Error::custom(format!("{key:?} is not a token id"))
                    })?;
                    biases.insert(token, bias);
                }
                Ok(LogitBias(biases))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// The seed that a request names; -1 is none, as for llama.cpp.
pub(crate) fn seed(seed: Option<i64>) -> Result<Option<u64>, ApiError> {
    match seed {
        None | Some(-1) => Ok(None),
        Some(seed) => u64::try_from(seed).map(Some).map_err(|_| {
            let message =
                format!("seed must be from 0 to {}, or -1 for none, but is {seed}", i64::MAX);
            ApiError::invalid("seed", message)
        }),
    }
}

/// A number of tokens that has to be one at least.
pub(crate) fn at_least_one(
    name: &'static str,
    value: Option<u64>,
) -> Result<Option<usize>, ApiError> {
    match value {
        Some(0) => Err(ApiError::invalid(name, format!("{name} must be at least 1 but is 0"))),
        value => Ok(value.map(clamped)),
    }
}

/// A count, as large as one can be here.
pub(crate) fn clamped(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_strings_and_biases() {
        let strings = |json: &str| serde_json::from_str::<Strings>(json).map(|list| list.0);
        assert_eq!(strings(r#""a""#).unwrap(), ["a"]);
        assert_eq!(strings(r#"["a", "b"]"#).unwrap(), ["a", "b"]);
        assert!(strings("3").unwrap_err().to_string().contains("a string or a list of strings"));
        assert!(strings("[3]").is_err());

        let bias = |json: &str| serde_json::from_str::<LogitBias>(json).map(|bias| bias.0);
        assert_eq!(bias(r#"{"7": -100, "8": 1.5}"#).unwrap(), [(7, -100.0), (8, 1.5)].into());
        assert_eq!(bias("[]").unwrap(), BTreeMap::new());
        for bad in [r#"{"x": 1}"#, r#"{"-1": 1}"#, r#"{"1": "a"}"#, "[1]", "3"] {
            assert!(bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn seeds_out_of_range_are_refused_with_the_bound() {
        assert_eq!(seed(Some(7)).unwrap(), Some(7));
        assert_eq!(seed(Some(-1)).unwrap(), None);
        let error = seed(Some(-2)).unwrap_err();
        assert!(error.message.contains("but is -2"), "{error}");
        assert_eq!(error.param.as_deref(), Some("seed"));
    }
}
