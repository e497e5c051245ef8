//! What the slot promises whatever the transport: text is cut right, and refusals change nothing.

use super::text::{Added, TextStream};

fn said(stop_words: &[&str], pieces: &[&[u8]]) -> (Vec<String>, Option<String>, String) {
    let mut stream = TextStream::new(stop_words.iter().map(|word| (*word).to_owned()).collect());
    let mut texts = Vec::new();
    let mut stopped = None;
    for bytes in pieces {
        let Added { text, stop_word } = stream.push(bytes);
        texts.push(text);
        stopped = stopped.or(stop_word);
    }
    (texts, stopped, stream.finish())
}

#[test]
fn a_character_comes_out_whole() {
    let (texts, _, rest) = said(&[], &[b"a\xe2", b"\x82", b"\xac!"]);
    assert_eq!(texts, ["a", "", "€!"]);
    assert_eq!(rest, "");
}

#[test]
fn bytes_that_are_no_character_become_replacement_characters() {
    let (texts, _, rest) = said(&[], &[b"\xff", b"b\xe2", b"c\xe2"]);
    assert_eq!(texts, ["\u{fffd}", "b", "\u{fffd}c"]);
    assert_eq!(rest, "\u{fffd}");
}

#[test]
fn a_stop_word_ends_the_text_before_itself_wherever_tokens_cut_it() {
    let cases: [(&[&[u8]], &[&str]); 3] = [
        (&[b"one STOP two"], &["one "]),
        (&[b"one ST", b"OP two"], &["one ", ""]),
        (&[b"one S", b"T", b"O", b"P"], &["one ", "", "", ""]),
    ];
    for (pieces, expected) in cases {
        let (texts, stopped, rest) = said(&["STOP", ""], pieces);
        assert_eq!(texts, expected);
        assert_eq!((stopped.as_deref(), rest.as_str()), (Some("STOP"), ""));
    }
}

#[test]
fn what_only_looked_like_a_stop_word_is_said_after_all() {
    let (texts, stopped, rest) = said(&["STOP"], &[b"a ST", b"ART ST"]);
    assert_eq!(texts, ["a ", "START "]);
    assert_eq!((stopped, rest.as_str()), (None, "ST"));
}
