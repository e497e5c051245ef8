//! Answers of other kernels and drivers than this one's, given to the library in their place.
//!
//! The library runs in a process of its own, which is traced: a call is kept from the kernel on its way in, and has the
//! answer that the test gives on its way out (ptrace(2)).

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::io::Errno;

use crate::Promise;
use crate::kinds::Kind;
use crate::roles;
use crate::system;

pub const PROMISES: &[Promise] =
    &[("memory_that_its_driver_does_not_map_is_said_to_be_a_devices", memory_that_its_driver_does_not_map)];

pub const OF_DMA_BUFS: &[Promise] = &[
    ("an_access_that_the_kernel_wants_asked_for_again_is", an_access_is_asked_for_again),
    ("one_that_it_wants_asked_for_for_ever_ends_at_the_deadline", an_access_that_is_never_granted_ends),
];

/// Which calls are answered.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// A shared mapping of a descriptor. Programs are loaded by private ones.
    MapShared,
    /// `DMA_BUF_IOCTL_SYNC`.
    Sync,
}

impl Call {
    /// Whether a process is about to make it. A call's number and arguments lie where syscall(2) says.
    fn is_made_with(self, registers: &libc::user_regs_struct) -> bool {
        let is = |number: libc::c_long| registers.orig_rax == number as u64;
        match self {
            Self::MapShared => {
                is(libc::SYS_mmap) && registers.r10 & libc::MAP_SHARED as u64 != 0 && registers.r8 as i32 >= 0
            }
            Self::Sync => is(libc::SYS_ioctl) && registers.rsi == u64::from(system::SYNC),
        }
    }
}

/// What a process says that plays `role` with `memory`, if the first `times` calls of this kind are answered with `errno`.
fn answered(memory: OwnedFd, role: &str, call: Call, errno: i32, times: u32) -> String {
    let mut command: Command = roles::with_memory(role, memory);
    // SAFETY: between fork and exec, traceme makes one system call and touches no memory that another thread may have locked.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(std::io::Error::from)) };
    let mut process = command.stdout(Stdio::piped()).spawn().expect("a process");
    answer(Pid::from_raw(process.id().cast_signed()), call, errno, times);
    let mut said = String::new();
    process.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    // `answer` has waited for it already.
    let _ = process.wait();
    said
}

/// Lets a process run to its end, which stops on its way into each call and on its way out.
fn answer(process: Pid, call: Call, errno: i32, mut times: u32) {
    let (mut is_on_its_way_in, mut is_kept) = (true, false);
    loop {
        let signal = match waitpid(process, None).expect("a process of ours") {
            WaitStatus::PtraceSyscall(_) => {
                let mut registers = ptrace::getregs(process).expect("a process that stands still");
                if is_on_its_way_in && times > 0 && call.is_made_with(&registers) {
                    // No call has this number, so the kernel does nothing.
                    registers.orig_rax = u64::MAX;
                    (is_kept, times) = (true, times - 1);
                    ptrace::setregs(process, registers).expect("a process that stands still");
                } else if is_kept {
                    registers.rax = -i64::from(errno) as u64;
                    is_kept = false;
                    ptrace::setregs(process, registers).expect("a process that stands still");
                }
                is_on_its_way_in = !is_on_its_way_in;
                None
            }
            // Its exec, before which it made no call that counts.
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                ptrace::setoptions(process, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("a process of ours");
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::Exited(..) => return,
            end => panic!("it ended otherwise: {end:?}"),
        };
        ptrace::syscall(process, signal).expect("it goes on");
    }
}

/// Seen on an NVIDIA H200: its dma-buf answers with errno 524, a CUDA descriptor with `EINVAL`.
fn memory_that_its_driver_does_not_map(kind: &Kind) {
    const ENOTSUPP: i32 = 524;
    let words =
        "this memory cannot be mapped by the CPU; it can still be passed on to a program that gives it to its device";
    for errno in [ENOTSUPP, Errno::INVAL.raw_os_error(), Errno::NODEV.raw_os_error()] {
        let said = answered(kind.region("unmapped", 1), roles::ACCESSES, Call::MapShared, errno, 1);
        assert_eq!(said, words, "errno {errno}");
    }
    assert_eq!(answered(kind.region("mapped", 1), roles::ACCESSES, Call::MapShared, ENOTSUPP, 0), roles::GRANTED);
}

fn an_access_is_asked_for_again(kind: &Kind) {
    for errno in [Errno::AGAIN, Errno::INTR] {
        let region = kind.region("again", 1);
        assert_eq!(answered(region, roles::ACCESSES, Call::Sync, errno.raw_os_error(), 3), roles::GRANTED, "{errno}");
    }
    let said = answered(kind.region("broken", 1), roles::ACCESSES, Call::Sync, Errno::IO.raw_os_error(), 1);
    assert_eq!(said, "DMA_BUF_IOCTL_SYNC failed: Input/output error (os error 5)");
}

fn an_access_that_is_never_granted_ends(kind: &Kind) {
    for errno in [Errno::AGAIN, Errno::INTR] {
        let said = answered(kind.region("never", 1), roles::ACCESSES, Call::Sync, errno.raw_os_error(), u32::MAX);
        let words = "a device was still at work on the dma-buf at the deadline; the work may never have been submitted";
        assert_eq!(said, words, "{errno}");
    }
}
