//! A model's cache geometry from the metadata of its GGUF file.
//!
//! Only the header is read. Strings and arrays are bounds-checked against the bytes there are before anything is kept,
//! since general readers allocate what a file announces. The format is llama.cpp's `ggml/include/gguf.h`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Read};

use super::{Geometry, HeadSizes, LayerWidths, TensorType};

/// The most bytes of a key, as the format says.
const MAX_KEY_BYTES: u64 = 65535;
/// The most bytes of a string. The longest there are, chat templates, have some 10 KiB.
const MAX_TEXT_BYTES: u64 = 16 << 20;
/// The most elements of an array. The longest there are, vocabularies, have some 10^5.
const MAX_ARRAY_LENGTH: u64 = 1 << 24;

/// A metadata value; arrays of other things than integers are walked and dropped.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// Any unsigned or signed integer, or a bool as 0 or 1.
    Integer(i128),
    /// A float.
    Float(f64),
    /// A string.
    Text(String),
    /// An array of integers, at most 4096 of them.
    Integers(Vec<i128>),
    /// An array that was not kept: its length.
    Skipped(u64),
}

/// Why a GGUF file, or the geometry in it, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not "GGUF".
    #[error("not a GGUF file: it starts with {found:02x?} instead of the letters GGUF")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A version this reader does not know.
    #[error("GGUF version {version} is not supported; convert the model to version 2 or 3, little-endian")]
    Version {
        /// The file's version.
        version: u32,
    },
    /// The file ends inside its header.
    #[error("the GGUF file ends inside {field}; download or copy it again")]
    CutOff {
        /// What was being read.
        field: String,
    },
    /// A key, a string or an array that no model has.
    #[error(
        "the GGUF file announces {length} {unit} for {field}, but at most {limit} are read; download or copy it again"
    )]
    TooLong {
        /// What was being read.
        field: String,
        /// The length announced.
        length: u64,
        /// "bytes" or "elements".
        unit: &'static str,
        /// The most that is read.
        limit: u64,
    },
    /// The file could not be read.
    #[error("reading {field} of the GGUF file failed: {source}")]
    Read {
        /// What was being read.
        field: String,
        /// What the system said.
        source: io::Error,
    },
    /// A metadata type number outside the format.
    #[error("GGUF metadata {key:?} has the unknown type {number}")]
    UnknownType {
        /// The key.
        key: String,
        /// The type number.
        number: u32,
    },
    /// A key that comes twice.
    #[error("GGUF metadata {key:?} comes twice")]
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// A string that is not UTF-8.
    #[error("GGUF metadata has a string in {field} that is not UTF-8")]
    NotUtf8 {
        /// Where.
        field: String,
    },
    /// A key that the geometry needs.
    #[error("the GGUF file does not say {key:?}, which the cache's shape depends on")]
    Missing {
        /// The key.
        key: String,
    },
    /// A value that the geometry cannot have.
    #[error("GGUF metadata {key:?} is {value}; {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value found.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A model whose cache is not a plain list of K and V.
    #[error("the model's cache is no plain K/V cache ({key:?} is set); give its geometry by numbers instead")]
    NotPlain {
        /// The key that says so.
        key: String,
    },
}

