//! The same peer as the ones in C and in Python, with this library.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvshare::header::Header;
use kvshare::layout::{Geometry, Part, TensorType};
use kvshare::map::MapOptions;
use kvshare::memory::Memfd;
use kvshare::provider::{Arguments, AssumedCache, run_with};
use kvshare::rows::{MappedCache, RowsError, allocate};
use kvshare::wire::connect;

const WIDTH: u64 = 4;
const CELLS: u64 = 16;

/// The program: `decode SOCKET`, or `provide` and a provider's arguments.
///
/// # Panics
/// Where a test cannot go on.
pub fn run(role: &OsStr, arguments: &[OsString]) -> ExitCode {
    match role.to_str() {
        Some("decode") => decode(arguments[0].as_ref()),
        Some("provide") => provide(arguments),
        _ => panic!("no such role: {}", role.display()),
    }
    ExitCode::SUCCESS
}

fn row(part: Part, token: i32, position: u64) -> Vec<f32> {
    let half = if part == Part::V { 0.5 } else { 0.0 };
    (0..WIDTH).map(|channel| token as f32 * 100.0 + position as f32 + channel as f32 / 4.0 + half).collect()
}

fn decode(socket: &Path) {
    let layout = Geometry::uniform(1, WIDTH, WIDTH, CELLS, TensorType::F32).layout().expect("a layout");
    let header = Header::describe(&layout, None, None);
    let descriptors = allocate(&header, &Memfd::new(), "our-cache").expect("memory");
    let deadline = Instant::now() + Duration::from_secs(60);
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    let connection = connect(socket, deadline).expect("somebody listens");
    connection.send(&header.to_json(), &borrowed, deadline).expect("it is sent");
    let cache = MappedCache::map(&header, &descriptors, &MapOptions::default()).expect("a cache");
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let tokens = line.split_whitespace().map(|word| word.parse().expect("a token"));
        let is_right = (0..).zip(tokens).all(|(position, token)| holds(&cache, position, token).expect("a row"));
        println!("{}", if is_right { "right" } else { "wrong" });
    }
}

fn holds(cache: &MappedCache, position: u64, token: i32) -> Result<bool, RowsError> {
    let (mut k, mut v) = ([0.0; WIDTH as usize], [0.0; WIDTH as usize]);
    cache.k(0)?.read_f32(position, &mut k)?;
    cache.v(0)?.read_f32(position, &mut v)?;
    Ok(k[..] == row(Part::K, token, position) && v[..] == row(Part::V, token, position))
}

fn provide(arguments: &[OsString]) {
    let arguments = Arguments::parse(arguments.iter().cloned()).expect("a provider's arguments");
    let result = run_with(arguments, &AssumedCache::default(), |prefill| {
        for (position, token) in (0..).zip(prefill.tokens) {
            prefill.cache.k_mut(0)?.write_f32(position, &row(Part::K, *token, position))?;
            prefill.cache.v_mut(0)?.write_f32(position, &row(Part::V, *token, position))?;
        }
        Ok::<i32, RowsError>(0)
    });
    println!("{}", result.expect("a cache that is filled"));
}
