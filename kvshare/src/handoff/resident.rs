//! A provider that is started once and told of each prompt.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::program::{absolute, check_count};
use super::watch::{GRACE, Outputs, is_cancelled, wait_for_any, watch};
use super::{Cancel, Destination, Ending, ProviderFailure, ProviderProgram, ProviderReport, ReceivedShare};
use crate::fd::{Child, FIRST_INHERITED, FdError, Identity, Output, identity};
use crate::map::MapError;
use crate::provider::{Order, PROTOCOL, ResultLine, Word};
use crate::wire::{DESCRIPTORS_PER_SEND, PacketError, Packets, seal};

/// A provider whose process lives on from prompt to prompt, with the decoder's cache mapped and its model loaded.
///
/// It is started at the first prompt, or by [`start`](Self::start), and again after it has ended or was stopped. It is
/// stopped where a one-shot provider would be: past its limit, and when the handoff is cancelled. The cells are adopted on
/// its word that it has written them and writes no more; nothing but its end could prove that.
///
/// Whoever drops it kills it. Its parent, for what is bound to the thread that starts it (prctl(2), `PR_SET_PDEATHSIG`), is the
/// thread that calls [`start`](Self::start) or [`run`](Self::run).
#[derive(Debug)]
pub struct ResidentProvider {
    program: ProviderProgram,
    running: Option<Running>,
    /// The number of the last prompt and of the last generation of regions.
    numbers: u64,
}

/// The process.
struct Running {
    packets: Packets,
    child: Child,
    outputs: Outputs,
    /// The regions that it knows.
    known: Option<Known>,
}

/// Regions that were sent.
struct Known {
    generation: u64,
    header: Vec<u8>,
    /// The kernel counts a memory's number up and gives none away twice while it is held.
    memory: Vec<Identity>,
}

/// Why waiting for a provider's word has ended.
enum Unheard {
    Late,
    Cancelled,
    /// It has ended, or has hung up.
    Gone,
    /// It does not speak as it should.
    NotUnderstood(String),
}

impl ResidentProvider {
    /// A provider that is not started yet.
    pub fn new(program: ProviderProgram) -> Self {
        Self { program, running: None, numbers: 0 }
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Starts it in `directory`, the slot directory, unless it runs, and waits until it is ready.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn start(
        &mut self,
        directory: &Path,
        cancel: Option<&Cancel>,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), ProviderFailure> {
        let deadline = self.program.deadline(Instant::now());
        self.start_by(deadline, directory, cancel, log)
    }

    /// Has it prefill `tokens`, as [`ProviderProgram::run`] does. Returns when it has said that it is done, and its device
    /// has written; after an error other than its own words it has ended.
    ///
    /// # Errors
    /// [`ProviderFailure`] says what went wrong, and whether anything may have been written or still be.
    pub fn run(
        &mut self,
        tokens: &[i32],
        destination: Destination<'_>,
        directory: &Path,
        cancel: Option<&Cancel>,
        log: &mut dyn FnMut(&str),
    ) -> Result<ProviderReport, ProviderFailure> {
        let started = Instant::now();
        let deadline = self.program.deadline(started);
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let memfd = seal("kvshare-tokens", &bytes).map_err(|source| in_memory("the tokens", source))?;
        self.start_by(deadline, directory, cancel, log)?;

        let (generation, out) = match destination {
            Destination::Shared(share) => (Some(self.introduce(share, deadline, log)?), None),
            Destination::File { name } => (None, Some(name.to_owned())),
        };
        let id = self.next_number();
        self.tell(&Order::Prefill { id, generation, out }, &[memfd.as_fd()], deadline, log)?;
        let word = self.hear(deadline, cancel, log);
        let written = destination.wait_for_writers(deadline);
        if let Err(MapError::DeviceBusy) = written {
            // Its device does what it was told, and nobody knows until when.
            self.stop(log)?;
            return Err(ProviderFailure::Device(MapError::DeviceBusy));
        }
        let result = match word? {
            Word::Done { id: done, n_tokens, argmax, prefill_ms } if done == id => {
                ResultLine { n_tokens, argmax, prefill_ms }
            }
            Word::Failed { id: failed, error } if failed == id => {
                return Err(ProviderFailure::Said { words: error });
            }
            other => return Err(self.not_understood(format!("{other:?} is no answer to prompt {id}"), log)),
        };
        written.map_err(ProviderFailure::Device)?;
        check_count(&result, tokens.len()).inspect_err(|_| drop(self.stop(log)))?;
        Ok(ProviderReport { result, wall: started.elapsed() })
    }

    /// Hangs up and waits until it has ended: by itself, or five seconds later by `SIGTERM`, and then by `SIGKILL`. Says how;
    /// `None` if it did not run.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn stop(&mut self, log: &mut dyn FnMut(&str)) -> Result<Option<Ending>, FdError> {
        self.end(GRACE, log).map(|ended| ended.map(|(ending, _)| ending))
    }

