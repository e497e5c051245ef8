//! From the bytes of tokens to text that can be shown: whole characters, and nothing of a stop word.

/// Collects a text token by token and gives out what is certain.
///
/// A character may be spread over several tokens, and so may a stop word: what could be the beginning of either is held
/// back until more is known.
pub(super) struct TextStream {
    stop_words: Vec<String>,
    /// The start of a character.
    bytes: Vec<u8>,
    /// Characters that may be the start of a stop word.
    held: String,
}

/// What a token added.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// Text that is certain.
    pub text: String,
    /// The stop word that ended the text. It is no part of it.
    pub stop_word: Option<String>,
}

impl TextStream {
    pub fn new(stop_words: Vec<String>) -> Self {
        let stop_words = stop_words.into_iter().filter(|word| !word.is_empty()).collect();
        Self { stop_words, bytes: Vec::new(), held: String::new() }
    }

    /// Adds a token's bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Added {
        self.bytes.extend_from_slice(bytes);
        self.take_characters();
        let found = self.stop_words.iter().filter_map(|word| Some((self.held.find(word)?, word)));
        if let Some((end, word)) = found.min_by_key(|(start, _)| *start) {
            let added = Added { text: self.held[..end].to_owned(), stop_word: Some(word.clone()) };
            self.held.clear();
            self.bytes.clear();
            return added;
        }
        let certain = self.held.len() - self.stop_word_start();
        Added { text: self.held.drain(..certain).collect(), stop_word: None }
    }

    /// What was held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.bytes);
        std::mem::take(&mut self.held) + &String::from_utf8_lossy(&rest)
    }

    /// Moves whole characters from `bytes` to `held`; what can never become one turns into U+FFFD.
    fn take_characters(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.held.push_str(chunk.valid());
            match std::str::from_utf8(chunk.invalid()) {
                Ok(_) => {}
                // Only at the end can what is missing still come.
                Err(error) if error.error_len().is_none() && chunks.peek().is_none() => {
                    self.bytes = chunk.invalid().to_vec();
                }
                Err(_) => self.held.push(char::REPLACEMENT_CHARACTER),
            }
        }
    }

    /// The length of the longest end of `held` that a stop word begins with.
    fn stop_word_start(&self) -> usize {
        let mut ends = self.held.char_indices().map(|(start, _)| &self.held[start..]);
        let is_start = |end: &&str| self.stop_words.iter().any(|word| word.starts_with(*end));
        ends.find(is_start).map_or(0, str::len)
    }
}
