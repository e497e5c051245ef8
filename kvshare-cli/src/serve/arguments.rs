//! The command line of `serve`, and the environment names beside it.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::log::LogFormat;
use super::refusals::{RefusedFlag, check_backend_flags};

/// Serves a model through its llama-server, with prompts prefilled by another program
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli serve -m model.gguf --prefill-provider ./provider -- -c 8192 -fa on
  kvshare-cli serve -m model.gguf --prefill-provider ./provider --kv-share \\
      --backend-url http://127.0.0.1:8081 --slot-dir /run/user/1000/slots

ONEBIT_KV_SHARE, set to anything but nothing (0 included), does what --kv-share does.

Exit status: 0 after SIGTERM or SIGINT, 1 failed, 2 misuse, 5 --print-backend")]
pub struct ServeArguments {
    /// The model, a GGUF, for the backend and the provider
    #[arg(short, long, value_name = "FILE")]
    pub model: PathBuf,
    /// The program that prefills prompts; without one the backend does
    #[arg(long, value_name = "PROGRAM", env = "ONEBIT_HYBRID_PREFILL")]
    prefill_provider: Option<OsString>,
    /// Start the provider once, and tell it of each prompt: it keeps the cache mapped and its model loaded, and its word that it
    /// has stopped writing is believed
    #[arg(long)]
    pub resident_provider: bool,
    /// Where the provider's kernels are
    #[arg(long, value_name = "DIR", env = "ONEBIT_HYBRID_ELFS")]
    elfs: Option<OsString>,
    /// How long a prefill may take
    #[arg(long, value_name = "SECONDS", env = "ONEBIT_HYBRID_PREFILL_TIMEOUT_S", default_value = "600", value_parser = seconds)]
    prefill_timeout: Duration,
    /// A file that is locked (flock) while the provider runs, for those who share its device
    #[arg(long, value_name = "FILE")]
    pub provider_lock: Option<PathBuf>,
    /// Hand the cache over by descriptor, where the backend can
    #[arg(long)]
    kv_share: bool,
    /// The backend to start, a llama-server
    #[arg(long, value_name = "PROGRAM", default_value = "llama-server")]
    pub backend: PathBuf,
    /// Use the backend that runs here, started with -np 1 and --slot-save-path; its slot is emptied
    #[arg(long, value_name = "URL", conflicts_with = "backend", requires = "slot_dir")]
    pub backend_url: Option<String>,
    /// The running backend's slot directory, ours and of mode 0700
    #[arg(long, value_name = "DIR", requires = "backend_url")]
    pub slot_dir: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// The key that clients must send, or several with commas between, any of which will do; the backend is guarded, too
    #[arg(long, value_name = "KEY", env = "LLAMA_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// How many requests may wait for the slot; one more is answered 503
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub queue: usize,
    /// How long to wait for the slot, and for the backend's next byte
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub timeout: Duration,
    /// The longest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_body: u16,
    /// The form of the lines on standard error
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Refused: the backend's command is made while serving
    #[arg(long)]
    pub print_backend: bool,
    #[command(flatten)]
    refused: RefusedArguments,
    /// Flags for the backend that is started
    #[arg(last = true, value_name = "BACKEND FLAGS", conflicts_with = "backend_url")]
    pub backend_flags: Vec<OsString>,
}

/// Flags of llama-server and of the seeds' serve that are refused by name wherever they stand.
#[derive(Clone, Debug, Args)]
struct RefusedArguments {
    #[arg(long, hide = true, value_name = "N")]
    parallel: Option<OsString>,
    #[arg(long, hide = true)]
    mtp: bool,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    dflash: Option<OsString>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    mmproj: Option<OsString>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    moe_slots: Option<OsString>,
    #[arg(long, hide = true)]
    embedding: bool,
    #[arg(long, hide = true)]
    reranking: bool,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    pm: Option<OsString>,
}

impl ServeArguments {
    /// Looks for flags that a handoff does not bear, before and after the `--`.
    ///
    /// # Errors
    /// The first one.
    pub fn check_refused(&self) -> Result<(), RefusedFlag> {
        let RefusedArguments { parallel, mtp, dflash, mmproj, moe_slots, embedding, reranking, pm } = &self.refused;
        let given = [
            ("--mtp", *mtp),
            ("--dflash", dflash.is_some()),
            ("--mmproj", mmproj.is_some()),
            ("--moe-slots", moe_slots.is_some()),
            ("--embedding", *embedding),
            ("--reranking", *reranking),
            ("--pm", pm.is_some()),
        ];
        let mut flags: Vec<OsString> =
            given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name.into()).collect();
        flags.extend(parallel.iter().flat_map(|count| ["--parallel".into(), count.clone()]));
        flags.extend(self.backend_flags.iter().cloned());
        check_backend_flags(&flags)
    }

    /// The provider's program. An empty name is none.
    pub fn provider(&self) -> Option<PathBuf> {
        not_empty(&self.prefill_provider)
    }

    /// Where its kernels are.
    pub fn elfs(&self) -> Option<PathBuf> {
        not_empty(&self.elfs)
    }

    /// How long it may run.
    pub fn prefill_timeout(&self) -> Duration {
        self.prefill_timeout
    }

    /// Whether the shared route is on: by the flag, or by a variable that is set and not empty.
    pub fn shares(&self) -> bool {
        self.kv_share || std::env::var_os("ONEBIT_KV_SHARE").is_some_and(|value| !value.is_empty())
    }

    /// The keys as they were given, if any is demanded.
    pub fn api_keys(&self) -> Option<&str> {
        self.api_key.as_deref().filter(|keys| !keys.is_empty())
    }

    /// The key that we send ourselves: the first.
    pub fn api_key(&self) -> Option<&str> {
        self.api_keys().and_then(|keys| keys.split(',').find(|key| !key.is_empty()))
    }

    /// The most bytes of a request's body.
    pub fn max_body_bytes(&self) -> usize {
        usize::from(self.max_body) << 20
    }
}

fn not_empty(value: &Option<OsString>) -> Option<PathBuf> {
    value.as_ref().filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The longest time that can be asked for: a year.
const MOST_SECONDS: f64 = 365.0 * 24.0 * 3600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= MOST_SECONDS);
    value.map(Duration::from_secs_f64).ok_or_else(|| "it must be a number of seconds over 0, at most a year".to_owned())
}
