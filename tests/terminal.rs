//! A terminal, and what somebody who looks at it would see.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use nix::pty::{Winsize, openpty};

const COLUMNS: u16 = 80;

/// A pseudo-terminal.
pub struct Terminal {
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// One of 80 columns, and its other end, for a program.
    ///
    /// # Panics
    /// The system has none.
    pub fn open() -> (Self, Stdio) {
        let size = Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).expect("a terminal");
        let (mut screen, written) = (File::from(pair.master), Arc::new(Mutex::new(Vec::new())));
        let pen = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It ends with an error when the last program is gone (EIO).
            while let Ok(count) = screen.read(&mut bytes) {
                pen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..count]);
            }
        });
        (Self { written }, pair.slave.into())
    }

    /// What stands on it, line by line, without what follows the last letter of each.
    pub fn lines(&self) -> Vec<String> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut screen = Screen::default();
        screen.show(&String::from_utf8_lossy(&written));
        screen.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
    }
}

/// As much of a terminal as a progress line needs; a command that it does not know stands on it as it was written.
#[derive(Default)]
struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    fn show(&mut self, mut text: &str) {
        while let Some(character) = text.chars().next() {
            text = match command(text) {
                Some((count, name, rest)) if self.obeys(count, name) => rest,
                _ => {
                    self.put(character);
                    &text[character.len_utf8()..]
                }
            };
        }
    }

    fn obeys(&mut self, count: usize, name: char) -> bool {
        let column = self.column;
        match (name, count) {
            ('A', _) => self.row = self.row.saturating_sub(count.max(1)),
            ('B', _) => self.row += count.max(1),
            ('K', 0) => self.line().truncate(column),
            ('K', 2) => self.line().clear(),
            ('m', _) => {}
            _ => return false,
        }
        true
    }

    fn put(&mut self, character: char) {
        match character {
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            _ => {
                // A full line is left only for what would not fit on it.
                if self.column == usize::from(COLUMNS) {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                let column = self.column;
                let line = self.line();
                line.resize(line.len().max(column + 1), ' ');
                line[column] = character;
                self.column += 1;
            }
        }
    }

    fn line(&mut self) -> &mut Vec<char> {
        let row = self.row;
        self.rows.resize_with(self.rows.len().max(row + 1), Vec::new);
        &mut self.rows[row]
    }
}

/// A command at the start of `text` such as `ESC [ 2 K`: its number, its name, and what follows.
fn command(text: &str) -> Option<(usize, char, &str)> {
    let text = text.strip_prefix("\x1b[")?;
    let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let name = text[digits..].chars().next()?;
    Some((text[..digits].parse().unwrap_or(0), name, &text[digits + name.len_utf8()..]))
}
