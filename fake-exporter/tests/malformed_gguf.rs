//! A GGUF that is damaged or not supported is refused by name, without a panic and without believing what it announces.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use fake_exporter::model::{EMBEDDED_GGUF, GgufError, MalformedGguf, Model, ModelError};

fn read(bytes: &[u8]) -> Result<Model, ModelError> {
    Model::read(Cursor::new(bytes))
}

fn message(bytes: &[u8]) -> String {
    read(bytes).err().expect("refused").to_string()
}

/// The embedded model with `from` replaced by `to`, which is as long, at its first occurrence after `after`.
fn with(after: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = EMBEDDED_GGUF.to_vec();
    let find = |start: usize, what: &[u8]| {
        start + bytes[start..].windows(what.len()).position(|window| window == what).expect("found")
    };
    let start = find(find(0, after.as_bytes()), from);
    bytes[start..start + to.len()].copy_from_slice(to);
    bytes
}

/// A GGUF of version 3 with the given counts and whatever follows them.
fn gguf(tensors: u64, entries: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(entries.to_le_bytes());
    bytes.extend(rest.concat());
    bytes.resize(bytes.len() + 64, 0);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn what_is_no_gguf_is_refused_by_name() {
    const HUGE: u64 = u64::MAX;
    let huge = HUGE.to_le_bytes();
    let key = text("k");
    let tensor = text("t");
    let table: [(Vec<u8>, &str); 17] = [
        (vec![], "the GGUF is cut off or damaged: the magic needs 4 bytes and 0 are left"),
        (b"PK\x03\x04zip".to_vec(), "this is not a GGUF: it starts with the bytes [50, 4b, 03, 04]"),
        (b"GGUF\x01\0\0\0".to_vec(), "GGUF version 1 is not supported, only 2 and 3 are"),
        (b"GGUF\0\0\0\x03".to_vec(), "GGUF version 50331648 is not supported"),
        (
            gguf(0, HUGE, &[]),
            "a table of 18446744073709551615 metadata entries needs 18446744073709551615 bytes and 64 are left",
        ),
        (gguf(HUGE, 0, &[]), "a table of 18446744073709551615 tensors needs"),
        (gguf(0, 1, &[&huge]), "metadata key needs 18446744073709551615 bytes"),
        (
            gguf(0, 1, &[&70_000u64.to_le_bytes(), &[b'k'; 70_000]]),
            "a metadata key of 70000 bytes is over the format's 65535",
        ),
        (
            gguf(0, 1, &[&key, &13u32.to_le_bytes()]),
            "the metadata entry \"k\" has the value type 13; the format has 0 to 12",
        ),
        (gguf(0, 1, &[&key, &8u32.to_le_bytes(), &huge]), "k needs 18446744073709551615 bytes"),
        (gguf(0, 1, &[&key, &9u32.to_le_bytes(), &4u32.to_le_bytes(), &huge]), "k needs 18446744073709551615 bytes"),
        (gguf(0, 1, &[&key, &9u32.to_le_bytes(), &8u32.to_le_bytes(), &huge]), "k needs 18446744073709551615 bytes"),
        (gguf(0, 1, &[&key, &9u32.to_le_bytes(), &9u32.to_le_bytes(), &huge]), "\"k\" is an array of arrays"),
        (gguf(1, 0, &[&tensor, &5u32.to_le_bytes()]), "the tensor \"t\" has 5 dimensions; ggml has at most 4"),
        (
            gguf(1, 0, &[&tensor, &1u32.to_le_bytes(), &32u64.to_le_bytes(), &16u32.to_le_bytes()]),
            "the tensor \"t\" has the ggml type 16, which cannot be read",
        ),
        (
            gguf(1, 0, &[&tensor, &2u32.to_le_bytes(), &huge, &huge, &0u32.to_le_bytes()]),
            "the tensor \"t\" has the impossible shape [18446744073709551615, 18446744073709551615]",
        ),
        (
            gguf(1, 0, &[&tensor, &1u32.to_le_bytes(), &33u64.to_le_bytes(), &8u32.to_le_bytes()]),
            "the tensor \"t\" has the impossible shape [33]",
        ),
    ];
    for (bytes, expected) in table {
        let message = message(&bytes);
        assert!(message.contains(expected), "{message:?} should say {expected:?}");
    }
}

#[test]
fn names_that_occur_twice_are_refused() {
    let entry = [text("k"), vec![0, 0, 0, 0, 7]].concat();
    assert_eq!(
        message(&gguf(0, 2, &[&entry, &entry])),
        "the metadata key \"k\" occurs twice in the GGUF; convert the model again"
    );
    let tensor = [text("t"), vec![0; 4 + 4 + 8]].concat();
    assert_eq!(
        message(&gguf(2, 0, &[&tensor, &tensor])),
        "the tensor name \"t\" occurs twice in the GGUF; convert the model again"
    );
}

#[test]
fn a_gguf_cut_off_anywhere_is_refused_as_cut_off() {
    let table_end = 70_000;
    let cuts =
        (0..2_000).chain((2_000..table_end).step_by(997)).chain((table_end..EMBEDDED_GGUF.len()).step_by(99_991));
    for cut in cuts.chain([EMBEDDED_GGUF.len() - 1]) {
        match read(&EMBEDDED_GGUF[..cut]) {
            Err(ModelError::Gguf(GgufError::Malformed(MalformedGguf::CutOff { .. }))) => {}
            Err(other) => panic!("cut at {cut}: {other}"),
            Ok(_) => panic!("cut at {cut}: accepted"),
        }
    }
}

#[test]
fn a_gguf_with_any_byte_of_its_tables_changed_does_not_panic() {
    let mut bytes = EMBEDDED_GGUF.to_vec();
    for position in (0..1_500).chain((1_500..70_000).step_by(499)) {
        let original = bytes[position];
        bytes[position] = !original;
        let _ = read(&bytes);
        bytes[position] = original;
    }
}

#[test]
fn a_model_that_is_not_supported_is_refused_by_name() {
    let table: [(Vec<u8>, &str); 9] = [
        (
            with("general.architecture", b"llama", b"gemma"),
            "the architecture \"gemma\" is not supported, only \"llama\" and \"qwen3\" are; use such a model",
        ),
        (
            with("tokenizer.ggml.model", b"gpt2", b"t5xx"),
            "the tokenizer model \"t5xx\" is not supported, only \"gpt2\" (byte-level BPE) is; use such a model",
        ),
        (
            with("tokenizer.ggml.pre", b"gpt-2", b"llama"),
            "the pre-tokenizer \"llama\" is not supported, only \"smollm\", \"gpt-2\" and \"qwen2\" are; use such a model",
        ),
        (
            with("tokenizer.ggml.merges", b"h e", b"hhe"),
            "the merge \"hhe\" does not join two tokens to a third; convert the model again",
        ),
        (with("tokenizer.chat_template", b"endfor", b"endfro"), "the model's chat template is not valid: "),
        (
            with("llama.attention.head_count_kv", b"\x02\0\0\0", b"\x04\0\0\0"),
            "\"llama.attention.head_count_kv\" is 4, which is not possible: it must divide attention.head_count; \
             convert the model again with a current llama.cpp",
        ),
        (
            with("llama.rope.dimension_count", b"\x20\0\0\0", b"\x10\0\0\0"),
            "\"llama.rope.dimension_count\" is 16, which is not implemented: RoPE turns whole heads; use a model without it",
        ),
        (
            with("llama.block_count", b"\x08\0\0\0", b"\x09\0\0\0"),
            "the GGUF has no tensor \"blk.8.attn_q.weight\"; it may hold another architecture's model, or only a part of one",
        ),
        (
            with("llama.block_count", b"\x08\0\0\0", b"\x07\0\0\0"),
            "the GGUF has a tensor \"blk.7.attn_k.weight\" that this implementation does not know; its results would be \
             wrong, so use another model",
        ),
    ];
    for (bytes, expected) in table {
        let message = message(&bytes);
        assert!(message.starts_with(expected), "{message:?} should be {expected:?}");
    }
}

#[test]
fn what_is_not_a_file_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &Path| Model::open(path).err().expect("refused").to_string();
    let path = directory.path();
    assert_eq!(open(path), format!("the model {} is not a file; give the path of a GGUF", path.display()));
    let absent = path.join("absent.gguf");
    assert_eq!(
        open(&absent),
        format!("the model {} could not be opened: No such file or directory (os error 2)", absent.display())
    );
    let empty = path.join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    assert!(open(&empty).starts_with("the GGUF is cut off or damaged"));
}
