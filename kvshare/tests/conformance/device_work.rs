//! Work of a device that has not finished: fences, and who waits for them.
//!
//! They need a device that can be told when its work ends. vgem is one: it runs no work, but attaches a fence to a buffer and
//! signals it when told to, or after 10 s (Linux, drivers/gpu/drm/vgem/vgem_fence.c).

use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drm::buffer::{Buffer as _, Handle};
use drm::control::Device as _;
use kvshare::handoff::ProviderFailure;
use kvshare::map::{Access, Fence, MapError};
use kvshare::rows::{MappedCache, RowsError};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::Promise;
use crate::decoder::Decoder;
use crate::drm_card::{Card, card_with_buffer, map};
use crate::kinds::Kind;
use crate::promises::READ_WRITE;
use crate::roles::{self, CELLS, LEAVE, WIDTH};
use crate::system::{self, SYNC_READ, SYNC_WRITE};

pub const PROMISES: &[Promise] = &[
    ("cpu_access_waits_for_a_devices_work_and_no_longer_than_told", cpu_access_waits_for_a_devices_work),
    ("a_reader_does_not_wait_for_a_device_that_reads", a_reader_does_not_wait_for_a_device_that_reads),
    ("a_signal_ends_the_kernels_wait_and_not_the_librarys", a_signal_ends_the_kernels_wait_and_not_the_librarys),
    ("a_fence_is_handed_on_with_the_buffer", a_fence_is_handed_on_with_the_buffer),
    ("a_fence_that_a_provider_attached_outlives_the_provider", a_providers_fence_outlives_the_provider),
    ("a_provider_has_done_its_part_when_its_device_has", a_provider_has_done_its_part_when_its_device_has),
    ("what_a_device_may_still_write_to_is_not_used", what_a_device_may_still_write_to_is_not_used),
];

/// `DRM_IOCTL_VGEM_FENCE_ATTACH` and `_SIGNAL` with their arguments (drm/vgem_drm.h).
const FENCE_ATTACH: Opcode = opcode::read_write::<[u32; 4]>(b'd', 0x41);
const FENCE_SIGNAL: Opcode = opcode::write::<[u32; 2]>(b'd', 0x42);
const FENCE_WRITE: u32 = 1;

/// Work of the device on a buffer, which ends when it is told to.
fn begin_work(card: &Card, buffer: Handle, flags: u32) -> u32 {
    let mut argument = [buffer.into(), flags, 0, 0];
    // SAFETY: the kernel reads and writes four numbers, as drm/vgem_drm.h says. No other process has a part in it.
    unsafe { rustix::ioctl::ioctl(card, Updater::<{ FENCE_ATTACH }, [u32; 4]>::new(&mut argument)) }.expect("a fence");
    argument[2]
}

fn end_work(card: &Card, work: u32) {
    // SAFETY: the kernel reads two numbers, as drm/vgem_drm.h says. No other process has a part in it.
    unsafe { rustix::ioctl::ioctl(card, Setter::<{ FENCE_SIGNAL }, [u32; 2]>::new([work, 0])) }.expect("in time");
}

/// A deadline that no work in these tests meets unless it has ended already.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

/// A deadline that is passed only if something hangs.
fn late() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn cpu_access_waits_for_a_devices_work(_: &Kind) {
    let (card, buffer) = card_with_buffer();
    let region = map(card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export"));
    let work = begin_work(&card, buffer.handle(), FENCE_WRITE);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let answer = region.begin_cpu_access_until(access, soon()).err();
        assert_eq!(answer, Some(MapError::DeviceBusy), "{access:?}");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| end_work(&card, work));
        region.begin_cpu_access_until(Access::ReadWrite, late()).expect("the work ends").end().expect("its end");
    });
}

