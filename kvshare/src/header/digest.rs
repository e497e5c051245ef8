//! The digest: one hash over a canonical text of everything that both sides must agree on.
//!
//! The layout hash knows no names, so two regions of equal shapes can be swapped unseen; this cannot.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Header, HeaderError};

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
        let mut text = String::from("kvshare digest 1\n");
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = text.write_fmt(line);
            text.push('\n');
        };
        if let Some(model) = &self.model {
            line(format_args!("model.name {}", quoted(&model.name)));
            if let Some(sha256) = &model.sha256 {
                line(format_args!("model.sha256 {}", quoted(sha256)));
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
            let (tensor, [a, b, c, d]) = (&placed.tensor, placed.tensor.ne());
            let (name, tensor_type) = (quoted(tensor.name()), tensor.tensor_type());
            let (region, offset) = (placed.region, placed.offset);
            line(format_args!("tensor {name} {tensor_type} ne {a} {b} {c} {d} region {region} offset {offset}"));
        }
        text
    }
}

/// `text` as a JSON string.
fn quoted(text: &str) -> String {
    // Plain names, which all of llama.cpp's are, need no escaping.
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if plain { format!("\"{text}\"") } else { Value::from(text).to_string() }
}
