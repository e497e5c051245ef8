//! Walks a GGUF's structure and refuses what is malformed, before candle's reader and the tensor loader believe it.
//!
//! Every announced count and length is compared with the bytes that are left, and every tensor must lie inside the
//! file. Nothing is allocated but names, and those are at most 64 KiB each. What the metadata *means* is not looked at.
//!
//! The format: [gguf.md](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

/// Why bytes are not a GGUF that can be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MalformedGguf {
    /// The operating system failed to read.
    #[error("the GGUF could not be read: {0}")]
    Read(#[from] io::Error),
    /// The magic bytes are others.
    #[error(
        "this is not a GGUF: it starts with the bytes {found:02x?} and not with \"GGUF\"; give a model in GGUF format"
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The version is neither 2 nor 3 (a big-endian file shows up here too).
    #[error(
        "GGUF version {version} is not supported, only 2 and 3 are; convert the model again with a current llama.cpp"
    )]
    Version {
        /// The version that the file names.
        version: u32,
    },
    /// The file ends before something that it announces.
    #[error("the GGUF is cut off or damaged: {what} needs {needed} bytes and {left} are left; fetch the file again")]
    CutOff {
        /// What was being read.
        what: String,
        /// How many bytes it needs at the least.
        needed: u64,
        /// How many bytes are left.
        left: u64,
    },
    /// A key or a tensor's name is longer than the format allows.
    #[error("a {what} of {length} bytes is over the format's {limit}; the GGUF is damaged: fetch the file again")]
    NameTooLong {
        /// `"metadata key"` or `"tensor name"`.
        what: &'static str,
        /// Its length in bytes.
        length: u64,
        /// The longest that the format allows, in bytes.
        limit: u64,
    },
    /// Two metadata entries, or two tensors, have one name.
    #[error("the {what} \"{name}\" occurs twice in the GGUF; convert the model again")]
    Repeated {
        /// `"metadata key"` or `"tensor name"`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A metadata value is of a type that the format does not have.
    #[error("the metadata entry \"{key}\" has the value type {number}; the format has 0 to 12: fetch the file again")]
    ValueType {
        /// The entry's key.
        key: String,
        /// The type's number.
        number: u32,
    },
    /// A metadata value is an array of arrays, which llama.cpp refuses too.
    #[error("the metadata entry \"{key}\" is an array of arrays, which is not supported; convert the model again")]
    NestedArray {
        /// The entry's key.
        key: String,
    },
    /// The tensors' alignment is not a power of two.
    #[error("general.alignment must be a power of two stored as a 32-bit number; convert the model again")]
    Alignment,
    /// A tensor has more dimensions than ggml knows.
    #[error("the tensor \"{tensor}\" has {count} dimensions; ggml has at most 4: fetch the file again")]
    Dimensions {
        /// The tensor's name.
        tensor: String,
        /// How many dimensions it announces.
        count: u32,
    },
    /// A tensor is of a type that cannot be turned into f32 here.
    #[error(
        "the tensor \"{tensor}\" has the ggml type {number}, which cannot be read; use f32, f16, bf16, a Q*_0, Q*_1 or Q*_K"
    )]
    TensorType {
        /// The tensor's name.
        tensor: String,
        /// ggml's number of the type.
        number: u32,
    },
    /// A tensor's size overflows, or its rows do not consist of whole blocks.
    #[error("the tensor \"{tensor}\" has the impossible shape {shape:?} for its type; fetch the file again")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Its dimensions, innermost first.
        shape: Vec<u64>,
    },
}

/// The longest metadata key, in bytes (gguf.md: "up to 2^16-1 bytes long").
const LONGEST_KEY: u64 = 65535;
/// The longest tensor name, in bytes (gguf.md: "at most 64 bytes long").
const LONGEST_TENSOR_NAME: u64 = 64;
/// The alignment of tensor data when `general.alignment` is absent (`GGUF_DEFAULT_ALIGNMENT` in ggml/include/gguf.h).
const DEFAULT_ALIGNMENT: u64 = 32;

