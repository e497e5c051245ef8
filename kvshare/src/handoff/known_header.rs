//! The header that a decoder sent last.

use std::sync::{Arc, Mutex, PoisonError};

use crate::header::{Header, HeaderError};

/// Remembers the last good header by its bytes: a decoder describes the same cache at every share, and comparing bytes
/// costs a fiftieth of reading them. Clones remember together.
///
/// ```
/// use kvshare::handoff::KnownHeader;
/// use kvshare::header::{Header, Params};
/// use kvshare::layout::{Geometry, TensorType};
/// use std::sync::Arc;
///
/// let layout = Geometry::uniform(2, 64, 64, 256, TensorType::F16).layout()?;
/// let bytes = Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16))).to_json();
///
/// let known = KnownHeader::default();
/// let first = known.parse(&bytes)?;
/// assert!(Arc::ptr_eq(&first, &known.parse(&bytes)?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KnownHeader {
    last: Arc<Mutex<Option<Read>>>,
}

/// A header and what it was read from.
#[derive(Clone, Debug)]
struct Read {
    bytes: Arc<[u8]>,
    header: Arc<Header>,
}

impl KnownHeader {
    /// As [`Header::parse`], which is called only for bytes that are not those of the last header.
    ///
    /// # Errors
    /// As for [`Header::parse`]. What was known before stays known.
    pub fn parse(&self, bytes: &[u8]) -> Result<Arc<Header>, HeaderError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(last) = last.filter(|last| *last.bytes == *bytes) {
            return Ok(last.header);
        }
        let header = Arc::new(Header::parse(bytes)?);
        let read = Read { bytes: bytes.into(), header: Arc::clone(&header) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Params;
    use crate::layout::{Geometry, TensorType};

    fn header(layers: u32) -> Vec<u8> {
        let layout = Geometry::uniform(layers, 64, 64, 256, TensorType::F16).layout().unwrap();
        Header::describe(&layout, None, Some(Params::plain(256, TensorType::F16))).to_json()
    }

    #[test]
    fn another_header_is_read_anew() {
        let known = KnownHeader::default();
        let (two, three) = (header(2), header(3));
        for bytes in [&two, &three, &two] {
            assert_eq!(*known.parse(bytes).unwrap(), Header::parse(bytes).unwrap());
        }
    }

    #[test]
    fn one_byte_makes_it_another() {
        let known = KnownHeader::default();
        let good = header(2);
        let before = known.parse(&good).unwrap();
        let spoiled = [&good[..], b"}"].concat();
        assert!(known.parse(&spoiled).is_err());
        assert!(known.parse(&good[..good.len() - 1]).is_err());
        assert!(Arc::ptr_eq(&before, &known.parse(&good).unwrap()), "what was refused is not remembered");
    }
}
