//! Whatever kind of memory the decoder's cache lies in, the shared route, the file route and no handoff give the same greedy
//! text, and on a udmabuf the gate is passed. It is shown on the kinds that this machine has, as
//! [`memory_kinds`](kvshare_tests::memory_kinds) says.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use kvshare_tests::memory_kinds::{argument, source};
use kvshare_tests::{Route, Stage};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn same_text_by_every_route(kind: &str) {
    if source(kind).is_none() {
        return;
    }
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "256", "--memory", &argument(kind)], &[]);
    let tokens = stage.chat_tokens("What is the moon?");
    let cold = stage.complete_by(Route::None, &tokens, 6).expect("a completion");
    assert_eq!(cold.timings.prompt_n, tokens.len() as u64);
    for route in [Route::Shared, Route::File] {
        let handed_over = stage.complete_by(route, &tokens, 6).expect("a handoff");
        let timings = (handed_over.timings.cache_n, handed_over.timings.prompt_n);
        assert_eq!(timings, (tokens.len() as u64 - 1, 1), "{route:?}");
        assert_eq!(handed_over.content, cold.content, "{route:?}");
    }
}

#[test]
fn on_a_memfd() {
    same_text_by_every_route("memfd");
}

#[test]
fn on_a_memfd_of_huge_pages() {
    same_text_by_every_route("memfd-hugetlb");
}

#[test]
fn on_a_udmabuf() {
    same_text_by_every_route("udmabuf");
}

#[test]
fn on_a_dma_heap() {
    same_text_by_every_route("dma-heap:system");
}

#[test]
fn on_a_drm_device() {
    same_text_by_every_route("drm");
}

#[test]
fn and_the_gate_is_passed_on_a_udmabuf() {
    if source("udmabuf").is_none() {
        return;
    }
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "256", "--memory", "udmabuf"], &[]);
    let directory = stage.cycle.slot_directory.as_path();
    let provider = directory.join("provider");
    std::fs::write(&provider, format!("#!/bin/sh\nexec '{PROGRAM}' reference-provider \"$@\"\n")).unwrap();
    std::fs::set_permissions(&provider, Permissions::from_mode(0o700)).unwrap();
    let mut gate = Command::new(PROGRAM);
    // The lengths that the gate takes by itself are too much for a guest whose processor is emulated.
    gate.args(["gate", "--json", "--lengths", "24,64,128", "--runs", "1", "--tokens", "12"]);
    gate.args(["--backend-url", stage.decoder.address(), "--slot-dir"]).arg(directory);
    gate.arg("--prefill-provider").arg(&provider).arg("--model").arg(&stage.cycle.provider.model);
    let output = gate.arg("--backend-pid").arg(stage.decoder.id().to_string()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert!(output.status.success() && report["passed"] == true, "{report:#}");
    assert_eq!(report["lengths"].as_array().unwrap().len(), 3);
}
