//! `kvshare-cli serve` as a process, with its backend, its provider, and what it says.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Response;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

pub use crate::scene::Scene;

/// How long anything may take before a test gives up. No test passes or fails by how long something took.
const PATIENCE: Duration = Duration::from_secs(300);

/// What every line has that says how a handoff went.
pub const REPORT: &str = " prompt tokens: ";

/// A running server.
pub struct Serving {
    process: Child,
    address: String,
    lines: Arc<Mutex<Vec<String>>>,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Serving {
    /// Starts `command` and waits until it listens. Its lines are collected where its standard error is a pipe.
    ///
    /// # Panics
    /// It does not.
    pub fn start(mut command: Command) -> Self {
        let mut process = command.spawn().expect("the server starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(pipe) = process.stderr.take() {
            collect(pipe, Arc::clone(&lines));
        }
        let said = Arc::new(Mutex::new(Vec::new()));
        collect(process.stdout.take().expect("a pipe"), Arc::clone(&said));
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
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

    /// Sends these bytes and returns all that comes back.
    ///
    /// # Panics
    /// Where a test cannot go on.
    pub fn raw(&self, request: &str) -> String {
        let address = self.address.strip_prefix("http://").expect("an address");
        let mut connection = std::net::TcpStream::connect(address).expect("the server listens");
        connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        connection.write_all(request.as_bytes()).expect("it is sent");
        let mut reply = String::new();
        connection.read_to_string(&mut reply).expect("an answer");
        reply
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

    /// What begins with `hybrid:`, as [`lines_until`](Self::lines_until). A llama-server, which has the same standard error,
    /// ends not every write with a newline, so it may follow on a line of that one's.
    ///
    /// # Panics
    /// It does not say `words`.
    pub fn hybrid_until(&self, words: &str) -> Vec<String> {
        let lines = self.lines_until(words);
        lines.iter().filter_map(|line| Some(line[line.find("hybrid:")?..].to_owned())).collect()
    }

    /// What it itself has to complain of in [`lines_until`](Self::lines_until) `words`: all but how handoffs went, and that
    /// its backend is started again.
    ///
    /// # Panics
    /// It does not say `words`.
    pub fn complaints_until(&self, words: &str) -> Vec<String> {
        let is_ours = |line: &str| line.starts_with("hybrid: ") || line.starts_with("serve: ");
        let is_news = |line: &str| line.contains(REPORT) || line.ends_with("it is started again");
        let lines = self.lines_until(words);
        lines.into_iter().filter(|line| is_ours(line) && !is_news(line)).collect()
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

    /// The unix sockets that it has open.
    ///
    /// # Panics
    /// It is gone.
    pub fn unix_sockets(&self) -> usize {
        let process = Path::new("/proc").join(self.process.id().to_string());
        let all = std::fs::read_to_string(process.join("net/unix")).expect("the unix sockets of all");
        let inodes: Vec<_> = all.lines().filter_map(|line| line.split_whitespace().nth(6)).collect();
        let entries = std::fs::read_dir(process.join("fd")).expect("the server's descriptors");
        let links = entries.filter_map(|entry| entry.ok()?.path().read_link().ok());
        let is_unix = |link: &Path| {
            let text = link.to_string_lossy();
            let inode = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            inode.is_some_and(|inode| inodes.contains(&inode))
        };
        links.filter(|link| is_unix(link)).count()
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

fn collect(pipe: impl Read + Send + 'static, lines: Arc<Mutex<Vec<String>>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}

fn text(lines: &Mutex<Vec<String>>) -> Vec<String> {
    lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
