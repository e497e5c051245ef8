//! JSON as a header may use it: no repeated key, no deep nesting.
//!
//! serde_json keeps the last of two equal keys and nests to 128; two readers of one header would then disagree.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::fields::shortened;
use super::{HeaderError, MAX_DEPTH};

/// Reads one JSON value that fills `text`.
pub(super) fn parse(text: &str) -> Result<Value, HeaderError> {
    let refusal = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0, refusal: &refusal }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| refusal.take().unwrap_or_else(|| HeaderError::NotJson { problem: error.to_string() }))
}

/// Builds a value `depth` levels down. serde's errors are text, so the typed one is left in `refusal`.
#[derive(Clone, Copy)]
struct Strict<'a> {
    depth: u32,
    refusal: &'a RefCell<Option<HeaderError>>,
}

impl Strict<'_> {
    fn refuse<E: Error>(self, why: HeaderError) -> E {
        self.refusal.replace(Some(why));
        E::custom("refused")
    }

    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(self.refuse(HeaderError::TooDeep { limit: MAX_DEPTH }));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            match object.entry(key) {
                Entry::Vacant(entry) => drop(entry.insert(entries.next_value_seed(inner)?)),
                Entry::Occupied(entry) => {
                    return Err(self.refuse(HeaderError::RepeatedKey { key: shortened(entry.key()) }));
                }
            }
        }
        Ok(Value::Object(object))
    }
}
