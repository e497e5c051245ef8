//! How a region's bytes are arranged, where its sender says so in the terms of DRM: a format and a modifier
//! (Linux, include/uapi/drm/drm_fourcc.h).
//!
//! Rows are found by their offset, so only a linear arrangement will do. Both fields are checked and say nothing more.

use drm_fourcc::{DrmFourcc, DrmModifier};

use super::HeaderError;
use super::fields::{Fields, shortened};

/// Checks `format` and `modifier` of a region, each of which may be absent.
pub(super) fn check_arrangement(fields: &Fields<'_>) -> Result<(), HeaderError> {
    if fields.optional("format").is_some() {
        let text = fields.text("format")?;
        if !is_format(text) {
            return Err(HeaderError::UnknownFormat { field: fields.path("format"), value: shortened(text) });
        }
    }
    if fields.optional("modifier").is_some() {
        let modifier = fields.u64_or_text("modifier")?;
        if DrmModifier::from(modifier) != DrmModifier::Linear {
            return Err(HeaderError::NotLinear { field: fields.path("modifier"), modifier: described(modifier) });
        }
    }
    Ok(())
}

/// Whether a text is the code of a format that DRM knows, such as `R8`, with or without the spaces that fill it up.
fn is_format(text: &str) -> bool {
    let mut code = [b' '; 4];
    match code.get_mut(..text.len()) {
        Some(start) if !text.is_empty() => start.copy_from_slice(text.as_bytes()),
        _ => return false,
    }
    DrmFourcc::try_from(u32::from_le_bytes(code)).is_ok()
}

fn described(modifier: u64) -> String {
    match DrmModifier::from(modifier) {
        DrmModifier::Unrecognized(_) => format!("{modifier:#x}"),
        DrmModifier::Invalid => format!("{modifier:#x} (DRM_FORMAT_MOD_INVALID: the driver's own choice)"),
        known => format!("{modifier:#x} ({known:?})"),
    }
}
