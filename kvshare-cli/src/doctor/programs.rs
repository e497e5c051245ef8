//! The programs around a handoff.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kvshare::fd::{Output, Program};

use super::{Check, State};

/// How long a program may take to say its version.
const LIMIT: Duration = Duration::from_secs(10);

/// A field of the answer to `action=share`, which every server that shares has in its program.
const SHARING: &[u8] = b"share_id";

pub(super) fn checks(llama_server: &Path) -> Vec<Check> {
    let mut checks =
        vec![version("llama-server", llama_server, "give its path with --llama-server, or serve with --backend-url")];
    if let Some(path) = found(llama_server) {
        checks.push(sharing(&path));
    }
    checks.push(version("python", Path::new("python3"), "only scripts in Python need it"));
    checks
}

fn version(name: &'static str, program: &Path, remedy: &str) -> Check {
    let Some(path) = found(program) else {
        return Check::new(name, State::Absent, format!("no {} in PATH", program.display())).remedy(remedy);
    };
    match first_line(&path) {
        Ok(line) => Check::new(name, State::Good, format!("{}: {line}", path.display())),
        Err(problem) => Check::new(name, State::Broken, format!("{}: {problem}", path.display()))
            .remedy(format!("{} --version shows what is wrong", path.display())),
    }
}

/// Where a program is: its path, or the first of that name in `PATH`.
fn found(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// What a program says to `--version`, which a llama-server does on standard error, among other lines.
fn first_line(program: &Path) -> Result<String, String> {
    let spawned = Program::new(program).args(["--version"]).stdout(Output::Pipe).stderr(Output::Pipe).spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    let (sender, texts) = mpsc::channel();
    for stream in [child.stdout.take(), child.stderr.take()] {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(read(stream)));
    }
    let status = match child.wait(Instant::now() + LIMIT) {
        Ok(Some(status)) => status,
        Ok(None) => return Err(format!("it did not say its version within {} s", LIMIT.as_secs())),
        Err(error) => return Err(error.to_string()),
    };
    // Not joined: a process that it left behind may hold the other end of a pipe for ever.
    let text: Vec<String> = (0..2).filter_map(|_| texts.recv_timeout(Duration::from_secs(1)).ok()).collect();
    let text = text.join("\n");
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let chosen = lines.clone().find(|line| line.to_ascii_lowercase().contains("version")).or_else(|| lines.next());
    match chosen {
        Some(line) if status.success() => Ok(line.chars().take(120).collect()),
        Some(line) => Err(format!("it ended with {status}: {}", line.chars().take(200).collect::<String>())),
        None => Err(format!("it said nothing and ended with {status}")),
    }
}

/// What a program says, as far as it is short.
fn read(stream: Option<OwnedFd>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let mut stream = File::from(stream);
        let _ = stream.by_ref().take(1 << 16).read_to_end(&mut bytes);
        // Read on, so that it never waits for a reader.
        let _ = io::copy(&mut stream, &mut io::sink());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a server knows how to share. It can be asked for real only while it serves a model; its program's file, and
/// the libraries beside it that hold the server, tell as much.
fn sharing(program: &Path) -> Check {
    let name = "llama-server shares";
    let resolved = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let beside = resolved.parent().and_then(|directory| directory.read_dir().ok()).into_iter().flatten().flatten();
    let is_server = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("lib") && name.contains("server") && name.contains(".so")
    };
    let libraries = beside.map(|entry| entry.path()).filter(|path| is_server(path));
    let knows = [resolved.clone()].into_iter().chain(libraries).any(|path| contains(&path, SHARING).unwrap_or(false));
    if knows {
        return Check::new(name, State::Good, "its program knows of share_id: it can hand its cache over in memory");
    }
    Check::new(name, State::Limited, "its program knows nothing of share_id, so handoffs go through a file")
        .remedy("use a llama-server with action=share, or none: the file route works with every one")
}

/// Whether a file has `wanted` in it, read in pieces.
fn contains(path: &Path, wanted: &[u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut kept = 0;
    loop {
        let count = file.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(false);
        }
        let filled = kept + count;
        if buffer[..filled].windows(wanted.len()).any(|window| window == wanted) {
            return Ok(true);
        }
        // What is looked for may lie across two pieces.
        kept = filled.min(wanted.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
}
