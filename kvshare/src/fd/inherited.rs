//! Taking up the descriptors that this program was started with.

use super::{FIRST_INHERITED, FdError};
use rustix::io::{Errno, FdFlags};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// The numbers that this process has taken: each has one owner, whoever closes it.
static TAKEN: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Takes ownership of the inherited descriptors `numbers`, in their order, and sets close-on-exec on each again, so that
/// no program which this one starts inherits them by accident.
///
/// Takes all of them or, on an error, none. A number is believed only if it can have been inherited: it is at least 3,
/// it is open, nobody took it before, and it does not close on exec (what does would not have survived the exec that
/// started this program, so this process opened it itself). Call it early, before other code opens descriptors.
///
/// # Errors
///
/// [`FdError::StandardStream`], [`FdError::Repeated`], [`FdError::TakenBefore`], [`FdError::NotOpen`] and
/// [`FdError::NotInherited`], each naming the number.
///
/// ```
/// use kvshare::fd::{FdError, take_inherited};
///
/// let error = take_inherited(&[2]).unwrap_err();
/// assert!(matches!(error, FdError::StandardStream { number: 2 }));
/// ```
pub fn take_inherited(numbers: &[i32]) -> Result<Vec<OwnedFd>, FdError> {
    // The lock is held to the end, so that of two threads that take the same number one is refused.
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut listed = BTreeSet::new();
    for &number in numbers {
        if number < FIRST_INHERITED {
            return Err(FdError::StandardStream { number });
        }
        if !listed.insert(number) {
            return Err(FdError::Repeated { number });
        }
        if taken.contains(&number) {
            return Err(FdError::TakenBefore { number });
        }
        match flags_of(number) {
            Ok(flags) if flags.contains(FdFlags::CLOEXEC) => return Err(FdError::NotInherited { number }),
            Ok(_) => {}
            Err(Errno::BADF) => return Err(FdError::NotOpen { number }),
            Err(errno) => return Err(FdError::system("fcntl F_GETFD")(errno)),
        }
    }
    let descriptors: Vec<OwnedFd> = numbers.iter().map(|&number| own(number)).collect();
    taken.append(&mut listed);
    for descriptor in &descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).map_err(FdError::system("fcntl F_SETFD"))?;
    }
    Ok(descriptors)
}

/// The flags of the descriptor at `number`, or `EBADF` where none is open.
#[allow(unsafe_code)]
fn flags_of(number: i32) -> Result<FdFlags, Errno> {
    // SAFETY: the borrow lives for one system call that only asks for flags, and a number at which nothing is open, or
    // that another thread closes meanwhile, is answered with EBADF. `number` is at least 3, so it is not the -1 that a
    // BorrowedFd may not hold. Descriptor numbers are this process's own: no other process can change them.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor)
}

/// Takes ownership of `number`.
#[allow(unsafe_code)]
fn own(number: i32) -> OwnedFd {
    // SAFETY: the caller has checked that `number` is open, was never taken here before, and does not close on exec.
    // Rust's standard library opens everything with close-on-exec, so what does not was there when this program was
    // started, and has no other owner in it. The process that started this one holds descriptors of its own to the
    // same files, and can close none of ours.
    unsafe { OwnedFd::from_raw_fd(number) }
}
