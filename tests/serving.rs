//! `kvshare-cli serve` as a process, with its backend, its provider, and what it says.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Response;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long anything may take before a test gives up. No test passes or fails by how long something took.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a test has prepared for its server: a directory with a model, a backend and a provider.
///
/// The provider runs the reference provider, unless [`break_provider`](Self::break_provider) says otherwise.
pub struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    /// A backend and a provider that are `program`'s.
    ///
    /// # Panics
    /// As everything here: where a test cannot go on.
    pub fn new(program: &str) -> Self {
        Self::with_backend(program, &[])
    }

    /// The same, the backend with further arguments.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn with_backend(program: &str, backend: &[&str]) -> Self {
        let only_ours = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(only_ours).tempdir().expect("a directory");
        let scene = Self { directory };
        std::fs::write(scene.model(), fake_exporter::model::EMBEDDED_GGUF).expect("a model");
        scene.script("backend", &format!("exec '{program}' fake-exporter \"$@\" {}", backend.join(" ")));
        let broken = scene.path("broken");
        let broken = broken.display();
        let provider =
            format!("[ -f '{broken}' ] && exec /bin/sh '{broken}' \"$@\"\nexec '{program}' reference-provider \"$@\"");
        scene.script("provider", &provider);
        scene
    }

    /// A path in the scene's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The model.
    pub fn model(&self) -> PathBuf {
        self.path("kvshare-tiny.gguf")
    }

    /// The provider, for a command line.
    pub fn provider(&self) -> String {
        self.path("provider").display().to_string()
    }

    /// Has the provider be this shell script from now on.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn break_provider(&self, script: &str) {
        std::fs::write(self.path("broken"), script).expect("a script");
    }

    /// Has it be the reference provider again.
    pub fn mend_provider(&self) {
        let _ = std::fs::remove_file(self.path("broken"));
    }

    fn script(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), format!("#!/bin/sh\n{text}\n")).expect("a script");
        std::fs::set_permissions(self.path(name), Permissions::from_mode(0o700)).expect("a program");
    }

    /// The command `program serve` with this scene's model, on a free port, where `arguments` name no others, and with a
    /// directory for temporary files of its own.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        std::fs::create_dir_all(self.path("tmp")).expect("a directory");
        let mut command = Command::new(program);
        command.arg("serve");
        for (flag, value) in [("--model", self.model()), ("--port", PathBuf::from("0"))] {
            if !arguments.contains(&flag) {
                command.arg(flag).arg(value);
            }
        }
        command.args(arguments);
        for name in ["ONEBIT_HYBRID_PREFILL", "ONEBIT_HYBRID_ELFS", "ONEBIT_KV_SHARE", "LLAMA_API_KEY"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.path("tmp")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What the server has left in its directory for temporary files.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("tmp")).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// Starts the server with this scene's backend and provider, and waits until it listens.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn serve(&self, program: &str, arguments: &[&str]) -> Serving {
        let (provider, backend) = (self.provider(), self.path("backend").display().to_string());
        let first = ["--prefill-provider", &provider, "--backend", &backend];
        Serving::start(self.command(program, &[&first, arguments].concat()))
    }
}

/// A running server.
pub struct Serving {
    process: Child,
    address: String,
    lines: Arc<Mutex<Vec<String>>>,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Serving {
    /// Starts `command` and waits until it listens.
    ///
    /// # Panics
    /// It does not.
    pub fn start(mut command: Command) -> Self {
        let mut process = command.spawn().expect("the server starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        collect(process.stderr.take(), Arc::clone(&lines));
        let said = Arc::new(Mutex::new(Vec::new()));
        collect(process.stdout.take(), Arc::clone(&said));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(PATIENCE).build();
        let (runtime, client) = (runtime.expect("a runtime"), client.expect("a client"));
        let mut serving = Self { process, address: String::new(), lines, client, runtime };
        eventually("the server listens", || {
            let address = text(&said).first()?.strip_prefix("listening on ")?.to_owned();
            serving.address = address;
            Some(())
        });
        serving
    }

    /// Where it listens, such as `http://127.0.0.1:8080`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for a call.
    pub fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }

    /// Runs a call beside the test.
    pub fn spawn<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(call)
    }

