//! The server's life: what is set up before the first request, and in which order it goes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::serve::ListenerExt as _;
use kvshare::fd::DescriptorLimit;
use kvshare::handoff::{KnownCache, ProviderProgram};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use super::arguments::ServeArguments;
use super::backend::{Backend, BackendGone};
use super::backend_process::{BackendCommand, BackendError, BackendProcess};
use super::end_with_parent;
use super::handoff::Handoffs;
use super::known_cache;
use super::log::{Event, LogFormat};
use super::metrics::Metrics;
use super::progress::Listener;
use super::proxy::{Proxy, router};
use super::refusals::RefusedFlag;
use super::slot::Slot;
use super::slot_directory::SlotDirectory;
use crate::cycle::{DecoderClient, DecoderError, Props, Provider, Resident};
use crate::output::{FAILED, Failure, MISUSE, print};

/// How long a backend may take to load its model.
const START_LIMIT: Duration = Duration::from_secs(600);
/// How long connections may take to end after a signal.
const GRACE: Duration = Duration::from_secs(2);
/// How long a provider may take to end then: it gets a SIGTERM, and five seconds later a SIGKILL.
const PROVIDER_GRACE: Duration = Duration::from_secs(8);
/// What a server needs to serve a single client: its own, those of a handoff, and the regions of a small cache.
const LEAST_DESCRIPTORS: u64 = 64;
/// `--print-backend` has an exit status of its own.
const PRINT_BACKEND: u8 = 5;

