//! What a provider refuses before it computes anything, and what it says of its own failure.

use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use kvshare::header::{Header, HeaderError};
use kvshare::layout::{Geometry, RecurrentWidths, TensorType};
use kvshare::memory::Memfd;
use kvshare::provider::{Arguments, AssumedCache, Provider, ProviderError, Route, run_with};
use kvshare::rows::allocate;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-exporter/model/kvshare-tiny.gguf");

/// A directory with a token file, and arguments that name it.
struct Prompt {
    directory: tempfile::TempDir,
}

impl Prompt {
    fn new(tokens: impl AsRef<[u8]>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tokens"), tokens).unwrap();
        Self { directory }
    }

    fn arguments(&self, route: Route) -> Arguments {
        Arguments { tokens: self.directory.path().join("tokens"), model: TINY.into(), elfs: None, route }
    }

    fn refusal(&self, route: Route) -> ProviderError {
        Provider::open(self.arguments(route), &AssumedCache::default()).unwrap_err()
    }

    /// The shared route with this header.
    fn shared(&self, header: &Header, fds: Vec<i32>) -> Route {
        let layout = self.directory.path().join("layout.json");
        std::fs::write(&layout, header.to_json()).unwrap();
        Route::Shared { layout, fds }
    }
}

/// The memory of `header` at numbers that a program could have inherited: open, and not closed on exec. Each number is
/// used once, since none can be taken twice.
fn inherited(header: &Header) -> Vec<i32> {
    static NEXT: AtomicI32 = AtomicI32::new(100);
    let number = |descriptor: OwnedFd| {
        let unused = NEXT.fetch_add(1, Ordering::Relaxed);
        let duplicate = rustix::io::fcntl_dupfd_cloexec(&descriptor, unused).unwrap();
        rustix::io::fcntl_setfd(&duplicate, rustix::io::FdFlags::empty()).unwrap();
        duplicate.into_raw_fd()
    };
    allocate(header, &Memfd::new(), "refusals").unwrap().into_iter().map(number).collect()
}

fn header(geometry: &Geometry) -> Header {
    Header::describe(&geometry.layout().unwrap(), None, None)
}

fn tiny(cells: u64) -> Geometry {
    Geometry::uniform(8, 64, 64, cells, TensorType::F16)
}

fn file(out: impl Into<PathBuf>) -> Route {
    Route::File { out: out.into() }
}

#[test]
fn another_number_of_descriptors_than_the_header_names_is_refused() {
    let prompt = Prompt::new("1\n2\n");
    let error = prompt.refusal(prompt.shared(&header(&tiny(256)), Vec::new()));
    assert!(matches!(error, ProviderError::DescriptorCount { given: 0, named: 1 }), "{error}");
}

#[test]
fn a_prompt_of_more_tokens_than_cells_is_refused() {
    let prompt = Prompt::new("7\n".repeat(257));
    let header = header(&tiny(256));
    let error = prompt.refusal(prompt.shared(&header, inherited(&header)));
    assert!(matches!(error, ProviderError::TooManyTokens { tokens: 257, cells: 256 }), "{error}");
}

#[test]
fn a_token_file_beyond_all_prompts_is_refused() {
    let prompt = Prompt::new("");
    let tokens = std::fs::File::create(prompt.directory.path().join("tokens")).unwrap();
    tokens.set_len((64 << 20) + 1).unwrap();
    let error = prompt.refusal(file("state.bin"));
    assert!(matches!(error, ProviderError::TokensTooLong { limit: 67_108_864, .. }), "{error}");
}

#[test]
fn an_out_that_is_no_bare_file_name_is_misuse() {
    let prompt = Prompt::new("1\n");
    for out in ["../state.bin", "/tmp/state.bin", "a/b", "", ".."] {
        let error = prompt.refusal(file(out));
        assert!(
            matches!(&error, ProviderError::OutName { out: named } if named.as_os_str() == out),
            "{out:?}: {error}"
        );
        assert!(error.is_misuse());
    }
}

#[test]
fn a_decoder_that_serves_another_model_is_refused() {
    let prompt = Prompt::new("1\n2\n");
    let header = header(&Geometry::uniform(8, 128, 64, 256, TensorType::F16));
    let error = prompt.refusal(prompt.shared(&header, inherited(&header)));
    assert!(matches!(error, ProviderError::Header(HeaderError::OtherTensor { .. })), "{error}");
}

#[test]
fn a_cache_without_attention_layers_is_refused_by_that_name() {
    let prompt = Prompt::new("1\n2\n");
    let recurrent = vec![RecurrentWidths { layer: 0, r: 100, s: 100 }];
    let header = header(&Geometry { recurrent, ..Geometry::uniform(0, 0, 0, 256, TensorType::F16) });
    let arguments =
        Arguments { model: "/no/such/model".into(), ..prompt.arguments(prompt.shared(&header, inherited(&header))) };
    let error = Provider::open(arguments, &AssumedCache::default()).unwrap_err();
    assert!(matches!(error, ProviderError::NoAttentionLayers), "{error}");
}

#[test]
fn a_prefill_that_fails_is_said_in_its_own_words() {
    let prompt = Prompt::new("1\n2\n");
    let arguments = prompt.arguments(file("state.bin"));
    let error = run_with(arguments, &AssumedCache::default(), |_| Err("the device is on fire")).unwrap_err();
    assert!(matches!(error, ProviderError::Prefill { .. }));
    assert_eq!(error.to_string(), "the device is on fire");
}