    /// A request with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.post_bytes(path, body.to_string())
    }

    /// A request with any body.
    pub fn post_bytes(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.address)).body(body)
    }

    /// A request without a body.
    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.get(format!("{}{path}", self.address))
    }

    /// Asks one question of the embedded model.
    ///
    /// # Panics
    /// There is no answer.
    pub fn ask(&self, question: &str) -> Reply {
        self.reply(self.post("/v1/chat/completions", &chat(question)))
    }

    /// Sends a request and takes the whole answer.
    ///
    /// # Panics
    /// There is none.
    pub fn reply(&self, request: reqwest::RequestBuilder) -> Reply {
        self.wait(async { Reply::of(request.send().await.expect("an answer")).await })
    }

    /// A metric's value.
    ///
    /// # Panics
    /// It is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.reply(self.get("/metrics")).body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(ToOwned::to_owned));
        line.unwrap_or_else(|| panic!("{name} in\n{text}")).parse().expect("a number")
    }

    /// What the server has said on standard error since the last call, by which it is certain to have said `words`.
    ///
    /// # Panics
    /// It does not say them.
    pub fn lines_until(&self, words: &str) -> Vec<String> {
        eventually(words, || text(&self.lines).iter().any(|line| line.contains(words)).then_some(()));
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lines that begin with `hybrid:`, as [`lines_until`](Self::lines_until).
    ///
    /// # Panics
    /// It does not say `words`.
    pub fn hybrid_until(&self, words: &str) -> Vec<String> {
        let lines = self.lines_until(words);
        lines.into_iter().filter(|line| line.starts_with("hybrid:")).collect()
    }

    /// The processes that the server started and that still run.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.process.id())
    }

    /// The descriptors that it has open, but for sockets: connections come and go.
    ///
    /// # Panics
    /// It is gone.
    pub fn descriptors(&self) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("the server's descriptors");
        let links = entries.filter_map(|entry| entry.ok()?.path().read_link().ok());
        links.filter(|link| !link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// The server is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the server runs");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end.
    pub fn ended(&mut self) -> ExitStatus {
        eventually("the server ends", || self.process.try_wait().expect("a child"))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        if std::thread::panicking() {
            eprintln!("{}", text(&self.lines).join("\n"));
        }
        let deadline = Instant::now() + Duration::from_secs(15);
        while let Ok(None) = self.process.try_wait()
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The header `x-kvshare-handoff`.
    pub handoff: String,
    /// The header `retry-after`.
    pub retry_after: Option<String>,
    /// The body.
    pub body: String,
}

impl Reply {
    async fn of(response: Response) -> Self {
        let header = |name: &str| Some(response.headers().get(name)?.to_str().expect("text").to_owned());
        let (handoff, retry_after) = (header("x-kvshare-handoff").unwrap_or_default(), header("retry-after"));
        Self { status: response.status().as_u16(), handoff, retry_after, body: response.text().await.expect("a body") }
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The generated text of a chat or a completion.
    ///
    /// # Panics
    /// There is none.
    pub fn text(&self) -> String {
        let choice = self.json()["choices"][0].clone();
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        text.unwrap_or_else(|| panic!("a text in {self:?}")).to_owned()
    }
}

/// The body of a chat completion of one question.
pub fn chat(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "max_tokens": 30, "temperature": 0})
}

/// Waits until `look` finds something.
///
/// # Panics
/// It does not.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes whose parent is `parent`, but for those that are dead and not yet waited for.
pub fn children_of(parent: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten();
    let of_tasks = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let all: String = of_tasks.chain([children]).collect::<Vec<_>>().join(" ");
    let mut ids: Vec<u32> = all.split_whitespace().filter_map(|id| id.parse().ok()).filter(|id| runs(*id)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Whether a process is there and not dead.
pub fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses (proc_pid_stat(5)).
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn collect(pipe: Option<impl Read + Send + 'static>, lines: Arc<Mutex<Vec<String>>>) {
    let pipe = pipe.expect("a pipe");
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}

fn text(lines: &Mutex<Vec<String>>) -> Vec<String> {
    lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
