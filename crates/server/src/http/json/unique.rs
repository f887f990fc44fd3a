//! A walk over JSON that finds keys that an object repeats.
//!
//! Parsers differ in which of two equal keys they keep, so what a proxy has checked and what the server does
//! may differ; `serde` itself refuses repeated fields of structs, not of maps.

use super::{VALUE_LENGTH_MAX, visible};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Write as _};

/// Walks all of `text`, one JSON value.
///
/// # Errors
///
/// What is wrong with it, with the path of the value that is at fault.
pub(super) fn check(text: &str) -> Result<(), (String, serde_json::Error)> {
    let mut path = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let walked = Walk { path: &mut path }.deserialize(&mut deserializer);
    walked.and_then(|()| deserializer.end()).map_err(|error| (join(&path), error))
}

/// Appends a key to a path. Keys are the client's text.
pub(super) fn push_key(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(&visible(key, VALUE_LENGTH_MAX));
}

enum Step<'de> {
    Key(Cow<'de, str>),
    Index(usize),
}

fn join(steps: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Key(key) => push_key(&mut path, key),
            Step::Index(index) => {
                // A `String` can always be written to.
                let _ = write!(path, "[{index}]");
            }
        }
    }
    path
}

/// Walks a value; on an error `path` stays where it is.
struct Walk<'a, 'de> {
    path: &'a mut Vec<Step<'de>>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            self.path.push(Step::Index(index));
            if items.next_element_seed(Walk { path: self.path })?.is_none() {
                break;
            }
            self.path.pop();
        }
        self.path.pop();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut keys: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(key) = entries.next_key_seed(Key)? {
            self.path.push(Step::Key(key.clone()));
            if !keys.insert(key) {
                return Err(A::Error::custom("the key is there twice"));
            }
            entries.next_value_seed(Walk { path: self.path })?;
            self.path.pop();
        }
        Ok(())
    }
}

/// A key, borrowed where it has no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }
}
