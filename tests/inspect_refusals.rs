//! `kvshare-cli inspect` says in words what is wrong with what it was given, and never crashes on it.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use kvshare::fd::Signal;
use kvshare::header::{Header, Params};
use kvshare::layout::{Layout, Tensor, TensorType};
use kvshare::memory::{Memfd, RegionSource as _, Reserve};
use kvshare_tests::eyes::{Cache, Ended, run};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// The messages of what was found wrong.
fn findings(ended: &Ended) -> Vec<String> {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report = ended.json();
    let found = report["findings"].as_array().unwrap().iter();
    found.map(|found| format!("{}: {}", found["about"].as_str().unwrap(), found["message"].as_str().unwrap())).collect()
}

fn inspect(descriptors: &[OwnedFd]) -> Ended {
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    run(PROGRAM, &["inspect", "--json", "--fds", "3"], &borrowed)
}

#[test]
fn what_is_no_memory_is_named_and_the_reason_given() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("region.bin");
    std::fs::write(&file, vec![1; 8192]).unwrap();
    let write_only: OwnedFd = File::options().write(true).open(&file).unwrap().into();
    let path_only = rustix::fs::open(&file, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let small = rustix::fs::memfd_create("small", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let cases: [(OwnedFd, &str, &str); 8] = [
        (UnixStream::pair().unwrap().0.into(), "socket", "a socket is no memory"),
        (rustix::pipe::pipe().unwrap().0, "pipe", "a pipe is no memory"),
        (File::open(directory.path()).unwrap().into(), "directory", "a directory is no memory"),
        (path_only, "path-only descriptor (O_PATH)", "O_PATH"),
        (write_only, "regular file", "not open for reading"),
        (File::open(&file).unwrap().into(), "regular file", "open for reading only"),
        (File::options().read(true).write(true).open(&file).unwrap().into(), "regular file", "not sealed"),
        (small, "memfd", "it has 0 bytes"),
    ];
    for (descriptor, kind, reason) in cases {
        let ended = inspect(&[descriptor]);
        assert_eq!(ended.json()["descriptors"][0]["kind"], kind);
        let findings = findings(&ended);
        assert!(findings[0].starts_with("descriptor 3: ") && findings[0].contains(reason), "{kind}: {findings:?}");
    }
}

#[test]
fn a_closed_descriptor_does_not_hide_the_open_one() {
    let memory = Memfd::new().allocate("open", 4096).unwrap();
    let ended = run(PROGRAM, &["inspect", "--json", "--fds", "9,3"], &[memory.descriptor.as_fd()]);
    let report = ended.json();
    assert!(report["descriptors"][0]["error"].as_str().unwrap().contains("no descriptor is open at 9"), "{report}");
    assert_eq!(report["descriptors"][1]["name"], "open");
    assert_eq!(ended.code, Some(1));
    let text = run(PROGRAM, &["inspect", "--fds", "9,3"], &[memory.descriptor.as_fd()]);
    assert!(text.text().contains("descriptor 9: cannot be looked at"), "{}", text.text());
}

#[test]
fn memory_that_is_not_the_headers_is_refused_by_name() {
    let cache = Cache::small(4);
    let size = cache.header.regions[0].size;
    let memory = |size| Memfd::new().allocate("other", size).unwrap().descriptor;
    let header = cache.header_path();
    let header = header.to_str().unwrap();
    let with = |descriptors: &[&OwnedFd], fds: &str| {
        let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        findings(&run(PROGRAM, &["inspect", "--json", "--layout", header, "--fds", fds], &borrowed))
    };
    let (smaller, larger) = (memory(size - 4096), memory(size + 4096));
    let found = with(&[&smaller], "3");
    assert!(found[0].starts_with("header: region 0 ends at"), "{found:?}");
    let found = with(&[&larger, &smaller], "3,4");
    assert!(found[0].contains("no region names it"), "{found:?}");
    let ended = run(PROGRAM, &["inspect", "--json", "--layout", header, "--fds", "3"], &[larger.as_fd()]);
    assert_eq!(ended.code, Some(0), "more than is described is allowed: {ended:?}");
}

#[test]
fn a_header_that_is_refused_says_why_and_the_descriptors_are_shown_all_the_same() {
    let cache = Cache::small(1);
    let good: Value = serde_json::from_slice(&cache.header.to_json()).unwrap();
    let changed = |change: fn(&mut Value)| {
        let mut header = good.clone();
        change(&mut header);
        header.to_string().into_bytes()
    };
    let cases: [(Vec<u8>, &str); 6] = [
        (b"not JSON".to_vec(), "is not JSON"),
        (changed(|header| header["digest"] = "blake3:00".into()), "digest"),
        (
            changed(|header| {
                header["digest"] = Value::Null;
                header["regions"][0]["layout"] = 7.into();
            }),
            "layout hash 7",
        ),
        (
            changed(|header| {
                header["digest"] = Value::Null;
                header["tensors"] = Value::Null;
            }),
            "--model FILE completes it",
        ),
        (changed(|header| header["version"] = 2.into()), "version 2"),
        (vec![b' '; (1 << 20) + 1], "bytes long"),
    ];
    for (bytes, reason) in cases {
        std::fs::write(cache.header_path(), bytes).unwrap();
        let ended = cache.run(PROGRAM, &["inspect", "--json"]);
        let findings = findings(&ended);
        assert!(findings[0].contains(reason), "{reason}: {findings:?}");
        assert_eq!(ended.json()["descriptors"][0]["name"], "kvshare:cache_k_l0..");
    }
    std::fs::remove_file(cache.header_path()).unwrap();
    assert!(findings(&cache.run(PROGRAM, &["inspect", "--json"]))[0].contains("header.json"));
}

#[test]
fn a_header_of_another_model_is_told_from_the_models_own() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");
    let other = Cache::small(1);
    let found = findings(&other.run(PROGRAM, &["inspect", "--json", "--model", model]));
    assert!(found[0].contains("same model"), "{found:?}");

    // kvshare-tiny has 8 layers of 64 channels for K and for V.
    let own = Cache::new(8, 64, 100, Params::plain(100, TensorType::F16));
    own.fill(3);
    assert_eq!(own.run(PROGRAM, &["inspect", "--json", "--model", model]).code, Some(0));
    let mut bare: Value = serde_json::from_slice(&own.header.to_json()).unwrap();
    for field in ["digest", "tensors", "params"] {
        bare[field] = Value::Null;
    }
    std::fs::write(own.header_path(), bare.to_string()).unwrap();
    let completed = own.run(PROGRAM, &["inspect", "--json", "--model", model]);
    assert_eq!(completed.code, Some(0), "{completed:?}");
    assert_eq!(completed.json()["layout"]["tensors"].as_array().unwrap().len(), 16);
}

