//! The reference provider as a program: its command line, and which of its three prefills runs.

use std::fmt::Display;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use kvshare::layout::{HeadSizes, LayerWidths, TensorType};
use kvshare::provider::{
    Arguments, AssumedCache, AssumedLayers, Prefill, ProviderError, ResidentArguments, ResultLine, Route, run_resident,
    run_with,
};

use super::error::ReferenceProviderError;
use super::via_backend::{self, Backend};
use crate::cache_rows::CacheRows;
use crate::checker;
use crate::model::{EMBEDDED_GGUF, Model, Progress, most_likely};

/// Between two lines that say how far a long prefill has come.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// The command line: the contract's flags, and some of its own before them.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example, as a proxy starts it on the file route:
  reference-provider --tokens prompt.tokens --model model.gguf --out state.bin")]
pub struct ReferenceProviderArguments {
    /// The prompt's token ids, one decimal id a line
    #[arg(long, value_name = "FILE", required_unless_present = "resident")]
    tokens: Option<PathBuf>,
    /// Stay, and serve the proxy at the other end of this inherited socket
    #[arg(long, value_name = "N", conflicts_with_all = ["tokens", "out", "layout", "fds", "via_backend"])]
    resident: Option<String>,
    /// The model, a GGUF [default: the embedded kvshare-tiny]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// File route: the state file to write, a bare filename in the working directory
    #[arg(long, value_name = "NAME")]
    out: Option<PathBuf>,
    /// Shared route: the decoder's header
    #[arg(long, value_name = "FILE")]
    layout: Option<PathBuf>,
    /// Shared route: the numbers of the inherited descriptors
    #[arg(long, value_name = "N,...")]
    fds: Option<String>,
    /// Where kernels are; accepted and not used
    #[arg(long, value_name = "DIR")]
    elfs: Option<PathBuf>,
    /// Write the checker's function instead of a model's rows
    #[arg(long)]
    checker: bool,
    /// With --checker on the file route: layers, K width and V width of the decoder's cache
    #[arg(long, value_name = "L,K,V", value_parser = parse_shape, default_value = "28,1024,1024")]
    checker_shape: Shape,
    /// File route: the type of the decoder's K
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_k: TensorType,
    /// File route: the type of the decoder's V
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    type_v: TensorType,
    /// File route: the decoder runs without flash attention and stores V by channel
    #[arg(long)]
    v_trans: bool,
    /// File route: compute nothing, but have the backend prefill slot 0, save it to --out, and empty it
    #[arg(long, conflicts_with = "checker")]
    via_backend: bool,
    /// With --via-backend: where the backend is
    #[arg(long, value_name = "URL", env = "ONEBIT_HYBRID_BACKEND_URL")]
    backend_url: Option<String>,
    /// With --via-backend: the key that the backend demands
    #[arg(long, value_name = "KEY", env = "LLAMA_API_KEY", hide_env_values = true)]
    backend_key: Option<String>,
    /// With --via-backend: how long one call to the backend may take
    #[arg(long, value_name = "SECONDS", env = "ONEBIT_HYBRID_PREFILL_TIMEOUT_S", default_value = "600", value_parser = parse_seconds)]
    backend_timeout: Duration,
}

/// Layers and widths of a cache.
#[derive(Clone, Copy, Debug)]
struct Shape {
    layers: u32,
    k: u64,
    v: u64,
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let parts: Vec<&str> = text.split(',').collect();
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text:?}: {error}"));
    match parts[..] {
        [layers, k, v] => Ok(Shape { layers: number(layers)?, k: number(k)?.into(), v: number(v)?.into() }),
        _ => Err("three numbers are needed, such as 28,1024,1024".to_owned()),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|seconds| !seconds.is_zero()).ok_or_else(|| "it must be a number of seconds over 0".to_owned())
}

