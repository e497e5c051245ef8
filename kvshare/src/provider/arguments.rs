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

/// How a provider was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// For one prompt.
    Once(Arguments),
    /// For as many as the proxy sends.
    Resident(ResidentArguments),
}

/// What a resident provider is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentArguments {
    /// The model file that the decoder serves.
    pub model: PathBuf,
    /// Where the provider's kernels are, if the user named a place.
    pub elfs: Option<PathBuf>,
    /// The number of the inherited socket through which the proxy speaks.
    pub socket: i32,
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
        match Invocation::parse(arguments)? {
            Invocation::Once(arguments) => Ok(arguments),
            Invocation::Resident(_) => Err(ProviderError::NotResident),
        }
    }

    /// The descriptor numbers in `3,4,5`.
    ///
    /// # Errors
    /// Anything but decimal numbers from 3 up.
    pub fn parse_fds(list: &str) -> Result<Vec<i32>, ProviderError> {
        list.split(',').map(|text| descriptor_number("--fds", text)).collect()
    }
}

impl Invocation {
    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    /// As [`Arguments::parse`], and `--resident` beside what belongs to one prompt.
    ///
    /// ```
    /// use kvshare::provider::Invocation;
    ///
    /// let invocation = Invocation::parse("--resident 3 --model m.gguf".split(' '))?;
    /// assert!(matches!(invocation, Invocation::Resident(arguments) if arguments.socket == 3));
    /// # Ok::<(), kvshare::provider::ProviderError>(())
    /// ```
    pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, ProviderError> {
        let mut parser = lexopt::Parser::from_args(arguments);
        let (mut tokens, mut model, mut elfs, mut out, mut layout, mut fds) = (None, None, None, None, None, None);
        let mut resident = None;
        while let Some(argument) = parser.next()? {
            match argument {
                Long("tokens") => tokens = Some(PathBuf::from(parser.value()?)),
                Long("model") => model = Some(PathBuf::from(parser.value()?)),
                Long("elfs") => elfs = Some(PathBuf::from(parser.value()?)),
                Long("out") => out = Some(PathBuf::from(parser.value()?)),
                Long("layout") => layout = Some(PathBuf::from(parser.value()?)),
                Long("fds") => fds = Some(parser.value()?.parse_with(Arguments::parse_fds)?),
                Long("resident") => resident = Some(parser.value()?.parse_with(ResidentArguments::parse_socket)?),
                other => return Err(other.unexpected().into()),
            }
        }
        let missing = |flag| ProviderError::MissingArgument { flag };
        if let Some(socket) = resident {
            if tokens.is_some() || out.is_some() || layout.is_some() || fds.is_some() {
                return Err(ProviderError::ResidentAndOnce);
            }
            let model = model.ok_or_else(|| missing("--model"))?;
            return Ok(Self::Resident(ResidentArguments { model, elfs, socket }));
        }
        Ok(Self::Once(Arguments {
            tokens: tokens.ok_or_else(|| missing("--tokens"))?,
            model: model.ok_or_else(|| missing("--model"))?,
            elfs,
            route: Route::of(out, layout, fds)?,
        }))
    }
}

impl ResidentArguments {
    /// The descriptor number of `--resident`.
    ///
    /// # Errors
    /// Anything but a decimal number from 3 up.
    pub fn parse_socket(number: &str) -> Result<i32, ProviderError> {
        descriptor_number("--resident", number)
    }
}

fn descriptor_number(flag: &'static str, text: &str) -> Result<i32, ProviderError> {
    match text.parse::<i32>() {
        Ok(number) if number >= 3 && text.bytes().all(|digit| digit.is_ascii_digit()) => Ok(number),
        _ => Err(ProviderError::DescriptorNumber { flag, text: text.chars().take(32).collect() }),
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
