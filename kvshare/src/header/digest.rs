//! The digest: one hash over a canonical text of everything that both sides must agree on.
//!
//! The layout hash knows no names, so two regions of equal shapes can be swapped unseen; this cannot.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::{Header, HeaderError};
use crate::layout::PlacedTensor;

impl Header {
    /// The digest of the header's contents: `blake3:` and 64 hex digits.
    pub fn digest(&self) -> String {
        format!("blake3:{}", blake3::hash(self.canonical_text().as_bytes()).to_hex())
    }

    pub(super) fn check_digest(&self, announced: &str) -> Result<(), HeaderError> {
        let computed = self.digest();
        if announced == computed {
            return Ok(());
        }
        Err(HeaderError::DigestMismatch { announced: announced.chars().take(100).collect(), computed })
    }

    /// The text that the digest is taken of; `docs/src/protocol.md` specifies it.
    pub fn canonical_text(&self) -> String {
        // About what the lines take, so that the text seldom moves as it grows.
        let mut text = String::with_capacity(1024 + 96 * (self.regions.len() + self.tensors.len()));
        text.push_str("kvshare digest 1\n");
        let mut line = |line: fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = text.write_fmt(line);
            text.push('\n');
        };
        if let Some(model) = &self.model {
            line(format_args!("model.name {}", Quoted(&model.name)));
            if let Some(sha256) = &model.sha256 {
                line(format_args!("model.sha256 {}", Quoted(sha256)));
            }
        }
        if let Some(params) = &self.params {
            line(format_args!("params.n_ctx {}", params.n_ctx));
            line(format_args!("params.n_batch {}", params.n_batch));
            line(format_args!("params.n_ubatch {}", params.n_ubatch));
            line(format_args!("params.flash_attn {}", params.flash_attn));
            line(format_args!("params.type_k {}", params.type_k));
            line(format_args!("params.type_v {}", params.type_v));
            line(format_args!("params.v_trans {}", params.v_trans));
            line(format_args!("params.n_stream {}", params.n_stream));
            line(format_args!("params.n_rot_k {}", params.n_rot_k));
            line(format_args!("params.n_rot_v {}", params.n_rot_v));
        }
        for (index, region) in self.regions.iter().enumerate() {
            let super::Region { fd, offset, size, layout, group } = region;
            line(format_args!("region {index} fd {fd} offset {offset} size {size} layout {layout} group {group}"));
        }
        for placed in &self.tensors {
            tensor_line(placed, &mut text);
        }
        text
    }
}

/// Most of a header's lines are these, so they are put together without the formatting machinery.
fn tensor_line(placed: &PlacedTensor, text: &mut String) {
    let mut digits = itoa::Buffer::new();
    text.push_str("tensor ");
    // Writing to a String cannot fail.
    let _ = write!(text, "{}", Quoted(placed.tensor.name()));
    text.push(' ');
    text.push_str(placed.tensor.tensor_type().name());
    text.push_str(" ne");
    for dimension in placed.tensor.ne() {
        text.push(' ');
        text.push_str(digits.format(dimension));
    }
    text.push_str(" region ");
    text.push_str(digits.format(placed.region));
    text.push_str(" offset ");
    text.push_str(digits.format(placed.offset));
    text.push('\n');
}

/// A text that is displayed as a JSON string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Plain names, which all of llama.cpp's are, need no escaping.
        let plain = self.0.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
        if plain { write!(formatter, "\"{}\"", self.0) } else { Value::from(self.0).fmt(formatter) }
    }
}