fn a_reader_does_not_wait_for_a_device_that_reads(_: &Kind) {
    let (card, buffer) = card_with_buffer();
    let region = map(card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export"));
    let work = begin_work(&card, buffer.handle(), 0);
    region.begin_cpu_access_until(Access::ReadOnly, late()).expect("two readers").end().expect("its end");
    let answer = region.begin_cpu_access_until(Access::ReadWrite, soon()).err();
    assert_eq!(answer, Some(MapError::DeviceBusy));
    end_work(&card, work);
}

fn a_fence_is_handed_on_with_the_buffer(kind: &Kind) {
    let (card, buffer) = card_with_buffer();
    let of_device = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export");
    let work = begin_work(&card, buffer.handle(), FENCE_WRITE);
    let fence = Fence::export(&of_device, Access::ReadOnly).expect("a fence");
    assert_eq!(fence.wait(soon()), Err(MapError::DeviceBusy));

    // The provider attaches its device's fence to the decoder's region and is gone; the decoder waits for it all the same.
    let region = map(kind.region("fenced", 1));
    let fence = Fence::from_descriptor(fence.into()).expect("it is one");
    fence.attach(&region, Access::ReadWrite).expect("it is attached");
    drop((fence, of_device));
    let answer = region.begin_cpu_access_until(Access::ReadOnly, soon()).err();
    assert_eq!(answer, Some(MapError::DeviceBusy));
    let seen = Fence::export(&region, Access::ReadOnly).expect("the decoder's own view of it");
    end_work(&card, work);
    seen.wait(late()).expect("the work ended");
    region.begin_cpu_access(Access::ReadOnly).expect("nothing is left to wait for").end().expect("its end");
}

/// `DMA_BUF_IOCTL_SYNC` can be interrupted, which programs forget that never get a signal.
fn a_signal_ends_the_kernels_wait_and_not_the_librarys(_: &Kind) {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, so it may run anywhere. Programs that this one starts do not inherit it.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("a handler");

    let (card, buffer) = card_with_buffer();
    let memory = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC | drm::RDWR).expect("an export");
    let region = map(&memory);
    let work = begin_work(&card, buffer.handle(), FENCE_WRITE);
    let kernels = std::thread::spawn(move || system::sync(&memory, SYNC_READ | SYNC_WRITE));
    interrupt_until(&kernels, || kernels.is_finished());
    assert_eq!(kernels.join().expect("an answer"), Err(Errno::INTR));

    let librarys =
        std::thread::spawn(move || region.begin_cpu_access_until(Access::ReadWrite, late()).map(|access| access.end()));
    let some = Instant::now() + Duration::from_millis(50);
    interrupt_until(&librarys, || Instant::now() > some);
    assert!(!librarys.is_finished(), "it waits on");
    end_work(&card, work);
    assert_eq!(librarys.join().expect("an answer"), Ok(Ok(())));
}