/// The metadata of a GGUF file.
#[derive(Clone, Debug, Default)]
pub struct GgufMetadata {
    values: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    /// Reads the metadata at the start of `file`, and nothing after it.
    ///
    /// # Errors
    /// Anything that is not the header of a little-endian GGUF file of version 2 or 3.
    pub fn read(file: impl Read) -> Result<Self, GgufError> {
        let mut reader = Reader { file };
        let magic = reader.up_to(4, "its magic number")?;
        if magic != b"GGUF" {
            return Err(GgufError::Magic { found: magic });
        }
        let version = reader.u32("its version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { version });
        }
        reader.u64("its tensor count")?;
        let mut metadata = Self::default();
        for _ in 0..reader.u64("its metadata count")? {
            let key = reader.text("a metadata key", MAX_KEY_BYTES)?;
            // What an error message can bear of a key.
            let shown: String = key.chars().take(64).collect();
            let kind = reader.u32(&shown)?;
            let value = reader.value(kind, &shown)?;
            match metadata.values.entry(key) {
                Entry::Occupied(_) => return Err(GgufError::RepeatedKey { key: shown }),
                Entry::Vacant(entry) => entry.insert(value),
            };
        }
        Ok(metadata)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    /// The model's name (`general.name`).
    pub fn model_name(&self) -> Option<&str> {
        match self.get("general.name") {
            Some(GgufValue::Text(name)) => Some(name),
            _ => None,
        }
    }

    /// The cache's geometry for `cells` positions in one stream.
    ///
    /// Head counts follow llama.cpp (`llama_model::load_hparams`): `head_count_kv` defaults to `head_count`; a layer with
    /// 0 KV heads has no cache.
    ///
    /// # Errors
    /// A missing or impossible value, or a model with a recurrent state, a compressed (MLA) cache, or a sliding window
    /// in a family that gives it a cache of its own.
    pub fn geometry(&self, cells: u64, type_k: TensorType, type_v: TensorType) -> Result<Geometry, GgufError> {
        let architecture = self.architecture()?;
        self.check_plain(architecture)?;
        let given = self.get(&format!("{architecture}.attention.head_count_kv")).is_some();
        let kv_heads = if given { "attention.head_count_kv" } else { "attention.head_count" };
        let kv_heads = self.per_layer(architecture, kv_heads)?;
        let sizes = self.head_sizes()?;
        let width = |heads: u32, size: u32| u64::from(heads) * u64::from(size);
        let widths = (0..).zip(kv_heads).filter(|(_, heads)| *heads > 0);
        Ok(Geometry {
            layers: widths
                .map(|(layer, heads)| LayerWidths { layer, k: width(heads, sizes.k), v: width(heads, sizes.v) })
                .collect(),
            type_v,
            ..Geometry::uniform(0, 0, 0, cells, type_k)
        })
    }

    /// The sizes of one head: those that the metadata has, else `embedding_length / head_count`, the most heads where
    /// layers differ.
    ///
    /// # Errors
    /// A missing or impossible value.
    pub fn head_sizes(&self) -> Result<HeadSizes, GgufError> {
        let architecture = self.architecture()?;
        let size = |name: &str| {
            let key = format!("{architecture}.{name}");
            if self.get(&key).is_some() {
                return self.positive(&key, 1 << 20);
            }
            let most_heads = self.per_layer(architecture, "attention.head_count")?.into_iter().max().unwrap_or(0);
            let embedding = self.positive(&format!("{architecture}.embedding_length"), u32::MAX)?;
            embedding.checked_div(most_heads).ok_or(GgufError::Missing { key })
        };
        Ok(HeadSizes { k: size("attention.key_length")?, v: size("attention.value_length")? })
    }

    fn architecture(&self) -> Result<&str, GgufError> {
        match self.get("general.architecture") {
            Some(GgufValue::Text(architecture)) => Ok(architecture),
            _ => Err(GgufError::Missing { key: "general.architecture".to_owned() }),
        }
    }

    fn check_plain(&self, architecture: &str) -> Result<(), GgufError> {
        let mut special = vec!["ssm.state_size", "attention.kv_lora_rank", "wkv.head_size"];
        // These carry the key for a window that llama.cpp does not give a cache of its own.
        if !["llama", "qwen2", "qwen3"].contains(&architecture) {
            special.push("attention.sliding_window");
        }
        match special.into_iter().map(|name| format!("{architecture}.{name}")).find(|key| self.get(key).is_some()) {
            Some(key) => Err(GgufError::NotPlain { key }),
            None => Ok(()),
        }
    }

    fn positive(&self, key: &str, limit: u32) -> Result<u32, GgufError> {
        match self.get(key) {
            Some(GgufValue::Integer(value)) => match u32::try_from(*value) {
                Ok(number) if (1..=limit).contains(&number) => Ok(number),
                _ => Err(impossible(key, value, "it must be a positive number of a sensible size")),
            },
            Some(other) => Err(impossible(key, &format!("{other:?}"), "it must be a whole number")),
            None => Err(GgufError::Missing { key: key.to_owned() }),
        }
    }

    /// A number for each layer: an array of them, or one for all.
    fn per_layer(&self, architecture: &str, name: &str) -> Result<Vec<u32>, GgufError> {
        let key = &format!("{architecture}.{name}");
        let layers = self.positive(&format!("{architecture}.block_count"), 1 << 16)? as usize;
        let Some(GgufValue::Integers(values)) = self.get(key) else {
            return Ok(vec![self.positive(key, 1 << 16)?; layers]);
        };
        if values.len() != layers {
            return Err(impossible(key, &format!("an array of {}", values.len()), "it must have one number a layer"));
        }
        let checked = |value: &i128| u32::try_from(*value).ok().filter(|number| *number <= 1 << 16);
        let expected = "each must be between 0 and 65536";
        values.iter().map(|value| checked(value).ok_or_else(|| impossible(key, value, expected))).collect()
    }
}

fn impossible(key: &str, value: &impl ToString, expected: &'static str) -> GgufError {
    GgufError::Value { key: key.to_owned(), value: value.to_string().chars().take(64).collect(), expected }
}

/// A file whose announced lengths are not believed.
struct Reader<R> {
    file: R,
}

impl<R: Read> Reader<R> {
    /// The next bytes, at most `count`. Memory grows as they arrive, not by what was announced.
    fn up_to(&mut self, count: u64, field: &str) -> Result<Vec<u8>, GgufError> {
        let mut bytes = Vec::new();
        let read = self.file.by_ref().take(count).read_to_end(&mut bytes);
        read.map(|_| bytes).map_err(|source| GgufError::Read { field: field.to_owned(), source })
    }