/// The types that candle turns into f32: ggml's number, values in a block, bytes in a block (`type_traits` in
/// ggml/src/ggml.c).
const READABLE_TYPES: [(u32, u64, u64); 14] = [
    (0, 1, 4),      // f32
    (1, 1, 2),      // f16
    (30, 1, 2),     // bf16
    (2, 32, 18),    // q4_0
    (3, 32, 20),    // q4_1
    (6, 32, 22),    // q5_0
    (7, 32, 24),    // q5_1
    (8, 32, 34),    // q8_0
    (10, 256, 84),  // q2_K
    (11, 256, 110), // q3_K
    (12, 256, 144), // q4_K
    (13, 256, 176), // q5_K
    (14, 256, 210), // q6_K
    (15, 256, 292), // q8_K
];

/// Walks the GGUF from its first byte and leaves the reader there again.
///
/// # Errors
///
/// The first thing that is wrong, by name.
pub fn check(reader: &mut (impl Read + Seek)) -> Result<(), MalformedGguf> {
    let size = reader.seek(SeekFrom::End(0))?;
    reader.seek(SeekFrom::Start(0))?;
    Walk { reader: &mut *reader, left: size }.gguf(size)?;
    reader.seek(SeekFrom::Start(0))?;
    Ok(())
}

/// A reader that knows how many bytes are left.
struct Walk<'r, R> {
    reader: &'r mut R,
    left: u64,
}