#[test]
fn a_region_that_shrinks_and_grows_under_the_eyes_is_survived() {
    let cache = Cache::new(8, 256, 2048, Params::plain(2048, TensorType::F16));
    let size = cache.header.regions[0].size;
    let memory = rustix::fs::memfd_create("shrinking", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, size).unwrap();
    let (done, header) = (AtomicBool::new(false), cache.header_path());
    let arguments = ["inspect", "--json", "--layout", header.to_str().unwrap(), "--fds", "3"];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                rustix::fs::ftruncate(&memory, 4096).unwrap();
                rustix::fs::ftruncate(&memory, size).unwrap();
                // Something to read in the last tensor.
                rustix::io::pwrite(&memory, &[1; 4096], size - 4096).unwrap();
            }
        });
        for _ in 0..20 {
            let ended = run(PROGRAM, &arguments, &[memory.as_fd()]);
            assert_eq!(
                ended.code,
                Some(1),
                "it is neither sealed nor still, but no signal {:?}: {ended:?}",
                Signal::BUS
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn processes_that_are_not_there_are_told_from_those_that_are_guarded() {
    let ended = run(PROGRAM, &["inspect", "--pid", "4194304", "--json"], &[]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("there is no process 4194304"), "{ended:?}");
    let own = std::process::id().to_string();
    let ended = run(PROGRAM, &["inspect", "--json", "--pid", &own, "--fds", "1000000"], &[]);
    let found = &findings(&ended)[0];
    assert!(found.contains("has no descriptor 1000000") || found.contains("right to trace"), "{found}");
}

#[test]
fn tensors_and_rows_that_are_not_there_are_refused() {
    let cache = Cache::small(1);
    let cases: [(&[&str], &str); 4] = [
        (&["--tensor", "cache_k_l9", "--row", "0"], "the header's are cache_k_l0 to cache_v_l1"),
        (&["--tensor", "cache_k_l0", "--row", "100"], "position"),
        (&["--tensor", "cache_k_l0", "--row", "1", "--count", "18446744073709551615"], "position"),
        (&["--tensor", "cache_k_l0", "--row", "0", "--stream", "1"], "stream"),
    ];
    for (arguments, reason) in cases {
        let ended = cache.run(PROGRAM, &[&["inspect"], arguments].concat());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(reason), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn what_a_header_announces_of_a_sparse_memory_costs_nothing() {
    const BYTES: u64 = 1 << 40;
    for ne in [[1 << 39, 1, 1], [64, 1 << 33, 1], [64, 1, 1 << 33]] {
        let memory = Memfd::new().reserve(Reserve::OnTouch).allocate("sparse", BYTES).unwrap().descriptor;
        rustix::io::pwrite(&memory, &[0x3c; 4096], BYTES - 4096).unwrap();
        let tensor = Tensor::new("cache_k_l0", TensorType::F16, &ne).unwrap();
        let header = Header::describe(&Layout::place([vec![tensor]]), None, None);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("header.json");
        std::fs::write(&path, header.to_json()).unwrap();
        let arguments = ["inspect", "--json", "--fds", "3", "--layout", path.to_str().unwrap()];
        let ended = run(PROGRAM, &arguments, &[memory.as_fd()]);
        let report = ended.json();
        let tensor = &report["layout"]["tensors"][0];
        assert_eq!(tensor["error"], Value::Null, "{ended:?}");
        let streams = tensor["streams"].as_array().unwrap();
        let last = &streams[streams.len() - 1]["ranges"][0][1];
        assert_eq!(*last, ne[1], "{ne:?}: {tensor}");

        let row =
            run(PROGRAM, &[&arguments[..], &["--tensor", "cache_k_l0", "--row", "0"]].concat(), &[memory.as_fd()]);
        assert_eq!(row.code, Some(if ne[0] == 64 { 0 } else { 1 }), "{row:?}");
    }
}
