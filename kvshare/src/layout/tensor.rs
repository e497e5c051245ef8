//! One tensor of a cache: its name, type and shape.

use std::fmt;

use super::{ALIGNMENT, LayoutError, TensorType};

/// Which part of a layer's memory a tensor holds, as llama.cpp names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Keys: `cache_k_l<L>`.
    K,
    /// Values: `cache_v_l<L>`.
    V,
    /// A recurrent layer's rolling (convolution) state: `cache_r_l<L>`.
    R,
    /// A recurrent layer's state: `cache_s_l<L>`.
    S,
}

impl Part {
    const fn letter(self) -> char {
        match self {
            Self::K => 'k',
            Self::V => 'v',
            Self::R => 'r',
            Self::S => 's',
        }
    }
}

/// The name llama.cpp gives the tensor of `part` in `layer`, such as `cache_k_l0` (`src/llama-kv-cache.cpp` and
/// `src/llama-memory-recurrent.cpp`).
pub fn tensor_name(part: Part, layer: u32) -> String {
    format!("cache_{}_l{layer}", part.letter())
}

/// One tensor: a name, a type and a shape whose size in bytes is known to fit.
///
/// ```
/// use kvshare::layout::{Part, Tensor, TensorType};
///
/// let k = Tensor::new("cache_k_l3", TensorType::F16, &[1024, 20480, 1])?;
/// assert_eq!(k.bytes(), 41_943_040);
/// assert_eq!(k.part_and_layer(), Some((Part::K, 3)));
/// # Ok::<(), kvshare::layout::LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    name: String,
    tensor_type: TensorType,
    ne: [u64; 4],
    bytes: u64,
    reserved: u64,
}

impl Tensor {
    /// A tensor of the dimensions `ne`, the contiguous one first; absent ones are 1.
    ///
    /// # Errors
    /// No dimension, more than four, or one of 0; a first one that whole blocks do not fill; over 2^63 - 1 bytes.
    pub fn new(name: impl Into<String>, tensor_type: TensorType, ne: &[u64]) -> Result<Self, LayoutError> {
        let name = name.into();
        if ne.is_empty() || ne.len() > 4 || ne.contains(&0) {
            return Err(LayoutError::Shape { name, ne: ne.iter().copied().take(8).collect() });
        }
        let mut dimensions = [1; 4];
        dimensions[..ne.len()].copy_from_slice(ne);
        if dimensions[0] % tensor_type.block_elements() != 0 {
            let (width, block) = (dimensions[0], tensor_type.block_elements());
            return Err(LayoutError::Block { name, width, tensor_type, block });
        }
        let size = tensor_type
            .row_bytes(dimensions[0])
            .and_then(|row| dimensions[1..].iter().try_fold(row, |bytes, count| bytes.checked_mul(*count)))
            .and_then(|bytes| Some((bytes, round_up(bytes)?)));
        match size {
            Some((bytes, reserved)) => Ok(Self { name, tensor_type, ne: dimensions, bytes, reserved }),
            None => Err(LayoutError::Overflow { name, ne: ne.to_vec() }),
        }
    }

    /// The same tensor, for which the decoder's allocator asks for `allocation` bytes if that is more than it needs.
    ///
    /// # Errors
    /// `allocation` rounded up to 4096 is over 2^63 - 1.
    pub fn with_allocation(mut self, allocation: u64) -> Result<Self, LayoutError> {
        match round_up(allocation) {
            Some(reserved) => self.reserved = self.reserved.max(reserved),
            None => return Err(LayoutError::Overflow { name: self.name, ne: self.ne.to_vec() }),
        }
        Ok(self)
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// Its four dimensions, the contiguous one first.
    pub fn ne(&self) -> [u64; 4] {
        self.ne
    }

    /// The bytes its elements take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes it takes in its region: at least [`bytes`](Self::bytes), a multiple of 4096.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// What the name says the tensor is, or `None` for a name that llama.cpp would not give.
    pub fn part_and_layer(&self) -> Option<(Part, u32)> {
        let (part, layer) = self.name.strip_prefix("cache_")?.split_once("_l")?;
        let part = match part {
            "k" => Part::K,
            "v" => Part::V,
            "r" => Part::R,
            "s" => Part::S,
            _ => return None,
        };
        // `parse` takes "+3" and "03", which are no names of llama.cpp's.
        let is_plain = layer == "0" || layer.starts_with(|first: char| matches!(first, '1'..='9'));
        Some((part, layer.parse().ok().filter(|_| is_plain)?))
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.ne;
        write!(formatter, "{} ({} of {a} x {b} x {c}", self.name, self.tensor_type)?;
        if d == 1 { formatter.write_str(")") } else { write!(formatter, " x {d})") }
    }
}

/// `bytes` rounded up to [`ALIGNMENT`], if that is at most 2^63 - 1.
fn round_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT).filter(|rounded| *rounded <= i64::MAX as u64)
}
