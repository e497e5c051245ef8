//! Any body on any path of the stand-in's HTTP: an answer, never a panic and never a 5xx that blames the server.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use fake_exporter::brain::CheckerBrain;
use fake_exporter::decoder::{Decoder, Settings, Sharing};
use fake_exporter::http::{Server, router};
use kvshare::layout::TensorType;
use kvshare::map::Guard;
use kvshare::memory::Memfd;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

const PATHS: [&str; 12] = [
    "/apply-template",
    "/tokenize",
    "/detokenize",
    "/completion",
    "/v1/completions",
    "/v1/chat/completions",
    "/slots/0?action=save",
    "/slots/0?action=restore",
    "/slots/0?action=erase",
    "/slots/0?action=share",
    "/slots/0?action=adopt",
    "/slots/18446744073709551615?action=",
];

#[derive(Arbitrary, Debug)]
struct Call<'a> {
    path: u8,
    body: &'a [u8],
}

struct Stage {
    runtime: Runtime,
    router: Router,
    _directory: tempfile::TempDir,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = Settings {
        cells: 64,
        type_k: TensorType::F16,
        type_v: TensorType::F16,
        flash_attention: true,
        slot_directory: Some(directory.path().to_owned()),
        sharing: Sharing::On,
        compare: false,
        share_lifetime: Duration::from_secs(1),
        memory: Box::new(Memfd::default()),
        guard: Guard::Region,
        misbehaviour: None,
    };
    let decoder = Decoder::new(Arc::new(CheckerBrain::new(2, 32, 32)), settings).expect("a small cache");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    Stage { runtime, router: router(Arc::new(Server::new(decoder))), _directory: directory }
});

fuzz_target!(|call: Call| {
    let path = PATHS[usize::from(call.path) % PATHS.len()];
    let request = Request::post(path).body(Body::from(call.body.to_vec())).expect("a request");
    STAGE.runtime.block_on(async {
        let answer = STAGE.router.clone().oneshot(request).await.expect("it cannot fail");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.expect("a whole answer");
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {}", String::from_utf8_lossy(&body));
    });
});
