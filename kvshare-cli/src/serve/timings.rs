//! How many prompt tokens the backend evaluated, read from its reply as the reply passes.

use serde::Deserialize;

/// The longest line of a stream that is looked at. A longer one passes unread.
const MAX_LINE: usize = 1 << 20;

/// Reads a stream's frames while they are relayed. The timings ride on one of the last
/// (`server_task_result_cmpl_final` in llama.cpp's `tools/server/server-task.cpp`).
#[derive(Debug, Default)]
pub struct StreamReader {
    line: Vec<u8>,
    is_too_long: bool,
    evaluated: Option<u64>,
}

impl StreamReader {
    /// Looks at the next bytes of the stream, however they are cut.
    pub fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.is_too_long |= self.line.len() + piece.len() > MAX_LINE;
            if self.is_too_long {
                self.line.clear();
            } else {
                self.line.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// The prompt tokens that the backend evaluated, once it has said so.
    pub fn evaluated(&self) -> Option<u64> {
        self.evaluated
    }

    fn end_line(&mut self) {
        // Most frames have no timings, and are not worth parsing.
        let json = self.line.strip_prefix(b"data: ").filter(|json| contains(json, b"\"timings\""));
        if let Some(evaluated) = json.and_then(evaluated_in) {
            self.evaluated = Some(evaluated);
        }
        self.line.clear();
        self.is_too_long = false;
    }
}

/// The prompt tokens that the backend evaluated for a whole `reply`, if it says so.
pub fn evaluated_in(reply: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Reply {
        timings: Timings,
    }
    #[derive(Deserialize)]
    struct Timings {
        prompt_n: u64,
    }
    serde_json::from_slice::<Reply>(reply).ok().map(|reply| reply.timings.prompt_n)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\": [{\"delta\": {\"content\": \"\\\"timings\\\" é\"}}]}\n\n\
                          data: {\"choices\": [], \"timings\": {\"cache_n\": 328, \"prompt_n\": 1}}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_count_is_found_however_the_stream_is_cut() {
        for size in 1..=STREAM.len() {
            let mut reader = StreamReader::default();
            STREAM.as_bytes().chunks(size).for_each(|chunk| reader.take(chunk));
            assert_eq!(reader.evaluated(), Some(1), "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_of_any_length_passes_and_the_next_is_read() {
        let mut reader = StreamReader::default();
        for _ in 0..=MAX_LINE / 1024 {
            reader.take(&[b'x'; 1024]);
        }
        assert!(reader.line.capacity() <= 2 * MAX_LINE);
        reader.take(b"\n");
        reader.take(STREAM.as_bytes());
        assert_eq!(reader.evaluated(), Some(1));
    }

    #[test]
    fn a_reply_without_timings_says_nothing() {
        for reply in ["", "{}", "[1]", r#"{"timings": null}"#, r#"{"timings": {"prompt_n": -1}}"#] {
            assert_eq!(evaluated_in(reply.as_bytes()), None, "{reply}");
        }
    }
}
