//! JSON as a header may use it: no repeated key, no deep nesting.
//!
//! serde_json keeps the last of two equal keys and nests to 128; two readers of one header would then disagree. What is
//! read borrows from the text, since a header's hundreds of keys and names need no copies.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::fields::shortened;
use super::{HeaderError, MAX_DEPTH};

/// A JSON value, which borrows from its text.
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(BTreeMap<Cow<'a, str>, Json<'a>>),
}

impl Json<'_> {
    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::from(self).fmt(formatter)
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(value) => Self::Number(value.clone()),
            Json::Text(value) => Self::from(value.as_ref()),
            Json::Array(items) => items.iter().map(Self::from).collect(),
            Json::Object(entries) => entries.iter().map(|(key, value)| (key.to_string(), Self::from(value))).collect(),
        }
    }
}

/// Reads one JSON value that fills `text`.
pub(super) fn parse(text: &str) -> Result<Json<'_>, HeaderError> {
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
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Json<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        // JSON has neither infinities nor NaN, so there is always a number.
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut object = BTreeMap::new();
        while let Some(Key(key)) = entries.next_key()? {
            match object.entry(key) {
                Entry::Vacant(entry) => drop(entry.insert(entries.next_value_seed(inner)?)),
                Entry::Occupied(entry) => {
                    return Err(self.refuse(HeaderError::RepeatedKey { key: shortened(entry.key()) }));
                }
            }
        }
        Ok(Json::Object(object))
    }
}

/// A key, which borrows from the text where it has no escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
