//! What is known of the backend's cache before a provider's state file is restored into it.
//!
//! At the start the backend is asked for a file of its own, of one token: that says how many layers there are, of which
//! types and widths, how they are rotated and whether V is transposed. Where it saves none, its flags and llama-server's
//! defaults must do, which say nothing of layers, widths and rotation.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvshare::handoff::{HandoffFile, KnownCache, StateCheckError};
use kvshare::layout::TensorType;
use kvshare::state_file::StateFileError;

use crate::cycle::{DecoderClient, DecoderError, cancellable};

/// How long the backend may take over its file; something else may have its slot.
const LIMIT: Duration = Duration::from_secs(30);

/// Why the backend's own file tells nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// It made none.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// It is not in the slot directory.
    #[error("the backend saved no file in the slot directory ({0}); was it started with another --slot-save-path?")]
    Elsewhere(std::io::Error),
    /// It is none that can be read here, as that of a recurrent model.
    #[error("the backend's own state file cannot be read: {0}")]
    Unreadable(StateCheckError),
    /// It holds nothing.
    #[error("the backend's own state file cannot be used: {0}")]
    Empty(#[from] StateFileError),
    /// It took too long.
    #[error("the backend saved no file within {} s", LIMIT.as_secs())]
    TooLate,
    /// The system.
    #[error("the backend's own state file could not be read: {0}")]
    System(#[from] std::io::Error),
}

/// What the flags of a backend say that we start. llama-server's cache is f16 unless told, and whether it uses flash
/// attention is its own choice unless told.
pub fn of_flags(flags: &[OsString]) -> KnownCache {
    let flag = |names: [&str; 2], variable: &str| {
        let flags: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
        let after = |(name, value): (&str, &str)| names.contains(&name).then(|| value.to_owned());
        let pairs = flags.windows(2).filter_map(|pair| after((&pair[0], &pair[1])));
        let joined = flags.iter().filter_map(|flag| after(flag.split_once('=')?));
        pairs.chain(joined).last().or_else(|| std::env::var(variable).ok())
    };
    // A type that we do not know is for the backend to judge.
    let tensor_type = |given: Option<String>| given.map_or(Some(TensorType::F16), |name| name.parse().ok());
    let flash_attention = flag(["-fa", "--flash-attn"], "LLAMA_ARG_FLASH_ATTN");
    KnownCache {
        type_k: tensor_type(flag(["-ctk", "--cache-type-k"], "LLAMA_ARG_CACHE_TYPE_K")),
        type_v: tensor_type(flag(["-ctv", "--cache-type-v"], "LLAMA_ARG_CACHE_TYPE_V")),
        v_trans: match flash_attention.as_deref() {
            Some("on" | "1" | "true" | "enabled") => Some(false),
            Some("off" | "0" | "false" | "disabled") => Some(true),
            _ => None,
        },
        ..KnownCache::default()
    }
}

/// Adds to `known` what a file tells that the backend saves itself. Its slot is empty then.
///
/// # Errors
/// [`LearnError`]; `known` is as it was.
pub async fn learn(known: &mut KnownCache, decoder: &DecoderClient, slot_directory: &Path) -> Result<(), LearnError> {
    tokio::time::timeout(LIMIT, learn_in_time(known, decoder, slot_directory)).await.map_err(|_| LearnError::TooLate)?
}

async fn learn_in_time(
    known: &mut KnownCache,
    decoder: &DecoderClient,
    slot_directory: &Path,
) -> Result<(), LearnError> {
    // Every vocabulary has a token 0, and one position shows how all are stored.
    decoder.complete(&[0], 0).await?;
    let file = Arc::new(HandoffFile::new(slot_directory));
    decoder.save(file.name()).await?;
    let (saved, _) = cancellable(move |_| file.read()).await?.map_err(|error| match error {
        StateCheckError::Missing(error) => LearnError::Elsewhere(error),
        error => LearnError::Unreadable(error),
    })?;
    known.learn(&saved)?;
    Ok(decoder.erase().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_and_the_order_of_v_are_those_of_the_backends_flags() {
        let (f16, q8_0) = (Some(TensorType::F16), Some(TensorType::Q8_0));
        for (flags, type_k, type_v, v_trans) in [
            ("-c 4096 -fa on", f16, f16, Some(false)),
            ("-fa auto", f16, f16, None),
            ("--flash-attn=off", f16, f16, Some(true)),
            ("-fa on -fa off", f16, f16, Some(true)),
            ("-ctk q8_0 -c 4096 --cache-type-v=q8_0", q8_0, q8_0, None),
            ("-ctk f16 -ctk q8_0", q8_0, f16, None),
            ("-ctk no_such_type", None, f16, None),
        ] {
            let known = of_flags(&flags.split(' ').map(Into::into).collect::<Vec<_>>());
            assert_eq!((known.type_k, known.type_v, known.v_trans), (type_k, type_v, v_trans), "{flags}");
        }
    }
}
