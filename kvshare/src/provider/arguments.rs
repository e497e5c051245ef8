//! The command line that a provider is started with.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::Arg::Long;
use lexopt::ValueExt as _;

use super::ProviderError;

/// What a provider is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The file with the prompt's token ids, one decimal id a line.
    pub tokens: PathBuf,
    /// The model file that the decoder serves.
    pub model: PathBuf,
    /// Where the provider's kernels are, if the user named a place.
    pub elfs: Option<PathBuf>,
    /// How the cache goes to the decoder.
    pub route: Route,
}

/// How the cache goes to the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through a state file.
    File {
        /// Where to write it: a bare filename in the working directory.
        out: PathBuf,
    },
    /// Through the decoder's own memory.
    Shared {
        /// The file that holds the header.
        layout: PathBuf,
        /// The numbers of the inherited descriptors, in the header's order.
        fds: Vec<i32>,
    },
}

impl Arguments {
    /// Parses the arguments after the program's name.
    ///
    /// A program with flags of its own parses them itself and fills the fields.
    ///
    /// # Errors
    /// A flag that the contract does not have, one that is missing, or both routes at once.
    ///
    /// ```
    /// use kvshare::provider::{Arguments, Route};
    ///
    /// let line = "--tokens t.txt --model m.gguf --layout l.json --fds 3,4";
    /// let arguments = Arguments::parse(line.split(' '))?;
    /// assert_eq!(arguments.route, Route::Shared { layout: "l.json".into(), fds: vec![3, 4] });
    /// # Ok::<(), kvshare::provider::ProviderError>(())
    /// ```
    pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, ProviderError> {
        let mut parser = lexopt::Parser::from_args(arguments);
        let (mut tokens, mut model, mut elfs, mut out, mut layout, mut fds) = (None, None, None, None, None, None);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("tokens") => tokens = Some(PathBuf::from(parser.value()?)),
                Long("model") => model = Some(PathBuf::from(parser.value()?)),
                Long("elfs") => elfs = Some(PathBuf::from(parser.value()?)),
                Long("out") => out = Some(PathBuf::from(parser.value()?)),
                Long("layout") => layout = Some(PathBuf::from(parser.value()?)),
                Long("fds") => fds = Some(parser.value()?.parse_with(Self::parse_fds)?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(Self {
            tokens: tokens.ok_or(ProviderError::MissingArgument { flag: "--tokens" })?,
            model: model.ok_or(ProviderError::MissingArgument { flag: "--model" })?,
            elfs,
            route: Route::of(out, layout, fds)?,
        })
    }

    /// The descriptor numbers in `3,4,5`.
    ///
    /// # Errors
    /// Anything but decimal numbers from 3 up.
    pub fn parse_fds(list: &str) -> Result<Vec<i32>, ProviderError> {
        let number = |text: &str| match text.parse::<i32>() {
            Ok(number) if number >= 3 && text.bytes().all(|digit| digit.is_ascii_digit()) => Ok(number),
            _ => Err(ProviderError::DescriptorNumber { text: text.chars().take(32).collect() }),
        };
        list.split(',').map(number).collect()
    }
}

impl Route {
    /// The route that the flags `--out`, `--layout` and `--fds` name together.
    ///
    /// # Errors
    /// Both routes, neither, or half of the shared one.
    pub fn of(out: Option<PathBuf>, layout: Option<PathBuf>, fds: Option<Vec<i32>>) -> Result<Self, ProviderError> {
        match (out, layout, fds) {
            (Some(out), None, None) => Ok(Self::File { out }),
            (None, Some(layout), Some(fds)) => Ok(Self::Shared { layout, fds }),
            (None, Some(_), None) => Err(ProviderError::MissingArgument { flag: "--fds" }),
            (None, None, Some(_)) => Err(ProviderError::MissingArgument { flag: "--layout" }),
            (None, None, None) => Err(ProviderError::NoRoute),
            (Some(_), _, _) => Err(ProviderError::BothRoutes),
        }
    }
}