/// [`provide_and_print`] as a program: says on standard error why it failed. Exit code 0: done, 1: failed, 2: misuse.
pub fn run(arguments: ReferenceProviderArguments) -> ExitCode {
    match provide_and_print(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reference-provider: {error}");
            if error.is_misuse() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Runs the provider and prints its result line. One that stays has none, and returns when its proxy hangs up.
///
/// # Errors
/// There is no result, or it could not be printed.
pub fn provide_and_print(arguments: ReferenceProviderArguments) -> Result<(), ReferenceProviderError> {
    let Some(result) = provide(arguments)? else { return Ok(()) };
    let mut out = std::io::stdout().lock();
    Ok(writeln!(out, "{result}").and_then(|()| out.flush()).map_err(ProviderError::Print)?)
}

fn provide(given: ReferenceProviderArguments) -> Result<Option<ResultLine>, ReferenceProviderError> {
    if given.via_backend {
        return prefill_via_backend(given).map(Some);
    }
    let cache = assumed_cache(&given);
    // The library reads the model's geometry from a file.
    let embedded = match given.model {
        Some(_) => None,
        None => Some(embedded_model().map_err(|error| ProviderError::Prefill { words: error.to_string() })?),
    };
    let model = given.model.or_else(|| Some(embedded.as_ref()?.path().to_owned())).unwrap_or_default();
    let mut loaded = None;
    if given.resident.is_some() && !given.checker {
        // So that the first prompt need not wait for it.
        loaded = Some(open_model(&model).map_err(|words| ProviderError::Prefill { words })?);
    }
    let prefill = |job: Prefill<'_>| match given.checker {
        true => check_prefill(job),
        false => {
            let model = match &loaded {
                Some(model) => model,
                None => loaded.insert(open_model(job.model)?),
            };
            model_prefill(model, job)
        }
    };
    if let Some(socket) = given.resident {
        let socket = ResidentArguments::parse_socket(&socket)?;
        run_resident(&ResidentArguments { model, elfs: given.elfs, socket }, &cache, prefill)?;
        return Ok(None);
    }
    let route = route(given.out, given.layout, given.fds)?;
    let arguments = Arguments { tokens: given.tokens.unwrap_or_default(), model, elfs: given.elfs, route };
    Ok(Some(run_with(arguments, &cache, prefill)?))
}

fn prefill_via_backend(given: ReferenceProviderArguments) -> Result<ResultLine, ReferenceProviderError> {
    let route = route(given.out, given.layout, given.fds)?;
    let not_empty = |text: &String| !text.is_empty();
    let url = given.backend_url.filter(not_empty).ok_or(ReferenceProviderError::NoAddress)?;
    let backend = Backend { url, key: given.backend_key.filter(not_empty), limit: given.backend_timeout };
    via_backend::prefill(&backend, &given.tokens.unwrap_or_default(), route)
}

fn route(out: Option<PathBuf>, layout: Option<PathBuf>, fds: Option<String>) -> Result<Route, ProviderError> {
    Route::of(out, layout, fds.as_deref().map(Arguments::parse_fds).transpose()?)
}

fn assumed_cache(given: &ReferenceProviderArguments) -> AssumedCache {
    let mut cache =
        AssumedCache { type_k: given.type_k, type_v: given.type_v, v_trans: given.v_trans, ..AssumedCache::default() };
    if given.checker {
        let Shape { layers, k, v } = given.checker_shape;
        let widths = (0..layers).map(|layer| LayerWidths { layer, k, v }).collect();
        // The checker's cache has no heads, and so is never rotated.
        cache.layers = Some(AssumedLayers { widths, head_sizes: Some(HeadSizes { k: 0, v: 0 }) });
    }
    cache
}

/// The embedded model as a file, gone when dropped.
fn embedded_model() -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("kvshare-tiny-").suffix(".gguf").tempfile()?;
    file.write_all(EMBEDDED_GGUF)?;
    Ok(file)
}

fn check_prefill(prefill: Prefill<'_>) -> Result<i32, String> {
    checker::write(prefill.cache, prefill.tokens, 0).map_err(in_words)?;
    Ok(0)
}

fn open_model(path: &Path) -> Result<Model, String> {
    Model::open(path).map_err(in_words)
}

fn model_prefill(model: &Model, prefill: Prefill<'_>) -> Result<i32, String> {
    let tokens = prefill.tokens.iter().map(|token| token.cast_unsigned()).collect::<Vec<u32>>();
    let mut said = Instant::now();
    let observe = |Progress { done, total }| {
        if said.elapsed() >= PROGRESS_EVERY {
            said = Instant::now();
            eprintln!("progress: {:.2}", done as f64 / total as f64);
        }
        ControlFlow::Continue(())
    };
    let mut cache = CacheRows::new(prefill.cache);
    let logits = model.evaluate_observed(&tokens, 0, &mut cache, observe).map_err(in_words)?;
    Ok(most_likely(&logits).cast_signed())
}

fn in_words(error: impl Display) -> String {
    error.to_string()
}
