//! A provider that writes when a test wants it to: nonsense into every cell that it was lent.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::ExitCode;

use kvshare::header::Header;
use kvshare::map::{Access, MapOptions};
use kvshare::provider::{Arguments, Route};
use kvshare::rows::MappedCache;

use crate::meddler::{REACHED, SEEN};

/// What no model computes.
const NONSENSE: f32 = 777.0;

/// The program: `manner`, the directory of the test's files, and a provider's arguments on the shared route.
///
/// `before`: it writes nonsense into all cells, again and again, from when there is a file [`REACHED`] until there is a file
/// [`SEEN`]; then it does what the reference provider does. `after`: it does that first.
///
/// # Panics
/// Where a test cannot go on.
pub fn run(manner: &std::ffi::OsStr, directory: &Path, arguments: &[OsString]) -> ExitCode {
    let mut cache = map(arguments);
    let provide = || {
        let program = ["kvshare-cli", "reference-provider"].map(Into::into).into_iter();
        kvshare_cli::command_line::run(program.chain(arguments.iter().cloned()))
    };
    match manner.to_str() {
        Some("before") => {
            scribble(&mut cache, directory);
            drop(cache);
            provide()
        }
        Some("after") => {
            let code = provide();
            scribble(&mut cache, directory);
            code
        }
        _ => panic!("no such manner: {}", manner.display()),
    }
}

fn scribble(cache: &mut MappedCache, directory: &Path) {
    let seen = directory.join(SEEN);
    let layers = cache.layers().to_vec();
    loop {
        for planes in &layers {
            let rows = |width: u64| vec![NONSENSE; width as usize * planes.k.cells as usize];
            let (k, v) = (rows(planes.k.width), rows(planes.v.width));
            cache.k_mut(planes.layer).expect("a layer").write_f32(0, &k).expect("all cells");
            cache.v_mut(planes.layer).expect("a layer").write_f32(0, &v).expect("all cells");
        }
        std::fs::write(directory.join(REACHED), "").expect("a file");
        if seen.exists() {
            return;
        }
    }
}

/// The lent cache, mapped beside the reference provider's own mapping.
fn map(arguments: &[OsString]) -> MappedCache {
    let arguments = Arguments::parse(arguments.iter().cloned()).expect("a provider's arguments");
    let Route::Shared { layout, fds } = arguments.route else { panic!("not on the file route") };
    let header = Header::parse(&std::fs::read(layout).expect("a header")).expect("a header");
    // The numbers are left for the reference provider to take.
    let open = |number| OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{number}"));
    let files: Vec<File> = fds.iter().map(|number| open(number).expect("a descriptor")).collect();
    let options = MapOptions { access: Access::ReadWrite, ..MapOptions::default() };
    MappedCache::map(&header, &files, &options).expect("a cache")
}