    fn start_by(
        &mut self,
        deadline: Instant,
        directory: &Path,
        cancel: Option<&Cancel>,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), ProviderFailure> {
        if let Some(running) = &mut self.running {
            running.outputs.take_turn(log);
            match running.child.try_wait() {
                Ok(None) => return Ok(()),
                // It has ended since, whyever: the prompt is nobody's yet, so it is given to another.
                Ok(Some(_)) => self.running = None,
                Err(error) => {
                    self.running = None;
                    return Err(error.into());
                }
            }
        }
        self.running = Some(self.started(directory)?);
        match self.hear(deadline, cancel, log)? {
            Word::Ready { protocol: PROTOCOL } => Ok(()),
            other => Err(self.not_understood(format!("{other:?} is not what it must say first"), log)),
        }
    }

    fn started(&self, directory: &Path) -> Result<Running, ProviderFailure> {
        let (packets, theirs) = Packets::pair().map_err(|error| in_memory("its socket", io::Error::other(error)))?;
        let program = self.program.launched()?.arg("--resident").arg(FIRST_INHERITED.to_string());
        let program = self.program.equipped(program.arg("--model").arg(absolute(&self.program.model)));
        let program = program.descriptors([theirs.as_fd()]).current_dir(directory);
        let mut child = program.stdout(Output::Pipe).stderr(Output::Pipe).spawn()?;
        let outputs = Outputs::of(&mut child)?;
        Ok(Running { packets, child, outputs, known: None })
    }

    /// Makes a share's regions known, unless they are, and returns their number.
    fn introduce(
        &mut self,
        share: &ReceivedShare,
        deadline: Instant,
        log: &mut dyn FnMut(&str),
    ) -> Result<u64, ProviderFailure> {
        let memory = share.descriptors.iter().map(|descriptor| identity(descriptor.as_fd()));
        let memory = memory.collect::<Result<Vec<_>, _>>().map_err(FdError::system("fstat"))?;
        let known = self.running.as_ref().and_then(|running| running.known.as_ref());
        if let Some(known) = known.filter(|known| known.header == share.header_bytes && known.memory == memory) {
            return Ok(known.generation);
        }
        let generation = self.next_number();
        let header = seal("kvshare-header", &share.header_bytes).map_err(|source| in_memory("the header", source))?;
        let all: Vec<BorrowedFd<'_>> =
            [&header].into_iter().chain(&share.descriptors).map(|descriptor: &OwnedFd| descriptor.as_fd()).collect();
        let mut order = Order::Regions { generation, descriptors: all.len() };
        for batch in all.chunks(DESCRIPTORS_PER_SEND) {
            self.tell(&order, batch, deadline, log)?;
            order = Order::More { generation };
        }
        if let Some(running) = &mut self.running {
            running.known = Some(Known { generation, header: share.header_bytes.clone(), memory });
        }
        Ok(generation)
    }

