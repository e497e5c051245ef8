//! `inspect` says of every kind of memory what it is, who has it and what lies in it, and `doctor` which kinds a machine has.
//! Both are shown on the kinds that this machine has, as [`memory_kinds`](kvshare_tests::memory_kinds) says.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use drm::buffer::{Buffer as _, DrmFourcc};
use drm::control::Device as _;
use kvshare_tests::eyes::{Cache, element, run};
use kvshare_tests::memory_kinds::{Card, source, vgem};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

/// Inspects a cache of which 17 of 100 positions are written, in memory of this kind, and compares what is said with
/// `facts`.
fn inspected(kind: &str, facts: Value) {
    let Some(source) = source(kind) else { return };
    let cache = Cache::small_in(&*source, 17);
    let mapped = cache.mapped();
    let ended = cache.run(PROGRAM, &["inspect", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    let descriptor = &report["descriptors"][0];
    let common = json!({
        "name": "kvshare:cache_k_l0..", "access": "read-write", "size": cache.header.regions[0].size,
        "cpu_may_read": true, "cpu_may_write": true, "why_not_read": null, "why_not_write": null,
    });
    for (field, expected) in common.as_object().unwrap().iter().filter(|(field, _)| facts.get(field).is_none()) {
        assert_eq!(descriptor[field], *expected, "{field}");
    }
    for (field, expected) in facts.as_object().unwrap() {
        assert_eq!(descriptor[field], *expected, "{field}");
    }
    let holders = descriptor["also_open_in"].as_array().unwrap();
    let us = holders.iter().find(|holder| holder["pid"] == std::process::id()).unwrap();
    assert_eq!(us["mapped"], true);
    assert!(us["descriptors"].as_array().unwrap().contains(&json!(cache.descriptors[0].as_raw_fd())), "{us}");

    assert_eq!(report["findings"], json!([]));
    let tensors = report["layout"]["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 4);
    for (tensor, (layer, sign)) in tensors.iter().zip([(0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)]) {
        let rows = &tensor["streams"][0];
        assert_eq!(rows["ranges"], json!([[0, 17]]), "{tensor}");
        let mean = sign * (element(layer, 8, 31) + element(layer, 8, 32)) / 2.0;
        assert_eq!(rows["mean"], f64::from(mean), "{tensor}");
    }

    drop(mapped);
    let report = cache.run(PROGRAM, &["inspect", "--json"]).json();
    let holders = report["descriptors"][0]["also_open_in"].as_array().unwrap();
    let us = holders.iter().find(|holder| holder["pid"] == std::process::id()).unwrap();
    assert_eq!(us["mapped"], false, "the descriptor is all that is left");
}

#[test]
fn a_memfd() {
    inspected("memfd", json!({"kind": "memfd", "exporter": null, "page_bytes": rustix::param::page_size()}));
}

#[test]
fn a_memfd_of_huge_pages() {
    // The file is as long as the pages that it is made of.
    let size = 2 << 20;
    let facts = json!({"kind": "memfd", "exporter": null, "page_bytes": size, "size": size, "allocated_bytes": size});
    inspected("memfd-hugetlb", facts);
}

#[test]
fn a_udmabuf() {
    inspected("udmabuf", dma_buf("udmabuf", "a memfd as a dma-buf"));
}

#[test]
fn a_buffer_of_a_dma_heap() {
    inspected("dma-heap:system", dma_buf("system", "a DMA heap"));
}

#[test]
fn a_buffer_of_a_drm_device() {
    inspected("drm", dma_buf("drm", "a DRM driver"));
}

/// A dma-buf has neither seals nor pages that anybody but its driver knows.
fn dma_buf(exporter: &str, words: &str) -> Value {
    json!({
        "kind": "dma-buf", "exporter": exporter, "exporter_is": words, "seals": null, "page_bytes": null,
        "allocated_bytes": null,
    })
}

#[test]
fn a_buffer_that_was_exported_for_reading() {
    if source("drm").is_none() {
        return;
    }
    let card = Card(File::options().read(true).write(true).open(vgem()).unwrap());
    let buffer = card.create_dumb_buffer((1024, 2), DrmFourcc::Xrgb8888, 32).unwrap();
    let exported = card.buffer_to_prime_fd(buffer.handle(), drm::CLOEXEC).unwrap();
    let ended = run(PROGRAM, &["inspect", "--json", "--fds", "3"], &[exported.as_fd()]);
    let descriptor = &ended.json()["descriptors"][0];
    for (field, expected) in [
        ("access", json!("read")),
        ("size", json!(8192)),
        ("cpu_may_read", json!(true)),
        ("cpu_may_write", json!(false)),
        ("why_not_write", json!("the dma-buf was exported read-only; export it with DRM_RDWR, or map it for reading")),
    ] {
        assert_eq!(descriptor[field], expected, "{field}");
    }
}

#[test]
fn doctor_finds_the_kinds_that_can_be_had() {
    let report = run(PROGRAM, &["doctor", "--json"], &[]).json();
    let checks = report["checks"].as_array().unwrap();
    let table = [
        ("memfd", "default route", "a sealed memfd crossed"),
        ("memfd-hugetlb", "huge page pools", "2048 KiB: "),
        ("udmabuf", "udmabuf", "at most "),
        ("dma-heap:system", "DMA heaps", "system"),
        ("drm", "DRM nodes", "card"),
    ];
    for (kind, name, words) in table.into_iter().filter(|(kind, ..)| source(kind).is_some()) {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["state"], "good", "{kind}: {check}");
        assert!(check["found"].as_str().unwrap().contains(words), "{kind}: {check}");
    }
}
