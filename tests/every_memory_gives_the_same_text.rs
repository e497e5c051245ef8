//! Whatever kind of memory the decoder's cache lies in, the shared route, the file route and no handoff give the same greedy
//! text. It is shown on the kinds that this machine has; with `KVSHARE_ALL_KINDS` set, as `scripts/guest-suite.sh` sets it in
//! a guest machine, a kind that is missing is a failure.

use fake_exporter::memory_kind::MemoryKind;
use kvshare::memory::Reserve;
use kvshare_tests::{Route, Stage};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");

fn same_text_by_every_route(kind: &str) {
    let memory: MemoryKind = kind.parse().expect("a kind of memory");
    let allocation = memory.source(Reserve::Now).allocate("probe", 4096);
    let missing = match &allocation {
        Ok(allocation) => allocation.fallbacks.first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = missing {
        assert!(std::env::var_os("KVSHARE_ALL_KINDS").is_none(), "{kind} may not be left out here: {reason}");
        return eprintln!("left out: {kind}: {reason}");
    }
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "256", "--memory", kind], &[]);
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