    fn tell(
        &mut self,
        order: &Order,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
        log: &mut dyn FnMut(&str),
    ) -> Result<(), ProviderFailure> {
        let Some(running) = &self.running else { return Err(self.unheard(Unheard::Gone, log)) };
        let text = serde_json::to_vec(order).map_err(|error| in_memory("the order", error.into()))?;
        running.packets.send(&text, descriptors, deadline).map_err(|error| {
            self.unheard(
                match error {
                    PacketError::Closed => Unheard::Gone,
                    PacketError::Late => Unheard::Late,
                    error => Unheard::NotUnderstood(error.to_string()),
                },
                log,
            )
        })
    }

    /// Waits for its next word, and hands each line of its standard error to `log` meanwhile.
    fn hear(
        &mut self,
        deadline: Instant,
        cancel: Option<&Cancel>,
        log: &mut dyn FnMut(&str),
    ) -> Result<Word, ProviderFailure> {
        let packet = loop {
            let Some(running) = &mut self.running else { return Err(self.unheard(Unheard::Gone, log)) };
            running.outputs.take_turn(log);
            match running.packets.take() {
                Ok(Some(packet)) => break packet,
                Ok(None) => {}
                Err(PacketError::Closed) => return Err(self.unheard(Unheard::Gone, log)),
                Err(error) => return Err(self.not_understood(error.to_string(), log)),
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(self.unheard(Unheard::Late, log));
            }
            if cancel.is_some_and(is_cancelled) {
                return Err(self.unheard(Unheard::Cancelled, log));
            }
            // Its end closes the socket, unless a helper of its has it, too.
            let sources = [running.packets.as_fd(), running.child.as_fd()].into_iter();
            let sources = sources.chain(running.outputs.pipes()).chain(cancel.map(|cancel| cancel.as_fd()));
            let mut sources: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            wait_for_any(&mut sources, deadline - now)?;
            let (has_spoken, has_ended) = (!sources[0].revents().is_empty(), !sources[1].revents().is_empty());
            if has_ended && !has_spoken {
                return Err(self.unheard(Unheard::Gone, log));
            }
        };
        let text = String::from_utf8_lossy(&packet.text).into_owned();
        serde_json::from_slice(&packet.text).map_err(|error| self.not_understood(format!("{text:?}: {error}"), log))
    }

    /// Ends the process, and says in an error how that came.
    fn unheard(&mut self, why: Unheard, log: &mut dyn FnMut(&str)) -> ProviderFailure {
        // One that has hung up is about to end by itself, and its status tells more than our signal's.
        let grace = if matches!(why, Unheard::Gone) { GRACE } else { Duration::ZERO };
        let (ending, said) = match self.end(grace, log) {
            Ok(Some(ended)) => ended,
            Ok(None) => (Ending::Exit(0), None),
            Err(error) => return error.into(),
        };
        match why {
            Unheard::Late => ProviderFailure::TimedOut { limit: self.program.time_limit, ending },
            Unheard::Cancelled => ProviderFailure::Cancelled { ending },
            Unheard::Gone => ProviderFailure::Failed { ending, said },
            Unheard::NotUnderstood(problem) => ProviderFailure::NotUnderstood { problem, ending },
        }
    }

    fn not_understood(&mut self, problem: String, log: &mut dyn FnMut(&str)) -> ProviderFailure {
        self.unheard(Unheard::NotUnderstood(problem), log)
    }

    /// Hangs up, and waits until the process has ended: by itself within `grace`, or stopped.
    fn end(&mut self, grace: Duration, log: &mut dyn FnMut(&str)) -> Result<Option<(Ending, Option<String>)>, FdError> {
        let Some(Running { packets, mut child, mut outputs, .. }) = self.running.take() else { return Ok(None) };
        drop(packets);
        let watched = watch(&mut child, &mut outputs, Instant::now() + grace, None, log)?;
        Ok(Some((watched.ending, outputs.said())))
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// What a provider gets through memory and not in the slot directory.
fn in_memory(what: &'static str, source: io::Error) -> ProviderFailure {
    ProviderFailure::Prepare { what, directory: "memory".into(), source }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Running").field("id", &self.child.id()).finish_non_exhaustive()
    }
}
