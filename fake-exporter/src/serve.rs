//! The decoder as a program: its command line, and its life from start to signal.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use clap::{ArgAction, Args, ValueEnum};
use kvshare::layout::TensorType;
use kvshare::map::Guard;
use kvshare::memory::Reserve;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::brain::{Brain, CheckerBrain, ModelBrain};
use crate::decoder::{Decoder, DecoderError, Misbehaviour, Settings, Sharing};
use crate::http::{Server, router};
use crate::memory_kind::MemoryKind;
use crate::model::ModelError;

/// How long connections may take to end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// The context of a checker that is told none: the cells of the design's largest example.
const CHECKER_CELLS: u32 = 20480;

/// The longest lifetime of a share, in seconds: a year. Longer ones reach dates that no clock can name.
const MAX_LIFETIME: u64 = 365 * 24 * 60 * 60;

/// What the decoder is told on its command line.
///
/// Names are llama-server's where it has one. Its short ones of several letters (`-np`, `-ctk`, `-fa`) are no short names
/// in clap's sense: pass the arguments through [`long_names`] first.
#[derive(Args, Clone, Debug)]
pub struct FakeExporterArguments {
    /// The model, a GGUF of architecture llama or qwen3 [default: the embedded kvshare-tiny]
    #[arg(short, long, value_name = "PATH", conflicts_with = "checker")]
    pub model: Option<PathBuf>,
    /// Run no model: answer whether the cache holds the checker's function
    #[arg(long)]
    pub checker: bool,
    /// Layers of the checker's cache
    #[arg(long, value_name = "N", default_value_t = 28, requires = "checker", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub layers: u32,
    /// Channels of the checker's K rows
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "checker", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub k_width: u64,
    /// Channels of the checker's V rows
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "checker", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub v_width: u64,
    /// Positions of context [default or 0: what the model was trained for; the checker: 20480]
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub ctx_size: u32,
    /// The type of K in the cache (-ctk)
    #[arg(long, value_name = "TYPE", default_value = "f16", alias = "cache-type-k")]
    pub type_k: TensorType,
    /// The type of V in the cache (-ctv)
    #[arg(long, value_name = "TYPE", default_value = "f16", alias = "cache-type-v")]
    pub type_v: TensorType,
    /// Flash attention; off stores V channel by channel (-fa)
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = on_or_off)]
    pub flash_attn: bool,
    /// Slots; there is one (-np)
    #[arg(long, value_name = "1", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub parallel: u32,
    /// The directory of state files and sockets; without it slots can be neither saved nor shared
    #[arg(long, value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,
    /// The address to listen on. Whoever reaches it can read and write the cache
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// How to answer action=share and adopt: do it, say 501, or as a stock server that knows neither
    #[arg(long, value_enum, default_value_t)]
    pub sharing: Sharing,
    /// The kind of memory that the cache lies in: memfd, memfd-hugetlb, udmabuf, dma-heap, dma-heap:NAME, drm or drm:NODE
    #[arg(long, value_name = "KIND", default_value_t)]
    pub memory: MemoryKind,
    /// When the cache's memory is taken from the machine
    #[arg(long, value_enum, default_value_t)]
    pub reserve: ReserveChoice,
    /// Where unmapped pages lie, so that a stray access faults
    #[arg(long, value_enum, default_value_t)]
    pub guard: GuardChoice,
    /// Compare adopted rows with the model's own prefill, and log the error of each layer
    #[arg(long)]
    pub compare: bool,
    /// For how long a share can be adopted
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(..=MAX_LIFETIME))]
    pub share_lifetime: u64,
    /// What to do wrong with every share
    #[arg(long, value_enum, value_name = "KIND")]
    pub misbehave: Option<Misbehaviour>,
    /// End when the process of this id, which started this one, does
    #[arg(long, value_name = "PID")]
    pub exit_with_parent: Option<i32>,
}

/// When memory is taken from the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReserveChoice {
    /// At the start.
    #[default]
    Now,
    /// Page by page, as each is first touched.
    Touch,
}

/// Where unmapped pages lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GuardChoice {
    /// Nowhere.
    #[default]
    None,
    /// Around each region.
    Region,
    /// Around each tensor.
    Tensor,
}

/// Why the decoder did not start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// More context than the model knows.
    #[error("the model was trained for {n_ctx_train} positions; give -c {n_ctx_train} or less instead of {ctx_size}")]
    ContextTooLarge {
        /// What was asked for.
        ctx_size: u32,
        /// What the model knows.
        n_ctx_train: u32,
    },
    /// A context too small for a prompt and a next token.
    #[error("a context of {ctx_size} position has no room for a prompt and the token after it; give -c 2 or more")]
    ContextTooSmall {
        /// What was asked for.
        ctx_size: u32,
    },
    /// A type that does not hold the checker's values.
    #[error("the checker compares values exactly, which {tensor_type} does not hold; use f32, f16 or bf16")]
    InexactType {
        /// The type.
        tensor_type: TensorType,
    },
    /// Memory that is there from the start was to be reserved as it is touched.
    #[error("{memory} memory is reserved at the start; leave out --reserve touch, or use --memory memfd")]
    ReserveOnTouch {
        /// The memory.
        memory: MemoryKind,
    },
    /// The slot directory is none.
    #[error("the slot directory {} is not a directory; create it with mode 0700", path.display())]
    SlotDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The cache.
    #[error("the cache could not be made: {0}")]
    Decoder(#[from] DecoderError),
    /// The address.
    #[error("{address} cannot be listened on: {source}; give another --port, or 0 for any that is free")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// What a running server needs of the system.
    #[error("the server could not run: {0}")]
    System(#[from] std::io::Error),
}

impl ServeError {
    /// Whether the command line asked for something that cannot be.
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::ContextTooLarge { .. }
                | Self::ContextTooSmall { .. }
                | Self::InexactType { .. }
                | Self::ReserveOnTouch { .. }
                | Self::SlotDirectory { .. }
                | Self::Decoder(DecoderError::Layout(_))
        )
    }
}

