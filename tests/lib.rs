//! What the tests share: a decoder and a provider as processes of their own, and the handoffs between them.

#[path = "death/client.rs"]
pub mod client;
#[path = "eyes.rs"]
pub mod eyes;
#[path = "fetched.rs"]
pub mod fetched;
#[path = "hostile_peer.rs"]
pub mod hostile_peer;
#[path = "meddler.rs"]
pub mod meddler;
#[path = "memory_kinds.rs"]
pub mod memory_kinds;
#[path = "peers/ours.rs"]
pub mod our_peer;
#[path = "scene.rs"]
pub mod scene;
#[path = "serving.rs"]
pub mod serving;
#[path = "smollm2_file.rs"]
pub mod smollm2;
#[path = "spy.rs"]
pub mod spy;
#[path = "terminal.rs"]
pub mod terminal;
#[path = "death/traces.rs"]
pub mod traces;
#[path = "unkillable.rs"]
pub mod unkillable;
#[path = "death/writer.rs"]
pub mod writer;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kvshare::handoff::ProviderProgram;
use kvshare_cli::cycle::{Completion, Cycle, CycleError, DecoderClient};
use kvshare_cli::decoder_process::DecoderProcess;

/// A running decoder, a provider to start, and the directory where they meet.
pub struct Stage {
    /// The handoffs.
    pub cycle: Cycle,
    /// The decoder's process.
    pub decoder: DecoderProcess,
    runtime: tokio::runtime::Runtime,
    // Declared last, so that it goes when nobody uses it any more.
    directory: tempfile::TempDir,
}

impl Stage {
    /// Starts `program fake-exporter` with `decoder` arguments; its provider will be `program reference-provider` with
    /// `provider` arguments. Both use `model`, or the embedded one.
    ///
    /// # Panics
    /// Where a test cannot go on: the decoder does not start.
    pub fn start(program: &str, model: Option<&Path>, decoder: &[&str], provider: &[&str]) -> Self {
        let directory =
            tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().expect("a directory");
        let model = model.map_or_else(|| embedded_model(directory.path()), Path::to_owned);
        let mut arguments = vec!["fake-exporter".into(), "--port".into(), "0".into()];
        arguments.extend(["--slot-save-path".into(), directory.path().into()]);
        if !decoder.contains(&"--checker") {
            arguments.extend(["--model".into(), model.clone().into()]);
        }
        arguments.extend(decoder.iter().map(Into::into));
        let decoder = DecoderProcess::start(program.as_ref(), arguments).expect("the decoder starts");
        let mut reference = ProviderProgram::new(program, model);
        reference.leading_arguments = ["reference-provider"].iter().chain(provider).map(Into::into).collect();
        let client = DecoderClient::new(decoder.address());
        let cycle = Cycle { decoder: client, provider: reference, slot_directory: directory.path().to_owned() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { cycle, decoder, runtime: runtime.expect("a runtime"), directory }
    }

    /// Waits for a call.
    pub fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }

    /// The tokens of one user message by the model's template.
    ///
    /// # Panics
    /// The decoder does not say.
    pub fn chat_tokens(&self, message: &str) -> Vec<i32> {
        self.wait(async {
            let prompt = self.cycle.decoder.apply_template(message).await.expect("a prompt");
            self.cycle.decoder.tokenize(&prompt).await.expect("tokens")
        })
    }

    /// Empties the slot, hands over all of `tokens` but the last by `route`, and completes them greedily.
    ///
    /// # Errors
    /// The handoff's.
    ///
    /// # Panics
    /// The decoder fails at what is not the handoff.
    pub fn complete_by(&self, route: Route, tokens: &[i32], most: u32) -> Result<Completion, CycleError> {
        let handed_over = &tokens[..tokens.len() - 1];
        self.wait(async {
            self.cycle.decoder.erase().await.expect("an empty slot");
            match route {
                Route::Shared => {
                    self.cycle.share(handed_over, |_| {}).await?;
                }
                Route::File => {
                    self.cycle.restore(handed_over, |_| {}).await?;
                }
                Route::None => {}
            }
            Ok(self.cycle.decoder.complete(tokens, most).await.expect("a completion"))
        })
    }

    /// What lies in the slot directory, but for the model.
    ///
    /// # Panics
    /// The directory cannot be read.
    pub fn leftovers(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the slot directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name != EMBEDDED_NAME).collect()
    }

    /// How many descriptors the decoder has open, but for sockets: its HTTP connections come and go.
    ///
    /// # Panics
    /// The decoder is gone.
    pub fn decoder_descriptors(&self) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.decoder.id())).expect("the decoder's descriptors");
        let links = entries.filter_map(|entry| entry.ok()?.path().read_link().ok());
        links.filter(|link| !link.to_string_lossy().starts_with("socket:")).count()
    }
}

/// How a prompt's cache gets to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By descriptor.
    Shared,
    /// Through a state file.
    File,
    /// Not at all.
    None,
}

const EMBEDDED_NAME: &str = "kvshare-tiny.gguf";

/// The embedded model as a file in `directory`.
fn embedded_model(directory: &Path) -> PathBuf {
    let path = directory.join(EMBEDDED_NAME);
    std::fs::write(&path, fake_exporter::model::EMBEDDED_GGUF).expect("the model is written");
    path
}

/// A file of `tests/data/samples`.
pub fn sample(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data/samples")).join(path)
}