    fn take(&mut self, count: u64, field: &str) -> Result<Vec<u8>, GgufError> {
        let bytes = self.up_to(count, field)?;
        if bytes.len() as u64 == count { Ok(bytes) } else { Err(GgufError::CutOff { field: field.to_owned() }) }
    }

    fn skip(&mut self, count: u64, field: &str) -> Result<(), GgufError> {
        match io::copy(&mut self.file.by_ref().take(count), &mut io::sink()) {
            Ok(skipped) if skipped == count => Ok(()),
            Ok(_) => Err(GgufError::CutOff { field: field.to_owned() }),
            Err(source) => Err(GgufError::Read { field: field.to_owned(), source }),
        }
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        self.file.read_exact(&mut array).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::CutOff { field: field.to_owned() },
            _ => GgufError::Read { field: field.to_owned(), source },
        })?;
        Ok(array)
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A length that is at most `limit`.
    fn length(&mut self, field: &str, unit: &'static str, limit: u64) -> Result<u64, GgufError> {
        match self.u64(field)? {
            length if length <= limit => Ok(length),
            length => Err(GgufError::TooLong { field: field.to_owned(), length, unit, limit }),
        }
    }

    fn text(&mut self, field: &str, limit: u64) -> Result<String, GgufError> {
        let length = self.length(field, "bytes", limit)?;
        String::from_utf8(self.take(length, field)?).map_err(|_| GgufError::NotUtf8 { field: field.to_owned() })
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<GgufValue, GgufError> {
        Ok(match kind {
            6 => GgufValue::Float(f32::from_le_bytes(self.array(key)?).into()),
            8 => GgufValue::Text(self.text(key, MAX_TEXT_BYTES)?),
            9 => self.array_value(key)?,
            12 => GgufValue::Float(f64::from_le_bytes(self.array(key)?)),
            _ => GgufValue::Integer(self.integer(kind, key)?),
        })
    }

    fn integer(&mut self, kind: u32, key: &str) -> Result<i128, GgufError> {
        Ok(match kind {
            0 | 7 => u8::from_le_bytes(self.array(key)?).into(),
            1 => i8::from_le_bytes(self.array(key)?).into(),
            2 => u16::from_le_bytes(self.array(key)?).into(),
            3 => i16::from_le_bytes(self.array(key)?).into(),
            4 => self.u32(key)?.into(),
            5 => i32::from_le_bytes(self.array(key)?).into(),
            10 => self.u64(key)?.into(),
            11 => i64::from_le_bytes(self.array(key)?).into(),
            number => return Err(GgufError::UnknownType { key: key.to_owned(), number }),
        })
    }

    fn array_value(&mut self, key: &str) -> Result<GgufValue, GgufError> {
        let (kind, count) = (self.u32(key)?, self.length(key, "elements", MAX_ARRAY_LENGTH)?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => {
                for _ in 0..count {
                    let length = self.length(key, "bytes", MAX_TEXT_BYTES)?;
                    self.skip(length, key)?;
                }
                return Ok(GgufValue::Skipped(count));
            }
            10..=12 => 8,
            // Arrays of arrays stand in the format's description; no model has one.
            number => return Err(GgufError::UnknownType { key: key.to_owned(), number }),
        };
        let small_integers = count <= 4096 && ![6, 12].contains(&kind);
        if small_integers {
            return Ok(GgufValue::Integers((0..count).map(|_| self.integer(kind, key)).collect::<Result<_, _>>()?));
        }
        self.skip(count * size, key)?;
        Ok(GgufValue::Skipped(count))
    }
}
