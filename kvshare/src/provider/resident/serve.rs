//! The provider's side: orders taken one after the other, each answered.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Order, PROTOCOL, Word};
use crate::fd::take_inherited;
use crate::header::{MAX_BYTES, MAX_REGIONS};
use crate::provider::open::{check_out, check_room, checked_header, map_to_fill, own, publish, result_line};
use crate::provider::run::fill;
use crate::provider::{AssumedCache, Prefill, ProviderError, ResidentArguments, ResultLine};
use crate::rows::MappedCache;
use crate::wire::{PACKET_BYTES, PacketError, Packets, read_sealed};

/// The longest list of tokens, in bytes, four for each.
const TOKENS_MAX: u64 = 64 << 20;

/// A proxy reads what it is told at once, or is gone.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Nobody knows when the next prompt comes.
const NO_LIMIT: Duration = Duration::from_secs(1 << 30);

/// Serves one proxy until it hangs up. `prefill` is called for each prompt, with the same cache until the decoder has another.
///
/// What goes wrong with one prompt is told to the proxy, and the next one is served.
///
/// # Errors
/// No such socket, or a proxy that speaks another protocol.
pub fn run_resident<E: Display>(
    arguments: &ResidentArguments,
    cache: &AssumedCache,
    prefill: impl FnMut(Prefill<'_>) -> Result<i32, E>,
) -> Result<(), ProviderError> {
    let mut socket = take_inherited(&[arguments.socket])?;
    let packets = Packets::over(socket.remove(0));
    Resident { packets, arguments, assumed: cache, prefill, cache: None }.serve()
}

struct Resident<'a, F> {
    packets: Packets,
    arguments: &'a ResidentArguments,
    assumed: &'a AssumedCache,
    prefill: F,
    cache: Option<Generation>,
}

/// The cache that the proxy last sent, mapped, or why it is of no use.
struct Generation {
    number: u64,
    cache: Result<Mapped, ProviderError>,
}

struct Mapped {
    cache: MappedCache,
    /// They are kept as long as the mapping: a device may want them.
    _descriptors: Vec<OwnedFd>,
}

