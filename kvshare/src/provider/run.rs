//! A whole provider around one function.

use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::resident::run_resident;
use super::{Arguments, AssumedCache, Invocation, Provider, ProviderError, ResultLine};
use crate::map::Access;
use crate::rows::MappedCache;

/// What a prefill works on.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prefill<'a> {
    /// The prompt's tokens. Token number i belongs into position i.
    pub tokens: &'a [i32],
    /// The model file that the decoder serves.
    pub model: &'a Path,
    /// Where the provider's kernels are, if the user named a place.
    pub elfs: Option<&'a Path>,
    /// The cache to fill: every layer's K and V rows for each of the tokens.
    pub cache: &'a mut MappedCache,
}

/// Runs a provider by this process's arguments, for one prompt or, with `--resident`, for as many as the proxy sends:
/// `prefill` fills the cache and returns the likeliest next token. What it captures lives as long as the provider, so a
/// model is best loaded once, at its first call.
///
/// The exit code is the contract's: 0 when the result was printed, 2 for wrong arguments, 1 for everything else. What went
/// wrong goes to standard error, and from there into the proxy's log.
///
/// ```no_run
/// use kvshare::provider::{self, Prefill};
/// use kvshare::rows::RowsError;
///
/// fn main() -> std::process::ExitCode {
///     provider::run(|prefill: Prefill<'_>| {
///         let layers: Vec<_> = prefill.cache.layers().to_vec();
///         for (position, token) in (0..).zip(prefill.tokens) {
///             for planes in &layers {
///                 let k = vec![*token as f32; planes.k.width as usize];
///                 prefill.cache.k_mut(planes.layer)?.write_f32(position, &k)?;
///                 let v = vec![*token as f32; planes.v.width as usize];
///                 prefill.cache.v_mut(planes.layer)?.write_f32(position, &v)?;
///             }
///         }
///         Ok::<i32, RowsError>(0)
///     })
/// }
/// ```
pub fn run<E: Display>(prefill: impl FnMut(Prefill<'_>) -> Result<i32, E>) -> ExitCode {
    let cache = AssumedCache::default();
    let outcome = Invocation::parse(std::env::args_os().skip(1)).and_then(|invocation| match invocation {
        Invocation::Once(arguments) => run_with(arguments, &cache, prefill).and_then(|result| print(&result)),
        Invocation::Resident(arguments) => run_resident(&arguments, &cache, prefill),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            if error.is_misuse() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Runs a provider by given arguments and returns its result line, which the caller prints last.
///
/// `cache` is what is assumed of the decoder's cache where no header says it.
///
/// # Errors
/// Whatever [`Provider::open`], [`Provider::map`], `prefill` or [`Provider::finish`] says.
pub fn run_with<E: Display>(
    arguments: Arguments,
    cache: &AssumedCache,
    prefill: impl FnOnce(Prefill<'_>) -> Result<i32, E>,
) -> Result<ResultLine, ProviderError> {
    let provider = Provider::open(arguments, cache)?;
    let mut cache = provider.map()?;
    let Arguments { model, elfs, .. } = provider.arguments();
    let (tokens, elfs) = (provider.tokens(), elfs.as_deref());
    let (argmax, took) = fill(Prefill { tokens, model, elfs, cache: &mut cache }, prefill)?;
    // Unmapped before the result says that nothing is written any more.
    drop(cache);
    provider.finish(argmax, took)
}

/// Has `prefill` fill a cache, within a CPU access to it. Returns the likeliest next token, and how long it took.
pub(super) fn fill<E: Display>(
    job: Prefill<'_>,
    prefill: impl FnOnce(Prefill<'_>) -> Result<i32, E>,
) -> Result<(i32, Duration), ProviderError> {
    let access = job.cache.begin_cpu_access(Access::ReadWrite)?;
    let started = Instant::now();
    let argmax = prefill(job).map_err(|error| ProviderError::Prefill { words: error.to_string() })?;
    let took = started.elapsed();
    access.end()?;
    Ok((argmax, took))
}

fn print(result: &ResultLine) -> Result<(), ProviderError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{result}").and_then(|()| out.flush()).map_err(ProviderError::Print)
}

impl ProviderError {
    /// Whether the command line is at fault.
    pub fn is_misuse(&self) -> bool {
        use ProviderError as Error;
        matches!(
            self,
            Error::Arguments(_)
                | Error::MissingArgument { .. }
                | Error::NoRoute
                | Error::BothRoutes
                | Error::ResidentAndOnce
                | Error::NotResident
                | Error::DescriptorNumber { .. }
                | Error::OutName { .. }
        )
    }
}
