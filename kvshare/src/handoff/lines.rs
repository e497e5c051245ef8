//! A provider's output, taken line by line and in bounded memory, whatever it prints.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read};

use crate::fd::FdError;

/// A longer line is cut.
const MAX_LINE: usize = 16 << 10;

/// A line is quoted up to so many characters.
const MAX_QUOTED: usize = 300;

/// What is worth quoting of many lines: the first, where a program that refuses its arguments says why, and the last,
/// where one that fails at work does.
#[derive(Default)]
pub(super) struct Quote {
    first: Option<String>,
    last: Option<String>,
}

impl Quote {
    pub(super) fn take(&mut self, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        let mut words: String = line.chars().take(MAX_QUOTED).collect();
        if words.len() < line.len() {
            words.push('…');
        }
        let place = if self.first.is_none() { &mut self.first } else { &mut self.last };
        *place = Some(words);
    }

    pub(super) fn text(self) -> Option<String> {
        match (self.first, self.last) {
            (Some(first), Some(last)) => Some(format!("{first} … {last}")),
            (first, _) => first,
        }
    }
}

/// The read end of a pipe, until its other ends are closed.
pub(super) struct Lines {
    pipe: Option<OwnedFd>,
    line: Vec<u8>,
    cut: bool,
}

impl Lines {
    pub(super) fn new(pipe: Option<OwnedFd>) -> Result<Self, FdError> {
        if let Some(pipe) = &pipe {
            let flags = fcntl_getfl(pipe).map_err(FdError::system("fcntl F_GETFL"))?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(FdError::system("fcntl F_SETFL"))?;
        }
        Ok(Self { pipe, line: Vec::new(), cut: false })
    }

    /// The pipe, while it is open.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there now, at most `limit` bytes, and hands each finished line to `line`.
    pub(super) fn take(&mut self, limit: usize, line: &mut dyn FnMut(&str)) {
        let mut buffer = [0; 8192];
        let mut taken = 0;
        while taken < limit
            && let Some(pipe) = &self.pipe
        {
            match read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    taken += count;
                    self.split(&buffer[..count], line);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    /// Hands a last line without its newline to `line`.
    pub(super) fn finish(&mut self, line: &mut dyn FnMut(&str)) {
        if !self.line.is_empty() {
            self.end_line(line);
        }
    }

    fn split(&mut self, bytes: &[u8], line: &mut dyn FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match piece {
                [text @ .., b'\n'] => (text, true),
                text => (text, false),
            };
            let room = MAX_LINE - self.line.len();
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.end_line(line);
            }
        }
    }

    fn end_line(&mut self, line: &mut dyn FnMut(&str)) {
        let mut text = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        if self.cut {
            text.push('…');
        }
        line(&text);
        self.line.clear();
        self.cut = false;
    }
}
