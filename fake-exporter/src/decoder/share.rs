//! Handing the cache out, and taking what was written into it.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use kvshare::wire::{Connection, check_inside, connect};

use super::{Decoder, DecoderError, SLOT, checked_ids};

/// How long the proxy may take to accept and receive. Nothing stands between the two but a socket.
const SHARE_TIMEOUT: Duration = Duration::from_secs(10);

impl Decoder {
    /// Sends the cache's header and descriptors to the process that listens at `socket`, which lies in the slot directory,
    /// and returns the `share_id` that lets its cells be adopted.
    ///
    /// The slot is empty from then on: a provider may be writing.
    ///
    /// # Errors
    /// Sharing is off; a socket elsewhere, or that nobody answers at. The slot holds what it held then, unless a part of
    /// the message was sent: whoever has it may be writing.
    pub fn share(&mut self, socket: &Path) -> Result<u64, DecoderError> {
        self.settings.check_sharing()?;
        let path = check_inside(socket, self.settings.slot_directory()?)?;
        let deadline = Instant::now() + SHARE_TIMEOUT;
        let stays_away = self.settings.misbehaviour.is_some_and(|kind| kind.stays_away());
        let connection = if stays_away { None } else { Some(connect(&path, deadline)?) };
        // A peer that may still write an earlier share must not reach this one's cells.
        self.own_cells()?;
        // The lease begins before the first descriptor leaves: a send that breaks off midway has handed out the cells.
        let share_id = self.lease()?;
        if let Some(connection) = connection {
            self.send(connection, deadline)?;
        }
        Ok(share_id)
    }

    /// Takes the first cells of a shared cache as the positions of `tokens`, where they lie.
    ///
    /// # Errors
    /// Sharing is off; a `share_id` that is not this slot's live one; tokens that are none, too many, or outside the
    /// vocabulary; cells of a provider that wrote past a tensor. Nothing has changed then, and the share can still be
    /// adopted.
    pub fn adopt(&mut self, share_id: Option<u64>, tokens: &[i64]) -> Result<usize, DecoderError> {
        self.settings.check_sharing()?;
        let share = self.ledger.recognize(SLOT, share_id, Instant::now())?;
        let tokens = self.check_tokens(tokens)?;
        self.cache.access(|cache| cache.check_padding().map_err(DecoderError::Overrun))?;
        self.ledger.adopt(share, Instant::now())?;
        self.hostage = None;
        self.tokens = tokens;
        Ok(self.tokens.len())
    }

    fn send(&mut self, connection: Connection, deadline: Instant) -> Result<(), DecoderError> {
        let (header, descriptors) = (self.plan.header(), self.cache.descriptors());
        match self.settings.misbehaviour {
            None => {
                let descriptors: Vec<_> = descriptors.iter().map(|region| region.as_fd()).collect();
                connection.send(self.plan.header_json(), &descriptors, deadline)?;
            }
            // A peer that hangs up meanwhile has noticed, which is the purpose.
            Some(kind) => self.hostage = kind.send(connection, header, descriptors, deadline).unwrap_or_default(),
        }
        Ok(())
    }

    fn lease(&mut self) -> Result<u64, DecoderError> {
        let share = self.ledger.mint(SLOT, Instant::now())?;
        self.tokens.clear();
        Ok(share.get())
    }

    fn check_tokens(&self, tokens: &[i64]) -> Result<Vec<i32>, DecoderError> {
        let (count, cells) = (tokens.len(), self.cells());
        match count as u64 {
            0 => return Err(DecoderError::NoTokens),
            adopted if adopted >= cells => return Err(DecoderError::TooManyTokens { count, cells }),
            _ => {}
        }
        checked_ids(tokens, self.brain.n_vocab())
    }
}