/// llama-server's short names of several letters as the long ones that clap knows; everything else as it is.
///
/// ```
/// use fake_exporter::serve::long_names;
///
/// let arguments = ["fake-exporter", "-np", "1", "-c", "256"].map(Into::into);
/// assert_eq!(long_names(arguments).collect::<Vec<_>>(), ["fake-exporter", "--parallel", "1", "-c", "256"]);
/// ```
pub fn long_names(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.into_iter().map(|argument| match argument.to_str() {
        Some("-np") => "--parallel".into(),
        Some("-ctk") => "--type-k".into(),
        Some("-ctv") => "--type-v".into(),
        Some("-fa") => "--flash-attn".into(),
        _ => argument,
    })
}

/// [`serve`] as a program: says on standard error why it failed.
///
/// The exit code is 0 after a signal, 1 after a failure, 2 where the arguments ask for what cannot be.
pub fn run(arguments: FakeExporterArguments) -> ExitCode {
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "fake-exporter: {error}");
            ExitCode::from(if error.is_misuse() { 2 } else { 1 })
        }
    }
}

/// Serves until SIGTERM or SIGINT. Says `listening on http://…` on standard output when it is ready.
///
/// # Errors
/// It did not start, or did not end well.
pub fn serve(arguments: FakeExporterArguments) -> Result<(), ServeError> {
    if let Some(parent) = arguments.exit_with_parent {
        end_with(parent)?;
    }
    let address = SocketAddr::new(arguments.host, arguments.port);
    let server = Arc::new(Server::new(decoder(arguments)?));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(listen(server, address));
    // A generation that is under way has been told to stop, and takes one evaluation to notice.
    runtime.shutdown_timeout(GRACE);
    result
}

/// Has the kernel send SIGTERM here when the thread that started this process ends (prctl(2), `PR_SET_PDEATHSIG`).
fn end_with(parent: i32) -> Result<(), std::io::Error> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    // It may have ended before it could be asked for.
    match rustix::process::getppid() {
        Some(actual) if actual.as_raw_pid() == parent => Ok(()),
        _ => Err(std::io::Error::other(format!("the parent process {parent} has ended already"))),
    }
}

fn decoder(arguments: FakeExporterArguments) -> Result<Decoder, ServeError> {
    let brain = brain(&arguments)?;
    let cells = cells(&arguments, &*brain)?;
    if let Some(path) = arguments.slot_save_path.as_ref().filter(|path| !path.is_dir()) {
        return Err(ServeError::SlotDirectory { path: path.clone() });
    }
    let reserve = match arguments.reserve {
        ReserveChoice::Now => Reserve::Now,
        ReserveChoice::Touch if arguments.memory.can_reserve_on_touch() => Reserve::OnTouch,
        ReserveChoice::Touch => return Err(ServeError::ReserveOnTouch { memory: arguments.memory }),
    };
    let guard = match arguments.guard {
        GuardChoice::None => Guard::None,
        GuardChoice::Region => Guard::Region,
        GuardChoice::Tensor => Guard::Tensor,
    };
    let settings = Settings {
        cells,
        type_k: arguments.type_k,
        type_v: arguments.type_v,
        flash_attention: arguments.flash_attn,
        slot_directory: arguments.slot_save_path,
        sharing: arguments.sharing,
        compare: arguments.compare,
        share_lifetime: Duration::from_secs(arguments.share_lifetime),
        memory: arguments.memory.source(reserve),
        guard,
        misbehaviour: arguments.misbehave,
    };
    Ok(Decoder::new(brain, settings)?)
}

fn brain(arguments: &FakeExporterArguments) -> Result<Arc<dyn Brain>, ServeError> {
    if !arguments.checker {
        return Ok(Arc::new(ModelBrain::open(arguments.model.as_deref())?));
    }
    let inexact = [arguments.type_k, arguments.type_v].into_iter().find(|tensor_type| tensor_type.is_quantized());
    match inexact {
        Some(tensor_type) => Err(ServeError::InexactType { tensor_type }),
        None => Ok(Arc::new(CheckerBrain::new(arguments.layers, arguments.k_width, arguments.v_width))),
    }
}

fn cells(arguments: &FakeExporterArguments, brain: &dyn Brain) -> Result<u32, ServeError> {
    let n_ctx_train = brain.n_ctx_train();
    match arguments.ctx_size {
        0 if arguments.checker => Ok(CHECKER_CELLS),
        0 => Ok(n_ctx_train),
        ctx_size @ 1 => Err(ServeError::ContextTooSmall { ctx_size }),
        ctx_size if ctx_size > n_ctx_train => Err(ServeError::ContextTooLarge { ctx_size, n_ctx_train }),
        ctx_size => Ok(ctx_size),
    }
}

async fn listen(server: Arc<Server>, address: SocketAddr) -> Result<(), ServeError> {
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Whoever started us may not care, and have closed standard output.
    let _ = writeln!(std::io::stdout(), "listening on http://{}", listener.local_addr()?);

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let app = router(Arc::clone(&server));
    // A token that waits for the acknowledgement of the one before comes up to 40 ms late (tcp(7), TCP_NODELAY).
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    let serving = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let mut serving = tokio::spawn(serving.into_future());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut serving => return Ok(ended.map_err(std::io::Error::other)??),
    }
    server.stop();
    let _ = stop.send(());
    // A client that neither reads nor closes must not keep us.
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(())
}

fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is either on or off"),
    }
}