impl<R: Read + Seek> Walk<'_, R> {
    fn gguf(&mut self, size: u64) -> Result<(), MalformedGguf> {
        let found = self.bytes("the magic")?;
        if found != *b"GGUF" {
            return Err(MalformedGguf::Magic { found });
        }
        let version = self.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(MalformedGguf::Version { version });
        }
        let tensors = self.u64("the number of tensors")?;
        let entries = self.u64("the number of metadata entries")?;

        // The smallest entry: an empty key, a type, one byte. The smallest tensor: no name, no dimension.
        self.need(&format!("a table of {entries} metadata entries"), entries.saturating_mul(8 + 4 + 1))?;
        let alignment = self.metadata(entries)?;
        self.need(&format!("a table of {tensors} tensors"), tensors.saturating_mul(8 + 4 + 4 + 8))?;
        let ends = self.tensor_table(tensors)?;

        let data_start = (size - self.left).next_multiple_of(alignment);
        let data_size = size.saturating_sub(data_start);
        for (tensor, end) in ends {
            if end > data_size {
                let what = format!("the tensor data up to the end of \"{tensor}\"");
                return Err(MalformedGguf::CutOff { what, needed: end, left: data_size });
            }
        }
        Ok(())
    }

    /// Walks the metadata; answers the alignment of the tensor data.
    fn metadata(&mut self, entries: u64) -> Result<u64, MalformedGguf> {
        let mut keys = HashSet::new();
        let mut alignment = DEFAULT_ALIGNMENT;
        for _ in 0..entries {
            let key = self.name("metadata key", LONGEST_KEY)?;
            let kind = self.u32(&format!("the type of \"{key}\""))?;
            if key == "general.alignment" {
                const U32: u32 = 4;
                if kind != U32 {
                    return Err(MalformedGguf::Alignment);
                }
                alignment = u64::from(self.u32(&key)?);
                if !alignment.is_power_of_two() {
                    return Err(MalformedGguf::Alignment);
                }
            } else {
                self.skip_value(&key, kind)?;
            }
            if let Some(name) = keys.replace(key) {
                return Err(MalformedGguf::Repeated { what: "metadata key", name });
            }
        }
        Ok(alignment)
    }

    fn skip_value(&mut self, key: &str, kind: u32) -> Result<(), MalformedGguf> {
        const STRING: u32 = 8;
        const ARRAY: u32 = 9;
        match kind {
            STRING => self.skip_text(key),
            ARRAY => {
                let of = self.u32(key)?;
                let count = self.u64(key)?;
                match of {
                    ARRAY => Err(MalformedGguf::NestedArray { key: key.to_owned() }),
                    STRING => {
                        self.need(key, count.saturating_mul(8))?;
                        (0..count).try_for_each(|_| self.skip_text(key))
                    }
                    _ => self.skip(key, count.saturating_mul(size_of_scalar(key, of)?)),
                }
            }
            _ => self.skip(key, size_of_scalar(key, kind)?),
        }
    }

    /// Walks the table of tensors; answers each one's name and the offset of its end in the tensor data.
    fn tensor_table(&mut self, tensors: u64) -> Result<Vec<(String, u64)>, MalformedGguf> {
        let mut names = HashSet::new();
        let mut ends = Vec::new();
        for _ in 0..tensors {
            let tensor = self.name("tensor name", LONGEST_TENSOR_NAME)?;
            let count = self.u32(&format!("the shape of \"{tensor}\""))?;
            if count > 4 {
                return Err(MalformedGguf::Dimensions { tensor, count });
            }
            let what = format!("the description of \"{tensor}\"");
            let shape = (0..count).map(|_| self.u64(&what)).collect::<Result<Vec<u64>, _>>()?;
            let number = self.u32(&what)?;
            let offset = self.u64(&what)?;

            let Some(&(_, values, bytes)) = READABLE_TYPES.iter().find(|(readable, ..)| *readable == number) else {
                return Err(MalformedGguf::TensorType { tensor, number });
            };
            let Some(end) = tensor_bytes(&shape, values, bytes).and_then(|size| offset.checked_add(size)) else {
                return Err(MalformedGguf::Shape { tensor, shape });
            };
            if !names.insert(tensor.clone()) {
                return Err(MalformedGguf::Repeated { what: "tensor name", name: tensor });
            }
            ends.push((tensor, end));
        }
        Ok(ends)
    }

    fn name(&mut self, what: &'static str, limit: u64) -> Result<String, MalformedGguf> {
        let length = self.u64(what)?;
        self.need(what, length)?;
        if length > limit {
            return Err(MalformedGguf::NameTooLong { what, length, limit });
        }
        let mut name = Vec::new();
        self.reader.by_ref().take(length).read_to_end(&mut name)?;
        self.left -= length;
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    fn skip_text(&mut self, what: &str) -> Result<(), MalformedGguf> {
        let length = self.u64(what)?;
        self.skip(what, length)
    }

    fn skip(&mut self, what: &str, bytes: u64) -> Result<(), MalformedGguf> {
        self.need(what, bytes)?;
        // What fits into a file fits into an i64; `need` has just compared with the file's size.
        self.reader.seek_relative(bytes.cast_signed())?;
        self.left -= bytes;
        Ok(())
    }

    fn need(&self, what: &str, needed: u64) -> Result<(), MalformedGguf> {
        if needed <= self.left {
            return Ok(());
        }
        Err(MalformedGguf::CutOff { what: what.to_owned(), needed, left: self.left })
    }

    fn u32(&mut self, what: &str) -> Result<u32, MalformedGguf> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, MalformedGguf> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], MalformedGguf> {
        self.need(what, N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.left -= N as u64;
        Ok(bytes)
    }
}

/// Bytes of a metadata value that is neither a string nor an array (`gguf_type` in ggml/include/gguf.h).
fn size_of_scalar(key: &str, kind: u32) -> Result<u64, MalformedGguf> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        number => Err(MalformedGguf::ValueType { key: key.to_owned(), number }),
    }
}

fn tensor_bytes(shape: &[u64], block_values: u64, block_bytes: u64) -> Option<u64> {
    if !shape.first().unwrap_or(&1).is_multiple_of(block_values) {
        return None;
    }
    let values = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension))?;
    (values / block_values).checked_mul(block_bytes)
}