/// Why the server did not start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum ServeError {
    #[error(
        "the backend's command depends on a port and a directory that exist only while serving; start serve without \
         --print-backend"
    )]
    PrintBackend,
    #[error(transparent)]
    Refused(#[from] RefusedFlag),
    #[error(
        "this process may open only {limit} files, and a server needs {LEAST_DESCRIPTORS} or more; raise it with ulimit -n"
    )]
    FewDescriptors { limit: u64 },
    #[error("there is no model {path}; give a GGUF with -m")]
    NoModel { path: String },
    #[error("the slot directory {path} is not a directory; give the one that the backend was started with")]
    SlotDirectory { path: String },
    #[error("the key holds a character that no header can; give another --api-key")]
    Key,
    #[error("the backend at {url} has {slots} slots, and a handoff needs the only one; start it with -np 1")]
    SeveralSlots { url: String, slots: u64 },
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Gone(#[from] BackendGone),
    #[error("{0}; is the backend a llama-server?")]
    Props(DecoderError),
    #[error("{address} cannot be listened on: {source}; give another --port, or 0 for any that is free")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the HTTP client cannot be set up: {0}")]
    Client(#[from] reqwest::Error),
    #[error(transparent)]
    Output(#[from] Failure),
    #[error("the server could not run: {0}")]
    System(#[from] std::io::Error),
}

impl ServeError {
    fn exit_status(&self) -> u8 {
        use ServeError::{Key, NoModel, Refused, SeveralSlots, SlotDirectory};
        match self {
            Self::PrintBackend => PRINT_BACKEND,
            Refused(_) | NoModel { .. } | SlotDirectory { .. } | Key | SeveralSlots { .. } => MISUSE,
            _ => FAILED,
        }
    }
}

/// Serves until SIGTERM or SIGINT. Says `listening on http://…` on standard output when it is ready.
///
/// # Errors
/// The exit status is 1 after a failure, 2 where the arguments ask for what cannot be, 5 for `--print-backend`.
pub fn run(arguments: ServeArguments) -> Result<(), Failure> {
    let log = arguments.log_format;
    let failed = |error: ServeError| {
        let line = log.line(Event::Notice { words: &error });
        Failure::new(&error).with_status(error.exit_status()).said_as(line)
    };
    if arguments.print_backend {
        return Err(failed(ServeError::PrintBackend));
    }
    serve(arguments).map_err(failed)
}

fn serve(arguments: ServeArguments) -> Result<(), ServeError> {
    check(&arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(live(arguments));
    runtime.shutdown_timeout(GRACE);
    result
}

fn check(arguments: &ServeArguments) -> Result<(), ServeError> {
    arguments.check_refused()?;
    if let Some(limit) = DescriptorLimit::current().soft.filter(|limit| *limit < LEAST_DESCRIPTORS) {
        return Err(ServeError::FewDescriptors { limit });
    }
    if !arguments.model.is_file() {
        return Err(ServeError::NoModel { path: arguments.model.display().to_string() });
    }
    match &arguments.slot_dir {
        Some(path) if !path.is_dir() => Err(ServeError::SlotDirectory { path: path.display().to_string() }),
        _ => Ok(()),
    }
}

/// From start to signal. What is made here goes in the reverse order, however it ends: connections, handoffs, backend,
/// directory.
async fn live(arguments: ServeArguments) -> Result<(), ServeError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let mut signalled = std::pin::pin!(signalled);

    let directory = match &arguments.slot_dir {
        Some(path) => SlotDirectory::Given(std::path::absolute(path)?),
        None => SlotDirectory::fresh()?,
    };
    let (http, metrics) = (client(&arguments)?, Metrics::new());
    let (backend, process) = backend(&arguments, &directory, &http, &metrics)?;
    let proxy = tokio::select! {
        proxy = proxy(&arguments, &directory, backend, http, metrics) => Arc::new(proxy?),
        () = &mut signalled => return Ok(()),
    };
    announce(&arguments, listener.local_addr()?)?;

    let (stop, stopped) = oneshot::channel::<()>();
    // A token that waits for the acknowledgement of the one before comes up to 40 ms late (tcp(7), TCP_NODELAY). A
    // connection that cannot be told so is slow, and works.
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let serving = axum::serve(listener, router(Arc::clone(&proxy))).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let mut serving = tokio::spawn(serving.into_future());
    tokio::select! {
        () = signalled => {}
        ended = &mut serving => return Ok(ended.map_err(std::io::Error::other)??),
    }
    let _ = stop.send(());
    proxy.stop();
    // A client that neither reads nor closes must not keep us.
    let _ = tokio::time::timeout(GRACE, serving).await;
    proxy.slot.is_free(PROVIDER_GRACE).await;
    drop(process);
    Ok(())
}

/// The client for all calls to the backend: it follows nothing, goes nowhere else, and waits for no byte for ever.
fn client(arguments: &ServeArguments) -> Result<reqwest::Client, ServeError> {
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .read_timeout(arguments.timeout);
    if let Some(value) = authorization(arguments)? {
        builder = builder.default_headers(HeaderMap::from_iter([(header::AUTHORIZATION, value)]));
    }
    Ok(builder.build()?)
}

/// What proves to the backend that we may call it.
fn authorization(arguments: &ServeArguments) -> Result<Option<HeaderValue>, ServeError> {
    let value = |key| HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ServeError::Key);
    arguments.api_key().map(value).transpose()
}

/// The backend that runs already, or one that we start.
fn backend(
    arguments: &ServeArguments,
    directory: &SlotDirectory,
    http: &reqwest::Client,
    metrics: &Arc<Metrics>,
) -> Result<(Backend, Option<BackendProcess>), ServeError> {
    if let Some(url) = &arguments.backend_url {
        return Ok((Backend::of_others(url.trim_end_matches('/').to_owned()), None));
    }
    let command = BackendCommand {
        program: arguments.backend.clone(),
        model: arguments.model.clone(),
        slot_directory: directory.path().to_owned(),
        flags: arguments.backend_flags.clone(),
        api_keys: arguments.api_keys().map(ToOwned::to_owned),
        shares: arguments.shares(),
    };
    let process = BackendProcess::start(command, http.clone(), arguments.log_format, Arc::clone(metrics))?;
    Ok((process.backend.clone(), Some(process)))
}

async fn proxy(
    arguments: &ServeArguments,
    directory: &SlotDirectory,
    backend: Backend,
    http: reqwest::Client,
    metrics: Arc<Metrics>,
) -> Result<Proxy, ServeError> {
    backend.is_up(START_LIMIT).await?;
    let decoder = DecoderClient::with_limit(&backend.url, authorization(arguments)?, arguments.timeout);
    let props = decoder.props().await.map_err(ServeError::Props)?;
    let handoffs = match arguments.provider() {
        None => None,
        Some(_) if props.total_slots != 1 => {
            return Err(ServeError::SeveralSlots { url: backend.url, slots: props.total_slots });
        }
        Some(program) => Some(Handoffs {
            backend: backend.clone(),
            share_limit: arguments.timeout,
            provider: provider(arguments, program, &backend.url, directory.path())?,
            lock: arguments.provider_lock.clone(),
            slot_directory: directory.path().to_owned(),
            sweeps: directory.is_ours(),
            known: Arc::new(known_cache(arguments, directory, &decoder, &props).await),
            decoder,
            shares: arguments.shares(),
            cannot_share: AtomicBool::new(false),
            log: arguments.log_format,
            metrics: Arc::clone(&metrics),
        }),
    };
    Ok(Proxy {
        backend,
        http,
        handoffs,
        slot: Slot::new(arguments.queue),
        timeout: arguments.timeout,
        max_body: arguments.max_body_bytes(),
        api_keys: arguments.api_keys().map(ToOwned::to_owned),
        log: arguments.log_format,
        metrics,
        stopping: watch::Sender::new(false),
    })
}

fn provider(
    arguments: &ServeArguments,
    program: PathBuf,
    backend_url: &str,
    directory: &Path,
) -> Result<Provider, ServeError> {
    let mut provider = ProviderProgram::new(program, &arguments.model);
    provider.launcher = end_with_parent::launcher().to_vec();
    provider.elfs = arguments.elfs();
    provider.time_limit = arguments.prefill_timeout();
    provider.environment = vec![("ONEBIT_HYBRID_BACKEND_URL".into(), backend_url.into())];
    // One that asks the backend needs the key, wherever we have it from.
    provider.environment.extend(arguments.api_key().map(|key| ("LLAMA_API_KEY".into(), key.into())));
    if !arguments.resident_provider {
        return Ok(Provider::Once(provider));
    }
    let resident = Resident::new(provider)?;
    let log = arguments.log_format;
    let listener = Listener::new(log);
    resident.start(
        directory,
        move |line| listener.hear(line),
        move |failure| {
            let words = format_args!("{failure}; it is started again for the next prompt");
            log.write(Event::Notice { words: &words });
        },
    );
    Ok(Provider::Resident(resident))
}

/// What can be known of the backend's cache, from its own word, its flags, and a file that it saves.
async fn known_cache(
    arguments: &ServeArguments,
    directory: &SlotDirectory,
    decoder: &DecoderClient,
    props: &Props,
) -> KnownCache {
    let of_flags = match arguments.backend_url {
        Some(_) => KnownCache::default(),
        None => known_cache::of_flags(&arguments.backend_flags),
    };
    let mut known = KnownCache { n_ctx: Some(props.default_generation_settings.n_ctx), ..of_flags };
    if let Err(error) = known_cache::learn(&mut known, decoder, directory.path()).await {
        let words = format_args!("{error}; state files are checked against less of the backend's cache");
        arguments.log_format.write(Event::Notice { words: &words });
    }
    known
}

fn announce(arguments: &ServeArguments, address: SocketAddr) -> Result<(), ServeError> {
    let log: LogFormat = arguments.log_format;
    if !address.ip().is_loopback() {
        let who = if arguments.api_key().is_some() { "whoever has the key" } else { "anybody there" };
        let words = format_args!("warning: {address} can be reached by other machines; {who} can use the model");
        log.write(Event::Notice { words: &words });
    }
    if arguments.provider().is_none() {
        let words = "no prefill provider is named (--prefill-provider or ONEBIT_HYBRID_PREFILL); the backend prefills \
                     every prompt itself";
        log.write(Event::Notice { words: &words });
    }
    Ok(print(&format!("listening on http://{address}"))?)
}
