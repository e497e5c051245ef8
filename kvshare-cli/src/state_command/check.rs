//! `state check`: everything that is wrong with a file, and what the stock server would make of it.
//!
//! What the server does was measured: see the page "Facts about llama.cpp" of the book.

use std::fmt;
use std::io::BufReader;
use std::path::Path;

use kvshare::provider::read_tokens;
use kvshare::state_file::{Expected, ReadOptions, StateFile, StateFileError, StateShape};
use serde_json::{Value, json};

use super::arguments::CheckArguments;
use super::loaded::{LoadError, Loaded, is_m_rope, open, walk};
use super::show::{rows_of, surveys};
use crate::output::{Failure, print};

/// Something that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFinding {
    /// What is wrong, for people.
    pub message: String,
    /// What the stock server would do.
    pub server: ServerReaction,
}

/// What the stock server does with a file in which something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReaction {
    /// It answers 400 and leaves the slot empty.
    Refuses,
    /// It aborts, and every connection drops.
    Aborts,
    /// It restores the file and says nothing.
    DoesNotNotice,
    /// Nobody has tried.
    NotKnown,
}

impl ServerReaction {
    const fn name(self) -> &'static str {
        match self {
            Self::Refuses => "refuses",
            Self::Aborts => "aborts",
            Self::DoesNotNotice => "does not notice",
            Self::NotKnown => "not known",
        }
    }
}

impl fmt::Display for ServerReaction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Refuses => "the stock server refuses it",
            Self::Aborts => "the stock server ABORTS on it",
            Self::DoesNotNotice => "the stock server does NOT notice",
            Self::NotKnown => "what the stock server does with it is not known",
        })
    }
}

/// What the stock server does with a file that is refused here.
pub const fn server_reaction(error: &StateFileError) -> ServerReaction {
    match error {
        StateFileError::TruncatedRows { .. } => ServerReaction::Aborts,
        StateFileError::TrailingBytes { .. }
        | StateFileError::TokenCount { .. }
        | StateFileError::Token { .. }
        | StateFileError::CellCount { .. }
        | StateFileError::Position { .. } => ServerReaction::DoesNotNotice,
        StateFileError::Truncated { .. }
        | StateFileError::Magic { .. }
        | StateFileError::Version { .. }
        | StateFileError::Vocabulary { .. }
        | StateFileError::Transposition { .. }
        | StateFileError::Rotation { .. }
        | StateFileError::Type { .. }
        | StateFileError::LayerCount { .. }
        | StateFileError::RowWidth { .. }
        | StateFileError::StreamCount { .. }
        | StateFileError::Context { .. } => ServerReaction::Refuses,
        _ => ServerReaction::NotKnown,
    }
}