/// Sends signals to a thread, again and again.
fn interrupt_until<T>(thread: &std::thread::JoinHandle<T>, enough: impl Fn() -> bool) {
    while !enough() {
        // SAFETY: the thread was not joined, so its id is valid. Other processes are not affected.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has a device begin to write to the decoder's memory while a provider runs, and lets that provider end.
fn write_on_after_provider(decoder: &Decoder, card: &Card, buffer: Handle) -> u32 {
    decoder.wait_for_a_row();
    let work = begin_work(card, buffer, FENCE_WRITE);
    let of_device = card.buffer_to_prime_fd(buffer, drm::CLOEXEC | drm::RDWR).expect("an export");
    let fence = Fence::export(&of_device, Access::ReadOnly).expect("a fence");
    fence.attach(&decoder.memory[0], Access::ReadWrite).expect("it is attached");
    let mut cache = MappedCache::map(&decoder.header, &decoder.memory, &READ_WRITE).expect("a mapping");
    cache.k_mut(0).expect("a layer").write_f32(CELLS - 1, &LEAVE).expect("a row");
    work
}

/// Where a provider finds its device: our process id, our descriptor of the card, and the handle of its buffer there. The
/// card stays open with us, since vgem ends the work of whoever closes it.
const CARD: &str = "KVSHARE_CONFORMANCE_CARD";

/// A provider's part: begins work of its device, attaches its fence to the decoder's memory and waits for nothing. The number
/// of the work goes into the last K row of layer 0.
pub fn leave_work_behind(cache: &mut MappedCache) -> Result<(), RowsError> {
    let named = std::env::var(CARD).expect("a card");
    let numbers: Vec<i32> = named.split(' ').map(|number| number.parse().expect("a number")).collect();
    let owner = rustix::process::Pid::from_raw(numbers[0]).expect("a process");
    let owner = pidfd_open(owner, PidfdFlags::empty()).expect("it runs");
    let card = Card::from(pidfd_getfd(owner, numbers[1], PidfdGetfdFlags::empty()).expect("its card"));
    let buffer = Handle::from(NonZeroU32::new(numbers[2].cast_unsigned()).expect("a handle"));
    let work = begin_work(&card, buffer, FENCE_WRITE);
    let of_device = card.buffer_to_prime_fd(buffer, drm::CLOEXEC | drm::RDWR).expect("an export");
    let fence = Fence::export(&of_device, Access::ReadOnly)?;
    fence.attach(&cache.regions()[0], Access::ReadWrite)?;
    cache.k_mut(0)?.write_f32(CELLS - 1, &[work as f32; WIDTH as usize])
}

fn a_providers_fence_outlives_the_provider(kind: &Kind) {
    let mut decoder = Decoder::new(kind);
    // Less than vgem waits until it gives up.
    decoder.limit = Duration::from_secs(5);
    let (card, buffer) = card_with_buffer();
    let mut provider = roles::provider("fencing");
    let handle: u32 = buffer.handle().into();
    let card_of_ours = format!("{} {} {handle}", std::process::id(), card.as_fd().as_raw_fd());
    provider.environment.push((CARD.into(), card_of_ours.into()));
    // Its end is known for sure where the device, too, has been waited for.
    let failure = decoder.run_program(&provider, &[1, 2, 3], None).expect_err("the device does not finish");
    assert!(matches!(failure, ProviderFailure::Device(MapError::DeviceBusy)), "{failure}");

    let cache = MappedCache::map(&decoder.header, &decoder.memory, &READ_WRITE).expect("a mapping");
    let answer = cache.regions()[0].begin_cpu_access_until(Access::ReadOnly, soon()).err();
    assert_eq!(answer, Some(MapError::DeviceBusy), "the provider is gone and its fence is not");
    let mut work = [0.0; WIDTH as usize];
    cache.k(0).expect("a layer").read_f32(CELLS - 1, &mut work).expect("a row");
    end_work(&card, work[0] as u32);
    cache.begin_cpu_access(Access::ReadOnly).expect("nothing is left to wait for").end().expect("its end");
}

fn a_provider_has_done_its_part_when_its_device_has(kind: &Kind) {
    let decoder = Decoder::new(kind);
    let (card, buffer) = card_with_buffer();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let work = write_on_after_provider(&decoder, &card, buffer.handle());
            std::thread::sleep(Duration::from_millis(200));
            has_ended.store(true, Ordering::SeqCst);
            end_work(&card, work);
        });
        decoder.run("lingering", &[1, 2, 3], None).expect("provider and device do well");
        assert!(has_ended.load(Ordering::SeqCst), "the device was still writing");
    });
}

fn what_a_device_may_still_write_to_is_not_used(kind: &Kind) {
    let mut decoder = Decoder::new(kind);
    // Less than vgem waits until it gives up.
    decoder.limit = Duration::from_secs(5);
    let (card, buffer) = card_with_buffer();
    std::thread::scope(|scope| {
        scope.spawn(|| write_on_after_provider(&decoder, &card, buffer.handle()));
        let failure = decoder.run("lingering", &[1, 2, 3], None).expect_err("the device does not finish");
        assert!(matches!(failure, ProviderFailure::Device(MapError::DeviceBusy)), "{failure}");
        assert!(failure.may_still_write() && failure.after_start(), "{failure}");
    });
}
