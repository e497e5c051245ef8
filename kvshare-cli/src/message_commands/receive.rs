//! `kvshare-cli recv`.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use kvshare::fd::{self, Facts, Kind, Truncation};
use kvshare::header::Header;
use kvshare::wire::{Limits, Listener, Message};
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, FdFlags};
use serde_json::{Value, json};

use super::{deadline, seconds};
use crate::output::{Failure, bytes_in_words, counted, print, print_bytes};

/// Bytes that are copied from memory into a file at once.
const PIECE: usize = 1 << 20;

/// Waits at a socket for a message, and prints it, saves it, or starts a program with it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli recv --socket run/kv.sock > header.json
  kvshare-cli recv --socket run/kv.sock --into received/
  kvshare-cli recv --socket run/kv.sock -- kvshare-cli inspect --layout {layout} --fds {fds}
  kvshare-cli recv --socket run/kv.sock -- sh -c 'my-provider --layout \"$KVSHARE_LAYOUT\" --fds \"$KVSHARE_FDS\"'

The socket's directory must be yours alone (mode 0700). PROGRAM takes this program's place: it inherits the descriptors,
and {layout} and {fds} in its arguments become the header's path and the descriptors' numbers.")]
pub struct ReceiveArguments {
    /// The socket's path; it is made now and removed after the message
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Copy the message into this directory: header.json, region-0.bin and so on, one file a descriptor
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "program")]
    into: Option<PathBuf>,
    /// Take the message even if its header is wrong, does not go with its descriptors, or memory is not sealed
    #[arg(long)]
    unchecked: bool,
    /// How long to wait for the peer, in seconds
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "60")]
    timeout: f64,
    /// Print what came as JSON instead of the header's bytes
    #[arg(long, conflicts_with = "program")]
    json: bool,
    /// A program to start with the descriptors, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn run(arguments: &ReceiveArguments) -> Result<(), Failure> {
    let message = receive(arguments)?;
    if !arguments.unchecked {
        check(&message)?;
    }
    if let Some((program, rest)) = arguments.program.split_first() {
        match start(program, rest, &message)? {}
    }
    if let Some(directory) = &arguments.into {
        save(directory, &message)?;
    }
    if arguments.json {
        return print(&format!("{:#}", as_json(&message)));
    }
    if arguments.into.is_none() {
        print_bytes(&message.header)?;
    }
    let (bytes, descriptors) = (message.header.len(), counted(message.descriptors.len() as u64, "descriptor"));
    note(&format!("received a header of {bytes} bytes with {descriptors}"));
    Ok(())
}

/// Says on standard error what standard output is not for.
fn note(words: &str) {
    // Whoever started us may have closed it; the message is there all the same.
    let _ = writeln!(std::io::stderr(), "{words}");
}

/// The socket is gone when this returns.
fn receive(arguments: &ReceiveArguments) -> Result<Message, Failure> {
    let deadline = deadline(arguments.timeout);
    let listener = Listener::bind(&arguments.socket).map_err(Failure::new)?;
    let connection = listener.accept(deadline).map_err(Failure::new)?;
    connection.receive(&Limits::default(), deadline).map_err(Failure::new)
}

fn check(message: &Message) -> Result<(), Failure> {
    let refused = |words: String| Failure::new(format!("{words} (--unchecked takes it all the same)"));
    let sizes = fd::sizes(&message.descriptors).map_err(Failure::new)?;
    let header = Header::parse(&message.header).and_then(|header| header.check_descriptors(&sizes));
    header.map_err(|error| refused(error.to_string()))?;
    match message.unsealed.first() {
        Some(index) => Err(refused(format!(
            "descriptor {index} of the message is memory that its sender can truncate; seal it with F_SEAL_SHRINK, \
             F_SEAL_GROW and F_SEAL_SEAL"
        ))),
        None => Ok(()),
    }
}