/// Everything that is wrong with a file that has the right form, against what it is expected to be.
pub fn findings(file: &StateFile, expected: &Expected<'_>) -> Vec<StateFinding> {
    // One at a time, since a validation ends at the first difference.
    let none = Expected::default();
    let each = [
        none,
        Expected { tokens: expected.tokens, ..none },
        Expected { n_vocab: expected.n_vocab, ..none },
        Expected { n_ctx: expected.n_ctx, ..none },
        Expected { n_stream: expected.n_stream, ..none },
        Expected { shape: expected.shape, ..none },
    ];
    let mut findings: Vec<StateFinding> = Vec::new();
    for error in each.iter().filter_map(|expected| file.validate(expected).err()) {
        let finding = StateFinding { message: error.to_string(), server: server_reaction(&error) };
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    findings
}

pub(super) fn run(arguments: &CheckArguments) -> Result<bool, Failure> {
    let tokens = arguments.tokens.as_ref().map(|path| read_tokens(path)).transpose().map_err(Failure::new)?;
    let like = arguments.like.as_ref().map(|path| Like::read(path, arguments.form.m_rope)).transpose()?;
    let expected = Expected {
        tokens: tokens.as_deref(),
        n_vocab: arguments.n_vocab,
        n_ctx: arguments.n_ctx,
        n_stream: like.as_ref().map(|like| like.n_stream),
        shape: like.as_ref().map(|like| &like.shape),
    };
    let (mut checked, mut unreadable) = (Vec::new(), Vec::new());
    for path in &arguments.files {
        // One file that cannot be read must not hide what is known of the others.
        match check_file(path, &expected, arguments.form.m_rope) {
            Ok(found) => checked.push((path, found)),
            Err(failure) => unreadable.push(failure.to_string()),
        }
    }
    let is_good = unreadable.is_empty() && checked.iter().all(|(_, checked)| checked.findings.is_empty());
    if arguments.json && !checked.is_empty() {
        let files: Vec<Value> = checked.iter().map(|(path, checked)| checked.as_json(path)).collect();
        print(&format!("{:#}", json!({"good": is_good, "files": files})))?;
    } else if !checked.is_empty() {
        let files: Vec<String> = checked.iter().map(|(path, checked)| checked.as_text(path)).collect();
        print(&files.join("\n"))?;
    }
    if unreadable.is_empty() { Ok(is_good) } else { Err(Failure::new(unreadable.join("; "))) }
}

/// What a file of the server's own says of its cache.
struct Like {
    n_stream: usize,
    shape: StateShape,
}

impl Like {
    fn read(path: &Path, m_rope: bool) -> Result<Self, Failure> {
        let in_file = |error: StateFileError| Failure::new(format!("{}: {error}", path.display()));
        let file = open(path).map_err(Failure::new)?;
        let state = walk(path, &file, m_rope).map_err(Failure::new)?;
        let shape = state.only_stream().map_err(in_file)?.shape.clone();
        Ok(Self { n_stream: state.streams.len(), shape })
    }
}

struct Checked {
    summary: String,
    findings: Vec<StateFinding>,
}

fn check_file(path: &Path, expected: &Expected<'_>, m_rope: bool) -> Result<Checked, Failure> {
    let file = open(path).map_err(Failure::new)?;
    let state = match StateFile::walk(BufReader::new(&file), ReadOptions { m_rope }) {
        Ok(state) => state,
        Err(_) if is_m_rope(&file, m_rope) => return Err(Failure::new(LoadError::MRope { path: path.to_owned() })),
        Err(error) => {
            let finding = StateFinding { message: error.to_string(), server: server_reaction(&error) };
            return Ok(Checked { summary: String::new(), findings: vec![finding] });
        }
    };
    let mut findings = findings(&state, expected);
    // Rows that belong to several streams, or are of mixed types, are wrong for other reasons.
    if let Ok(loaded) = Loaded::read(path, m_rope) {
        for survey in surveys(&loaded)? {
            let rows = rows_of(&survey);
            let missing = loaded.cells() - rows.rows.len() as u64;
            let mut add = |message| findings.push(StateFinding { message, server: ServerReaction::DoesNotNotice });
            if let Some(odd) = rows.first_odd {
                let (name, count) = (survey.tensor.name(), rows.odd_rows);
                add(format!(
                    "{name}: row {} is odd: {}, {} at channel {} (of {count} odd rows)",
                    odd.position, odd.oddity, odd.value, odd.channel
                ));
            }
            if missing > 0 {
                add(format!("{}: {missing} of {} rows are all 0", survey.tensor.name(), loaded.cells()));
            }
        }
    }
    let cells: usize = state.occupied().map(|(_, stream)| stream.cells.len()).sum();
    Ok(Checked { summary: format!("{} tokens, {cells} cells", state.tokens.len()), findings })
}

impl Checked {
    fn as_text(&self, path: &Path) -> String {
        if self.findings.is_empty() {
            return format!("{}: good ({})", path.display(), self.summary);
        }
        let lines = self.findings.iter().map(|finding| format!("\n  {} [{}]", finding.message, finding.server));
        format!("{}: NOT GOOD{}", path.display(), lines.collect::<String>())
    }

    fn as_json(&self, path: &Path) -> Value {
        let finding =
            |finding: &StateFinding| json!({"message": finding.message, "stock_server": finding.server.name()});
        let findings: Vec<Value> = self.findings.iter().map(finding).collect();
        json!({"file": path.display().to_string(), "good": findings.is_empty(), "findings": findings})
    }
}
