//! The one call into the C library's posix_spawn, with everything prepared.
//!
//! Not std's `Command`: between fork and exec its child reports errors through a pipe of its own, which a descriptor
//! placed at a fixed number can overwrite (rust-lang/rust#145687), and a fork copies the page tables of all memory that
//! this process has mapped.

use super::FIRST_INHERITED;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int, c_short};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// Where the new program's standard output or error goes.
pub(super) enum Stream {
    Inherited,
    Null,
    To(OwnedFd),
}

/// What to start, and with what.
///
/// Every descriptor in here lies above all the numbers it could be placed at, so that placing one never overwrites
/// another: this is the first of the two steps.
pub(super) struct Plan {
    pub(super) program: CString,
    pub(super) arguments: Vec<CString>,
    pub(super) environment: Vec<CString>,
    pub(super) directory: Option<CString>,
    pub(super) streams: [Stream; 2],
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Plan {
    /// Starts the program in a process group of its own.
    ///
    /// The new process inherits the standard streams and the plan's descriptors from 3 up, and nothing else. In this
    /// process no descriptor ever loses close-on-exec, so a program that another thread starts meanwhile gets none.
    #[allow(unsafe_code)]
    pub(super) fn start(&self) -> Result<Pid, Errno> {
        let actions = self.file_actions()?;
        let attributes = Attributes::new()?;
        let arguments = pointers(&self.arguments);
        let environment = pointers(&self.environment);
        let mut pid = 0;
        // SAFETY: the strings and the arrays outlive the call, each array ends in a null pointer, and posix_spawn writes
        // to none of them. The child shares our memory only until its exec, inside the C library, while this thread
        // waits; after it the two share only the files that are named here. No other process can reach any of this.
        check(unsafe {
            libc::posix_spawnp(
                &mut pid,
                self.program.as_ptr(),
                &actions.0,
                &attributes.0,
                arguments.as_ptr(),
                environment.as_ptr(),
            )
        })?;
        Pid::from_raw(pid).ok_or(Errno::SRCH)
    }

    /// The second step, in the child: every descriptor goes to its number, which clears close-on-exec there; then
    /// everything above closes.
    fn file_actions(&self) -> Result<FileActions, Errno> {
        let mut actions = FileActions::new()?;
        actions.open_null(0, OFlags::RDONLY)?;
        for (number, stream) in (1..).zip(&self.streams) {
            match stream {
                Stream::Inherited => {}
                Stream::Null => actions.open_null(number, OFlags::WRONLY)?,
                Stream::To(descriptor) => actions.place(descriptor, number)?,
            }
        }
        let mut next = FIRST_INHERITED;
        for descriptor in &self.descriptors {
            actions.place(descriptor, next)?;
            next += 1;
        }
        actions.close_from(next)?;
        if let Some(directory) = &self.directory {
            actions.change_directory(directory)?;
        }
        Ok(actions)
    }
}

/// `posix_spawn_file_actions_t`, initialized: what the child does with its descriptors, in order.
struct FileActions(libc::posix_spawn_file_actions_t);

#[allow(unsafe_code)]
impl FileActions {
    fn new() -> Result<Self, Errno> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: init fills the memory that it is given, and it has when it returns 0. What it makes has no pointer to
        // itself, so it may move. It is memory of this process alone.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: as above.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn open_null(&mut self, number: c_int, flags: OFlags) -> Result<(), Errno> {
        let flags = flags.bits() as c_int;
        // SAFETY: the actions are initialized, and the C library copies the path.
        check(unsafe { libc::posix_spawn_file_actions_addopen(&mut self.0, number, c"/dev/null".as_ptr(), flags, 0) })
    }

    fn place(&mut self, descriptor: &OwnedFd, number: c_int) -> Result<(), Errno> {
        // SAFETY: the actions are initialized; the numbers are used in the child only, whose descriptor table is a copy.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&mut self.0, descriptor.as_raw_fd(), number) })
    }

    fn close_from(&mut self, number: c_int) -> Result<(), Errno> {
        // SAFETY: as for `place`.
        check(unsafe { libc::posix_spawn_file_actions_addclosefrom_np(&mut self.0, number) })
    }

    fn change_directory(&mut self, directory: &CStr) -> Result<(), Errno> {
        // SAFETY: the actions are initialized, and the C library copies the path.
        check(unsafe { libc::posix_spawn_file_actions_addchdir_np(&mut self.0, directory.as_ptr()) })
    }
}

impl Drop for FileActions {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: initialized in `new`, destroyed only here, in this process's own memory.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

/// `posix_spawnattr_t`, initialized: a process group of its own, no signal blocked and none ignored. An ignored signal
/// would stay ignored over exec, and Rust ignores `SIGPIPE`.
struct Attributes(libc::posix_spawnattr_t);

#[allow(unsafe_code)]
impl Attributes {
    fn new() -> Result<Self, Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: as for `FileActions::new`.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: as for `FileActions::new`.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let flags = libc::POSIX_SPAWN_SETPGROUP | libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        // SAFETY: the attributes are initialized, both signal sets are before they are read, and all of it is this
        // process's own memory.
        unsafe {
            let mut signals = MaybeUninit::uninit();
            libc::sigemptyset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigmask(&mut attributes.0, signals.as_ptr()))?;
            libc::sigfillset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigdefault(&mut attributes.0, signals.as_ptr()))?;
            check(libc::posix_spawnattr_setpgroup(&mut attributes.0, 0))?;
            check(libc::posix_spawnattr_setflags(&mut attributes.0, flags as c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: initialized in `new`, destroyed only here, in this process's own memory.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}

/// The array of strings that C expects, ending in a null pointer. The pointers are `*mut` only because C says so.
fn pointers(strings: &[CString]) -> Vec<*mut c_char> {
    strings.iter().map(|string| string.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

/// posix_spawn and its relatives return the error number instead of setting `errno`.
fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result)) }
}
