//! A provider's state file, checked before the backend sees it.
//!
//! The stock server aborts on a file that is cut in its rows, and answers from one with wrong positions without a word.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

use kvshare::layout::TensorType;
use kvshare::state_file::{Expected, Half, ReadOptions, StateFile, StateFileError};

/// What is known of the backend's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownCache {
    /// Positions of its context.
    pub n_ctx: Option<u64>,
    /// The type of K.
    pub type_k: Option<TensorType>,
    /// The type of V.
    pub type_v: Option<TensorType>,
}

/// Why a state file is not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateCheckError {
    /// It is not there.
    #[error("the provider left no state file: {0}")]
    Missing(#[source] io::Error),
    /// It would not restore to the prompt.
    #[error("the provider's state file is refused: {0}")]
    Refused(#[from] StateFileError),
    /// Its rows are of another type than the cache.
    #[error("the provider's state file is refused: its {half} is {found}, and the backend's cache {expected}")]
    Type {
        /// K or V.
        half: Half,
        /// The file's type.
        found: TensorType,
        /// The cache's.
        expected: TensorType,
    },
}

impl KnownCache {
    /// What the flags of a backend say that we start; llama-server's cache is f16 unless told.
    pub fn of_backend(flags: &[OsString]) -> Self {
        let of = |names: [&str; 2], variable: &str| {
            let flags: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
            let after = |(name, value): (&str, &str)| names.contains(&name).then(|| value.to_owned());
            let pairs = flags.windows(2).filter_map(|pair| after((&pair[0], &pair[1])));
            let joined = flags.iter().filter_map(|flag| after(flag.split_once('=')?));
            let given = pairs.chain(joined).last().or_else(|| std::env::var(variable).ok());
            // A type that we do not know is for the backend to judge.
            given.map_or(Some(TensorType::F16), |name| name.parse().ok())
        };
        let type_k = of(["-ctk", "--cache-type-k"], "LLAMA_ARG_CACHE_TYPE_K");
        let type_v = of(["-ctv", "--cache-type-v"], "LLAMA_ARG_CACHE_TYPE_V");
        Self { n_ctx: None, type_k, type_v }
    }

    /// Walks the file at `path` to its last byte, makes sure that it restores to `tokens`, and returns its length.
    ///
    /// # Errors
    /// [`StateCheckError`].
    pub fn check(&self, path: &Path, tokens: &[i32]) -> Result<u64, StateCheckError> {
        let file = File::open(path).map_err(StateCheckError::Missing)?;
        let length = file.metadata().map_err(StateCheckError::Missing)?.len();
        let state = StateFile::walk(io::BufReader::new(file), ReadOptions::default())?;
        state.validate(&Expected { tokens: Some(tokens), n_ctx: self.n_ctx, ..Expected::default() })?;
        let shape = &state.only_stream()?.shape;
        for (half, expected) in [(Half::K, self.type_k), (Half::V, self.type_v)] {
            let types = shape.layers.iter().map(|layer| layer.half(half).tensor_type);
            let differs = |found: &TensorType| expected.is_some_and(|expected| *found != expected);
            if let (Some(found), Some(expected)) = ({ types }.find(differs), expected) {
                return Err(StateCheckError::Type { half, found, expected });
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &str) -> (Option<TensorType>, Option<TensorType>) {
        let known = KnownCache::of_backend(&flags.split(' ').map(Into::into).collect::<Vec<_>>());
        (known.type_k, known.type_v)
    }

    #[test]
    fn the_types_are_those_of_the_backends_flags() {
        let (f16, q8_0) = (Some(TensorType::F16), Some(TensorType::Q8_0));
        assert_eq!(of("-c 4096 -fa on"), (f16, f16));
        assert_eq!(of("-ctk q8_0 -c 4096 --cache-type-v=q8_0"), (q8_0, q8_0));
        assert_eq!(of("-ctk f16 -ctk q8_0"), (q8_0, f16));
        assert_eq!(of("-ctk no_such_type"), (None, f16));
    }

    #[test]
    fn a_file_that_would_not_restore_to_the_prompt_is_refused() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/samples/tiny/");
        let file = Path::new(directory).join("f16-fa-tiny-a.bin");
        let bytes = std::fs::read(&file).unwrap();
        let tokens = StateFile::parse(&bytes, ReadOptions::default()).unwrap().tokens;
        let known = KnownCache { n_ctx: Some(256), ..KnownCache::of_backend(&[]) };
        assert_eq!(known.check(&file, &tokens).unwrap(), bytes.len() as u64);

        let scratch = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(scratch.path(), &bytes[..bytes.len() - 1]).unwrap();
        let quantized = KnownCache { type_v: Some(TensorType::Q8_0), ..known };
        let cases = [
            (known.check(Path::new("/no/such/file"), &tokens), "left no state file"),
            (known.check(scratch.path(), &tokens), "ends"),
            (known.check(&file, &tokens[1..]), "tokens"),
            (quantized.check(&file, &tokens), "its V is f16, and the backend's cache q8_0"),
            (KnownCache { n_ctx: Some(3), ..known }.check(&file, &tokens), "3"),
        ];
        for (result, words) in cases {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
