//! Reading typed fields from a JSON object, with the field's path in every error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

use super::HeaderError;
use super::strict_json::Json;
use crate::layout::TensorType;

/// Where a JSON object stands in the header. Put into words only for an error.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The header itself.
    Top,
    /// A field of the header.
    Field(&'static str),
    /// An element of a list in the header.
    Element(&'static str, usize),
}

impl Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => formatter.write_str("(the whole header)"),
            Self::Field(name) => formatter.write_str(name),
            Self::Element(list, index) => write!(formatter, "{list}[{index}]"),
        }
    }
}

/// A JSON object and where it stands.
pub(super) struct Fields<'a> {
    place: Place,
    object: &'a BTreeMap<Cow<'a, str>, Json<'a>>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(place: Place, value: &'a Json<'a>) -> Result<Self, HeaderError> {
        match value {
            Json::Object(object) => Ok(Self { place, object }),
            _ => Err(wrong(place.to_string(), value, "an object")),
        }
    }

    pub(super) fn path(&self, name: impl Display) -> String {
        match self.place {
            Place::Top => name.to_string(),
            place => format!("{place}.{name}"),
        }
    }

    /// The field, if it is there and not null.
    pub(super) fn optional(&self, name: &str) -> Option<&'a Json<'a>> {
        self.object.get(name).filter(|value| !matches!(value, Json::Null))
    }

    fn required(&self, name: &str) -> Result<&'a Json<'a>, HeaderError> {
        self.optional(name).ok_or_else(|| HeaderError::Missing { field: self.path(name) })
    }

    fn wrong(&self, name: &str, value: &Json<'_>, expected: &'static str) -> HeaderError {
        wrong(self.path(name), value, expected)
    }

    pub(super) fn u64(&self, name: &str) -> Result<u64, HeaderError> {
        let value = self.required(name)?;
        value.as_u64().ok_or_else(|| self.wrong(name, value, "a whole number from 0 to 2^64 - 1"))
    }

    pub(super) fn u32(&self, name: &str) -> Result<u32, HeaderError> {
        let value = self.required(name)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| self.wrong(name, value, "a whole number from 0 to 2^32 - 1"))
    }

    /// An index into one of the header's own lists.
    pub(super) fn index(&self, name: &str) -> Result<usize, HeaderError> {
        self.u32(name).map(|number| number as usize)
    }

    /// A 64-bit number that may also be a string, decimal or `0x…`, since some JSON writers round large integers.
    pub(super) fn u64_or_text(&self, name: &str) -> Result<u64, HeaderError> {
        let value = self.required(name)?;
        let number = match value {
            Json::Text(text) => match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(hex) if hex.bytes().all(|digit| digit.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok(),
                Some(_) => None,
                None if text.bytes().all(|digit| digit.is_ascii_digit()) => text.parse().ok(),
                None => None,
            },
            other => other.as_u64(),
        };
        let expected = "a whole number from 0 to 2^64 - 1, or one as a string (decimal or 0x…)";
        number.ok_or_else(|| self.wrong(name, value, expected))
    }

    pub(super) fn bool(&self, name: &str) -> Result<bool, HeaderError> {
        let value = self.required(name)?;
        match value {
            Json::Bool(value) => Ok(*value),
            other => Err(self.wrong(name, other, "true or false")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, HeaderError> {
        let value = self.required(name)?;
        match value {
            Json::Text(text) => Ok(text),
            other => Err(self.wrong(name, other, "a string")),
        }
    }

    pub(super) fn array(&self, name: &str) -> Result<&'a [Json<'a>], HeaderError> {
        let value = self.required(name)?;
        match value {
            Json::Array(items) => Ok(items),
            other => Err(self.wrong(name, other, "a list")),
        }
    }

    pub(super) fn tensor_type(&self, name: &str) -> Result<TensorType, HeaderError> {
        let text = self.text(name)?;
        text.parse().map_err(|_| HeaderError::UnknownType { field: self.path(name), value: shortened(text) })
    }
}

pub(super) fn wrong(field: impl Into<String>, value: impl Display, expected: &'static str) -> HeaderError {
    HeaderError::WrongValue { field: field.into(), value: shortened(&value.to_string()), expected }
}

/// Outside text as an error message can bear it.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
