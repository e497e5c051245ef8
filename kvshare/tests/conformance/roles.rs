//! The other processes of the suite: this program again, as a provider that does well or badly, as a decoder that is about
//! to die, or as faulty code that writes where it must not.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kvshare::handoff::ProviderProgram;
use kvshare::map::{Access, Extent, Guard, MapError, MapOptions, MappedRegion};
use kvshare::provider;
use kvshare::rows::{MappedCache, RowsError};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::decoder::Decoder;
use crate::kinds::{self, Kind};
use crate::promises::READ_WRITE;
use crate::{device_work, refusals};

const ROLE: &str = "KVSHARE_CONFORMANCE_ROLE";

/// The model whose shape the caches of the suite have: 8 layers with rows of 64 channels.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");
pub const LAYERS: u32 = 8;
pub const WIDTH: u64 = 64;

pub const CELLS: u64 = 32;

/// What a lingering provider waits for in the last K row of layer 0, and a late one writes there last.
pub const LEAVE: [f32; WIDTH as usize] = [0.5; WIDTH as usize];

/// The part of one that maps a region and accesses it, and says what came of it.
pub const ACCESSES: &str = "accesses";
/// What it says where all went well.
pub const GRANTED: &str = "granted";

/// How a process ends that strays and survives it.
pub const SURVIVED: i32 = 42;

/// Plays the part that this process was started for, if it was.
pub fn play() -> Option<ExitCode> {
    Some(match std::env::var(ROLE).ok()?.as_str() {
        "good" => provider::run(|job| fill(job.cache, job.tokens).map(|()| 0)),
        "endless" => provider::run(|job| -> Result<i32, RowsError> {
            loop {
                fill(job.cache, job.tokens)?;
            }
        }),
        "lingering" => provider::run(|job| {
            fill(job.cache, job.tokens)?;
            let mut last = vec![0.0; WIDTH as usize];
            while last != LEAVE {
                std::thread::yield_now();
                job.cache.k(0)?.read_f32(CELLS - 1, &mut last)?;
            }
            Ok::<_, RowsError>(0)
        }),
        "late" => provider::run(|job| -> Result<i32, RowsError> {
            fill(job.cache, job.tokens)?;
            println!(r#"{{"n_tokens": {}, "argmax": 0}}"#, job.tokens.len());
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                job.cache.k_mut(0)?.write_f32(0, &LEAVE)?;
                job.cache.k_mut(0)?.write_f32(0, &row(0, 0, job.tokens))?;
            }
            job.cache.k_mut(0)?.write_f32(CELLS - 1, &LEAVE)?;
            // It has said its result already.
            std::process::exit(0);
        }),
        "dying" => provider::run(|job| -> Result<i32, RowsError> {
            job.cache.k_mut(0)?.write_f32(0, &row(0, 0, job.tokens))?;
            // It has no time to end its CPU access, or to say anything.
            std::process::abort();
        }),
        "fencing" => provider::run(|job| {
            fill(job.cache, job.tokens)?;
            device_work::leave_work_behind(job.cache)?;
            Ok::<_, RowsError>(0)
        }),
        ACCESSES => {
            print!("{}", access().map_or_else(|error| error.to_string(), |()| GRANTED.to_owned()));
            ExitCode::SUCCESS
        }
        order => match order.split_once(' ').expect("a part and what it needs") {
            ("decoder", names) => decode(names),
            ("refusals", kind) => refusals::leave_nothing(&kinds::named(kind)),
            ("stray", place) => {
                write_stray(place);
                ExitCode::from(SURVIVED as u8)
            }
            (part, _) => panic!("nobody plays {part}"),
        },
    })
}

/// A provider that plays a part.
pub fn provider(role: &str) -> ProviderProgram {
    let mut program = ProviderProgram::new(this_program(), MODEL);
    program.environment.push((ROLE.into(), role.into()));
    program
}

/// This program again, playing a part, with a region as its standard input.
pub fn with_memory(role: &str, memory: OwnedFd) -> Command {
    let mut command = player(role);
    command.stdin(Stdio::from(memory));
    command
}

