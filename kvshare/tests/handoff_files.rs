//! A provider's state file reaches the decoder only if it restores to the prompt, and into this decoder's cache.

use std::path::{Path, PathBuf};

use kvshare::handoff::{HandoffFile, KnownCache, StateCheckError};
use kvshare::layout::TensorType;
use kvshare::state_file::{ReadOptions, StateFile, StateShape};

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/samples/").join(name)).unwrap()
}

fn parse(bytes: &[u8]) -> StateFile {
    StateFile::parse(bytes, ReadOptions::default()).unwrap()
}

/// A slot directory, and a handoff's file in it that is not written yet.
fn scene() -> (tempfile::TempDir, HandoffFile, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = HandoffFile::new(directory.path());
    let path = directory.path().join(file.name());
    (directory, file, path)
}

#[test]
fn a_file_of_the_decoders_own_kind_passes_and_others_are_refused_by_name() {
    const OWN: &str = "f16-fa-a.bin";
    let mut known = KnownCache::default();
    known.learn(&parse(&sample(OWN))).unwrap();
    let cases = [
        ("f16-fa-b.bin", None),
        ("f16-nofa-a.bin", Some("v_trans of the state file is 1, of the decoder 0")),
        ("q8-fa-a.bin", Some("K rows of the state file are rotated by 64, the decoder's by 0")),
        ("tiny/f16-fa-tiny-a.bin", Some("layers, the decoder's cache 30")),
        ("f16-fa-np2-slot1-a.bin", Some("has 2 streams, the decoder 1")),
    ];
    for (name, words) in cases {
        let (_directory, file, path) = scene();
        let bytes = sample(name);
        std::fs::write(path, &bytes).unwrap();
        let checked = file.check(&parse(&bytes).tokens, &known);
        match words {
            None => assert_eq!(checked.unwrap(), bytes.len() as u64),
            Some(words) => {
                let error = checked.unwrap_err().to_string();
                assert!(
                    error.starts_with("the provider's state file is refused: ") && error.contains(words),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn what_is_known_of_one_part_is_compared_and_the_rest_is_not() {
    let state = parse(&sample("f16-fa-a.bin"));
    let own = state.only_stream().unwrap().shape.clone();
    let wider = StateShape { n_rot_v: 64, ..own.clone() };
    let known = KnownCache::default;
    let cases = [
        (known(), None),
        (KnownCache { type_k: Some(TensorType::F16), v_trans: Some(false), ..known() }, None),
        (KnownCache { type_k: Some(TensorType::Q8_0), ..known() }, Some("K of layer 0 is f16")),
        (KnownCache { type_v: Some(TensorType::F32), ..known() }, Some("V of layer 0 is f16")),
        (KnownCache { v_trans: Some(true), ..known() }, Some("v_trans")),
        (KnownCache { n_ctx: Some(3), ..known() }, Some("the cache 3")),
        (KnownCache { n_stream: Some(2), ..known() }, Some("1 streams, the decoder 2")),
        (KnownCache { shape: Some(own), ..known() }, None),
        (KnownCache { shape: Some(wider), ..known() }, Some("V rows of the state file are rotated by 0")),
    ];
    for (known, words) in cases {
        let found = known.check(&state, &state.tokens).map_err(|error| error.to_string());
        match words {
            None => assert_eq!(found, Ok(()), "{known:?}"),
            Some(words) => assert!(found.as_ref().is_err_and(|error| error.contains(words)), "{found:?}"),
        }
    }
}

#[test]
fn a_file_that_is_cut_or_of_another_prompt_is_refused() {
    let bytes = sample("f16-fa-a.bin");
    let tokens = parse(&bytes).tokens;
    let (_directory, file, path) = scene();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let cut = file.check(&tokens, &KnownCache::default()).unwrap_err();
    assert!(cut.to_string().contains("the state file ends inside"), "{cut}");
    std::fs::write(&path, &bytes).unwrap();
    let other = file.check(&tokens[1..], &KnownCache::default()).unwrap_err();
    assert!(other.to_string().contains("prefill exactly the prompt"), "{other}");
}

#[test]
fn what_is_no_file_of_the_slot_directory_is_neither_followed_nor_waited_for() {
    let tokens = parse(&sample("f16-fa-a.bin")).tokens;
    let check = |file: &HandoffFile| file.check(&tokens, &KnownCache::default());
    let (directory, file, path) = scene();
    assert!(matches!(check(&file), Err(StateCheckError::Missing(_))));

    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(elsewhere.path(), sample("f16-fa-a.bin")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
    assert!(matches!(check(&file), Err(StateCheckError::NotAFile)));
    std::fs::remove_file(&path).unwrap();

    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    assert!(matches!(check(&file), Err(StateCheckError::NotAFile)));
    drop(file);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it goes with its name");
}

#[test]
fn no_two_handoffs_share_a_name() {
    let [one, other] = [(); 2].map(|()| HandoffFile::new("/slots".as_ref()));
    assert_ne!(one.name(), other.name());
    assert!(kvshare::state_file::check_filename(one.name()).is_ok());
}
