//! A file gets its name when it is whole, or not at all.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use kvshare::layout::TensorType;
use kvshare::state_file::{CacheSource, CopyError, Run, Slot, StateFile, StateFileError, StateShape, check_filename};

use super::support::{MemoryCache, shape, written};

fn file() -> StateFile {
    StateFile::of_prompt(vec![7, 8, 9], shape(2, TensorType::F16, 4), Slot::default()).expect("one slot of one")
}

#[test]
fn a_published_file_has_its_name_its_bytes_and_one_reader() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("slot.bin");
    fs::write(&path, "an older file").expect("a file");
    let cache = MemoryCache::for_file(&file(), 3, |index| index as u8);
    let length = file().publish(&cache, directory.path(), "slot.bin").expect("a good name");
    let bytes = fs::read(&path).expect("it is there");
    assert_eq!((bytes.len() as u64, &bytes), (length, &written(&file())));
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
}

struct Broken;

impl CacheSource for Broken {
    type Error = &'static str;

    fn shape(&self) -> StateShape {
        shape(2, TensorType::F16, 4)
    }

    fn read_rows(&self, run: &Run, rows: &mut [u8]) -> Result<(), &'static str> {
        rows.fill(0);
        if run.layer == 1 { Err("layer 1 is gone") } else { Ok(()) }
    }

    fn read_channel(&self, _: &Run, _: u32, _: &mut [u8]) -> Result<(), &'static str> {
        Err("nothing is transposed")
    }
}

#[test]
fn a_cache_that_fails_leaves_the_older_file_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("slot.bin");
    fs::write(&path, "an older file").expect("a file");
    let error = file().publish(&Broken, directory.path(), "slot.bin").expect_err("a broken cache");
    assert_eq!(error.to_string(), "the cache refused K of layer 1, cells 0..3 of stream 0: layer 1 is gone");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "an older file");
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
}

#[test]
fn a_missing_directory_is_named_for_what_failed() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = file().publish(&Broken, &directory.path().join("gone"), "slot.bin").expect_err("no directory");
    assert!(matches!(error, CopyError::File(StateFileError::Io { action: "create", .. })), "{error}");
}

#[test]
fn a_name_that_a_server_refuses_is_refused_with_its_reason() {
    let long = "x".repeat(256);
    let cases = [
        ("", "it is empty"),
        (long.as_str(), "it is longer than 255 bytes"),
        ("a/b", "it is a path"),
        ("/etc/passwd", "it is a path"),
        ("a:b", "a server forbids one of its characters"),
        ("a\\b", "a server forbids one of its characters"),
        ("a\u{2215}b", "a server forbids one of its characters"),
        ("a\nb", "it has a control character"),
        ("..", "it has two dots in a row"),
        ("a..b", "it has two dots in a row"),
        ("a ", "it starts or ends with a space"),
        (" a", "it starts or ends with a space"),
        (".", "it ends with a dot"),
    ];
    for (name, expected) in cases {
        match check_filename(name) {
            Err(StateFileError::Name { reason, .. }) => assert_eq!(reason, expected, "{name:?}"),
            other => panic!("{name:?}: {other:?}"),
        }
        let error = file().publish(&Broken, std::path::Path::new("."), name).expect_err("a bad name");
        assert!(matches!(error, CopyError::File(StateFileError::Name { .. })), "{error}");
    }
    for name in ["slot.bin", ".hidden", "größe 7.bin", &long[1..]] {
        check_filename(name).expect(name);
    }
}