impl<F, E: Display> Resident<'_, F>
where
    F: FnMut(Prefill<'_>) -> Result<i32, E>,
{
    fn serve(&mut self) -> Result<(), ProviderError> {
        self.tell(&Word::Ready { protocol: PROTOCOL })?;
        loop {
            let (order, descriptors) = match self.hear() {
                // The proxy has no more prompts.
                Err(ProviderError::Packet(PacketError::Closed)) => return Ok(()),
                heard => heard?,
            };
            match order {
                Order::Regions { generation, descriptors: count } => {
                    let all = self.collect(generation, count, descriptors)?;
                    // The old mapping goes before there is a new one.
                    self.cache = None;
                    self.cache = Some(Generation { number: generation, cache: self.map(all) });
                }
                Order::Prefill { id, generation, out } => {
                    let done = self.answer(descriptors, generation, out.as_deref());
                    self.tell(&word(id, done))?;
                }
                Order::More { generation } => {
                    return Err(misunderstood(format!(
                        "more descriptors came for generation {generation}, and none before"
                    )));
                }
            }
        }
    }

    fn hear(&self) -> Result<(Order, Vec<OwnedFd>), ProviderError> {
        let packet = self.packets.receive(Instant::now() + NO_LIMIT, None)?;
        let order = serde_json::from_slice(&packet.text)
            .map_err(|error| misunderstood(format!("{:?}: {error}", String::from_utf8_lossy(&packet.text))))?;
        Ok((order, packet.descriptors))
    }

    fn tell(&self, word: &Word) -> Result<(), ProviderError> {
        let text = serde_json::to_vec(word).map_err(|error| misunderstood(error.to_string()))?;
        Ok(self.packets.send(&text, &[], Instant::now() + TELL_LIMIT)?)
    }

    /// All descriptors of a generation, of which `first` have come.
    fn collect(&self, generation: u64, count: usize, first: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, ProviderError> {
        if !(2..=MAX_REGIONS + 1).contains(&count) {
            return Err(misunderstood(format!(
                "generation {generation} has {count} descriptors, its header's among them"
            )));
        }
        let mut all = first;
        while all.len() < count {
            match self.hear()? {
                (Order::More { generation: same }, more) if same == generation && !more.is_empty() => all.extend(more),
                (other, _) => {
                    return Err(misunderstood(format!("{other:?} came among generation {generation}'s descriptors")));
                }
            }
        }
        if all.len() > count {
            return Err(misunderstood(format!(
                "{} descriptors came for generation {generation}, not {count}",
                all.len()
            )));
        }
        Ok(all)
    }

    fn map(&self, mut descriptors: Vec<OwnedFd>) -> Result<Mapped, ProviderError> {
        let header = descriptors.remove(0);
        let header = read_sealed(&header, MAX_BYTES as u64)
            .map_err(|source| ProviderError::Sealed { what: "the header", source })?;
        let header = checked_header(&header, &descriptors, &self.arguments.model, self.assumed)?;
        check_room(&header, 0)?;
        Ok(Mapped { cache: map_to_fill(&header, &descriptors)?, _descriptors: descriptors })
    }

    fn answer(
        &mut self,
        tokens: Vec<OwnedFd>,
        generation: Option<u64>,
        out: Option<&str>,
    ) -> Result<ResultLine, ProviderError> {
        let tokens = tokens_in(tokens)?;
        match (generation, out) {
            (Some(asked), None) => self.fill_shared(asked, &tokens),
            (None, Some(out)) => self.fill_file(Path::new(out), &tokens),
            _ => Err(misunderstood("a prompt goes into a generation or into a file".to_owned())),
        }
    }

    fn fill_shared(&mut self, asked: u64, tokens: &[i32]) -> Result<ResultLine, ProviderError> {
        let unusable = |problem: String| ProviderError::NoCache { asked, problem };
        let mapped = match &mut self.cache {
            Some(Generation { number, cache: Ok(mapped) }) if *number == asked => mapped,
            Some(Generation { number, cache: Err(error) }) if *number == asked => {
                return Err(unusable(error.to_string()));
            }
            Some(Generation { number, .. }) => return Err(unusable(format!("the last one sent is {number}"))),
            None => return Err(unusable("none was sent".to_owned())),
        };
        let cells = mapped.cache.cells();
        if tokens.len() as u64 > cells {
            return Err(ProviderError::TooManyTokens { tokens: tokens.len(), cells });
        }
        let ResidentArguments { model, elfs, .. } = self.arguments;
        let job = Prefill { tokens, model, elfs: elfs.as_deref(), cache: &mut mapped.cache };
        let (argmax, took) = fill(job, &mut self.prefill)?;
        Ok(result_line(tokens.len(), argmax, took))
    }

    fn fill_file(&mut self, out: &Path, tokens: &[i32]) -> Result<ResultLine, ProviderError> {
        check_out(out)?;
        let ResidentArguments { model, elfs, .. } = self.arguments;
        let (header, descriptors) = own(model, tokens.len(), self.assumed)?;
        check_room(&header, tokens.len())?;
        let mut cache = map_to_fill(&header, &descriptors)?;
        let job = Prefill { tokens, model, elfs: elfs.as_deref(), cache: &mut cache };
        let (argmax, took) = fill(job, &mut self.prefill)?;
        publish(out, tokens, &cache)?;
        Ok(result_line(tokens.len(), argmax, took))
    }
}

/// The ids in the one descriptor that came: little-endian numbers of 32 bits.
fn tokens_in(descriptors: Vec<OwnedFd>) -> Result<Vec<i32>, ProviderError> {
    let [tokens] = &descriptors[..] else {
        return Err(misunderstood(format!("{} descriptors came with a prompt, not one", descriptors.len())));
    };
    let bytes =
        read_sealed(tokens, TOKENS_MAX).map_err(|source| ProviderError::Sealed { what: "the tokens", source })?;
    let (numbers, []) = bytes.as_chunks::<4>() else {
        return Err(misunderstood(format!("the tokens have {} bytes, no multiple of 4", bytes.len())));
    };
    if numbers.is_empty() {
        return Err(ProviderError::NoToken);
    }
    let id = |(index, bytes): (usize, &[u8; 4])| {
        let id = u32::from_le_bytes(*bytes);
        i32::try_from(id).map_err(|_| ProviderError::TokenId { index, id })
    };
    numbers.iter().enumerate().map(id).collect()
}

fn misunderstood(problem: String) -> ProviderError {
    ProviderError::Order { problem }
}

/// How a prompt's result is told. An error's words are cut to what a packet holds.
fn word(id: u64, done: Result<ResultLine, ProviderError>) -> Word {
    match done {
        Ok(ResultLine { n_tokens, argmax, prefill_ms }) => Word::Done { id, n_tokens, argmax, prefill_ms },
        Err(error) => {
            // In JSON one character takes up to six bytes.
            Word::Failed { id, error: error.to_string().chars().take(PACKET_BYTES / 8).collect() }
        }
    }
}
