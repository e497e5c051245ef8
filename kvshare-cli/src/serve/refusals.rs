//! Backend flags that a handoff does not bear: refused at the start, by name.

use std::ffi::OsString;

/// Why a flag is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} cannot be served with a prefill provider: {reason}")]
pub struct RefusedFlag {
    /// The flag as it was given.
    pub flag: String,
    /// Why.
    pub reason: &'static str,
}

const DRAFTER: &str = "a drafter would draft over a cache that it did not compute; remove it";
const IMAGES: &str = "only the cache of text is handed over; remove it";
const EXPERTS: &str = "a cache computed elsewhere does not go with expert slots; remove it";
const ROLE: &str = "it makes the backend something other than a text generator; remove it";
const ONE_SLOT: &str = "the handoff uses the only slot; give 1 or leave it out";
const OURS: &str = "serve sets it itself; remove it";

/// llama-server's names (`common/arg.cpp`), and those of the fork that the handoff comes from.
const REFUSED: [(&[&str], &str); 7] = [
    (&["--mtp", "--dflash", "-md", "--model-draft", "--spec-draft-model"], DRAFTER),
    (&["-mm", "--mmproj", "-mmu", "--mmproj-url"], IMAGES),
    (&["--moe-slots"], EXPERTS),
    (&["--embedding", "--embeddings", "--rerank", "--reranking", "--pm"], ROLE),
    (&["-np", "--parallel", "--n-parallel"], ONE_SLOT),
    (&["-m", "--model", "--host", "--port", "--slot-save-path", "--api-key", "--api-key-file"], OURS),
    (&["--no-slots"], "the handoff goes through the backend's slots; remove it"),
];

/// Looks through the flags for the backend.
///
/// # Errors
/// The first one that is refused.
pub fn check_backend_flags(flags: &[OsString]) -> Result<(), RefusedFlag> {
    let mut flags = flags.iter().map(|flag| flag.to_string_lossy()).peekable();
    while let Some(flag) = flags.next() {
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&*flag, flags.peek().map(|next| next.to_string())),
        };
        let Some((_, reason)) = REFUSED.iter().find(|(names, _)| names.contains(&name)) else { continue };
        if *reason == ONE_SLOT && value.as_deref() == Some("1") {
            continue;
        }
        return Err(RefusedFlag { flag: name.to_owned(), reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flags: &str) -> Result<(), RefusedFlag> {
        check_backend_flags(&flags.split(' ').map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn flags_that_a_handoff_does_not_bear_are_refused_by_name() {
        let cases = [
            ("-c 4096 -np 2", "-np"),
            ("--parallel 4", "--parallel"),
            ("--parallel=4", "--parallel"),
            ("-np", "-np"),
            ("--mtp", "--mtp"),
            ("--dflash", "--dflash"),
            ("-fa on --mmproj x.gguf", "--mmproj"),
            ("--moe-slots 8", "--moe-slots"),
            ("--embedding", "--embedding"),
            ("--reranking", "--reranking"),
            ("--pm", "--pm"),
            ("--slot-save-path /tmp", "--slot-save-path"),
        ];
        for (flags, name) in cases {
            let refused = check(flags).unwrap_err();
            assert_eq!(refused.flag, name, "{flags}");
            assert!(refused.to_string().starts_with(name), "{refused}");
        }
    }

    #[test]
    fn other_flags_and_one_slot_pass() {
        for flags in ["", "-c 4096 -fa on -ctk q8_0", "-np 1", "--parallel=1 -t 1"] {
            assert_eq!(check(flags), Ok(()), "{flags}");
        }
    }
}