/// This program again, playing a part.
pub fn player(role: &str) -> Command {
    let mut command = Command::new(this_program());
    command.env(ROLE, role);
    command
}

/// A decoder with memory of this kind that sends its cache to `socket` and then does nothing. Its memory is named `name`.
pub fn decoder(kind: &Kind, name: &str, socket: &Path) -> Child {
    player(&format!("decoder {} {name} {}", kind.name, socket.display())).spawn().expect("a second process")
}

fn decode(names: &str) -> ExitCode {
    let [kind, name, socket] = names.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("three names: {names}") };
    let decoder = Decoder::named(&kinds::named(kind), name);
    decoder.send(Path::new(socket));
    loop {
        std::thread::park();
    }
}

/// Maps a region that is standard input, and begins and ends an access, all within a moment.
fn access() -> Result<(), MapError> {
    let size = kvshare::fd::size(std::io::stdin()).expect("a region").expect("it has a size");
    let region = MappedRegion::map(std::io::stdin(), Extent { offset: 0, size }, &[], &READ_WRITE)?;
    region.begin_cpu_access_until(Access::ReadWrite, Instant::now() + Duration::from_millis(300))?.end()
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a program knows its own path")
}

fn fill(cache: &mut MappedCache, tokens: &[i32]) -> Result<(), RowsError> {
    for layer in 0..LAYERS {
        for position in 0..tokens.len() as u64 {
            let row = row(layer, position, tokens);
            cache.k_mut(layer)?.write_f32(position, &row)?;
            cache.v_mut(layer)?.write_f32(position, &row)?;
        }
    }
    Ok(())
}

/// What a provider writes: numbers that f32 holds exactly, different in every row.
pub fn row(layer: u32, position: u64, tokens: &[i32]) -> Vec<f32> {
    let token = tokens[position as usize];
    (0..WIDTH).map(|channel| (channel + position) as f32 + layer as f32 * 128.0 + token as f32 / 64.0).collect()
}

/// Two tensors of a page less 96 bytes each, with a page between them.
pub fn tensors(page: u64) -> [Extent; 2] {
    [Extent { offset: 0, size: page - 96 }, Extent { offset: 2 * page, size: page - 96 }]
}

/// How a process ends that maps four pages of `memory` with guard pages and writes one byte, `distance` bytes from the
/// region's byte `offset`.
pub fn end_of_stray(memory: impl AsFd, page: u64, guard: Guard, offset: u64, distance: i64) -> ExitStatus {
    let memory = memory.as_fd().try_clone_to_owned().expect("a descriptor");
    with_memory(&format!("stray {page} {guard:?} {offset} {distance}"), memory)
        .stderr(Stdio::null())
        .status()
        .expect("a second process")
}

/// Whether it was a stray access that ended the process.
pub fn faulted(end: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    end.signal() == Some(Signal::SEGV.as_raw())
}

fn write_stray(order: &str) {
    let no_core_file = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, no_core_file).expect("a lower limit is always granted");
    let words: Vec<&str> = order.split(' ').collect();
    let number = |index: usize| words[index].parse::<i64>().expect("a number");
    let (page, offset, distance) = (number(0) as u64, number(2) as u64, number(3));
    let guard = if words[1] == "Tensor" { Guard::Tensor } else { Guard::Region };
    let options = MapOptions { access: Access::ReadWrite, guard, ..MapOptions::default() };
    let whole = Extent { offset: 0, size: 4 * page };
    let mut region = MappedRegion::map(std::io::stdin(), whole, &tensors(page), &options).expect("a mapping");
    let start = region.view_mut(offset, 1).expect("a byte of a tensor").as_mut_ptr();
    // SAFETY: deliberately none: it is what guard pages are for. The byte is one of a region that the suite made for this
    // test alone, or one that no process can write.
    unsafe { start.wrapping_offset(distance as isize).write_volatile(7) };
}