fn as_json(message: &Message) -> Value {
    let descriptor = |descriptor: &OwnedFd| match Facts::of(descriptor) {
        Ok(facts) => json!({
            "kind": facts.kind.to_string(), "name": facts.name, "size": facts.size,
            "sealed": matches!(fd::check_region(descriptor), Ok(Truncation::Impossible)),
        }),
        Err(error) => json!({"error": error.to_string()}),
    };
    let header = serde_json::from_slice(&message.header).unwrap_or(Value::Null);
    json!({"header": header, "descriptors": message.descriptors.iter().map(descriptor).collect::<Vec<_>>()})
}

/// Puts `program` in this one's place. Returns only if that fails.
fn start(program: &OsStr, arguments: &[OsString], message: &Message) -> Result<Infallible, Failure> {
    let system = |call: &str| {
        let call = call.to_owned();
        move |errno: Errno| Failure::new(format!("{call} failed: {errno}"))
    };
    // The header lies in memory as well, so that nothing is left on disk whatever the program does.
    let header = rustix::fs::memfd_create("kvshare-header", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
    File::from(header.try_clone().map_err(Failure::new)?).write_all(&message.header).map_err(Failure::new)?;
    for descriptor in message.descriptors.iter().chain([&header]) {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(system("fcntl F_SETFD"))?;
    }
    let layout = format!("/dev/fd/{}", header.as_raw_fd());
    let numbers: Vec<String> =
        message.descriptors.iter().map(|descriptor| descriptor.as_raw_fd().to_string()).collect();
    let fds = numbers.join(",");
    let filled = arguments.iter().map(|argument| fill(&fill(argument, "{layout}", &layout), "{fds}", &fds));
    let mut command = Command::new(program);
    command.args(filled).env("KVSHARE_LAYOUT", &layout).env("KVSHARE_FDS", &fds);
    let error = command.exec();
    Err(Failure::new(format!("cannot start {}: {error}", Path::new(program).display())))
}

/// `argument` with `name` replaced by `value`; what is no UTF-8 around it stays as it is.
fn fill(argument: &OsStr, name: &str, value: &str) -> OsString {
    let mut rest = argument.as_bytes();
    let mut filled = Vec::new();
    while let Some(place) = rest.windows(name.len()).position(|window| window == name.as_bytes()) {
        filled.extend_from_slice(&rest[..place]);
        filled.extend_from_slice(value.as_bytes());
        rest = &rest[place + name.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

fn save(directory: &Path, message: &Message) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let path = directory.join("header.json");
    std::fs::write(&path, &message.header).map_err(|error| failed(&path, error))?;
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        let path = directory.join(format!("region-{index}.bin"));
        let facts = Facts::of(descriptor).map_err(Failure::new)?;
        if !matches!(facts.kind, Kind::Memfd | Kind::RegularFile) {
            let kind = facts.kind;
            return Err(Failure::new(format!(
                "descriptor {index} of the message is a {kind}: only memfds and files can be copied"
            )));
        }
        let copied = copy(descriptor, &path).map_err(|error| failed(&path, error))?;
        note(&format!("{}: {}", path.display(), bytes_in_words(copied)));
    }
    Ok(())
}

/// Reads by `pread`: memory that shrinks meanwhile makes a shorter file and no signal.
fn copy(descriptor: &OwnedFd, path: &Path) -> Result<u64, std::io::Error> {
    let mut file = File::create(path)?;
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    loop {
        match rustix::io::pread(descriptor, &mut buffer, done) {
            Ok(0) => return Ok(done),
            Ok(count) => {
                file.write_all(&buffer[..count])?;
                done += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_wherever_they_stand() {
        let cases =
            [("{fds}", "3,4"), ("--fds={fds}", "--fds=3,4"), ("{fds}{fds}", "3,43,4"), ("{fd}", "{fd}"), ("", "")];
        for (argument, filled) in cases {
            assert_eq!(fill(OsStr::new(argument), "{fds}", "3,4"), filled);
        }
    }
}
