//! With SmolLM2-135M, a model made by others, tokens, prompts, K and V are the stock llama-server's too.
//!
//! The model (98 MB) is fetched once by `scripts/fetch-smollm2.sh`. `KVSHARE_SKIP_SMOLLM2=1` skips these tests, where
//! that is not possible; in continuous integration (`CI=true`) they are never skipped.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fake_exporter::model::{MemoryCache, Message, Model, Precision, log_probability, most_likely};

mod support;
use support::{assert_first_token_agrees, assert_rows_agree, ids, json, sample, stock_samples};

/// The model, or `None` if its tests are to be skipped.
fn smollm2() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| path().map(|path| Model::open(path).unwrap())).as_ref()
}

fn path() -> Option<PathBuf> {
    if env::var_os("KVSHARE_SKIP_SMOLLM2").is_some() {
        assert_ne!(
            env::var("CI").as_deref(),
            Ok("true"),
            "KVSHARE_SKIP_SMOLLM2 has no place in continuous integration"
        );
        // libtest captures what eprintln! prints; this must be seen.
        let _ = writeln!(std::io::stderr(), "SKIPPED: tests with SmolLM2-135M, as KVSHARE_SKIP_SMOLLM2 is set");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-smollm2.sh");
    let output = Command::new(&script).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} failed: {stderr}\nSet KVSHARE_SKIP_SMOLLM2=1 to skip these tests",
        script.display()
    );
    Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end()))
}

#[test]
fn prompts_become_the_stock_servers_tokens() {
    let Some(model) = smollm2() else { return };
    for sample in stock_samples("index.json") {
        assert_eq!(model.tokenizer().encode(&sample.prompt, true, true).unwrap(), sample.tokens);
    }
    let recorded = json(sample("http/tokenize_prompt.json"));
    let text = recorded["request"]["body"]["content"].as_str().unwrap();
    assert_eq!(model.tokenizer().encode(text, true, true).unwrap(), ids(&recorded["response"]["tokens"]));
}

#[test]
fn messages_become_the_stock_servers_prompt() {
    let Some(model) = smollm2() else { return };
    let recorded = json(sample("http/apply_template.json"));
    let messages: Vec<Message> = serde_json::from_value(recorded["request"]["body"]["messages"].clone()).unwrap();
    let prompt = model.chat_template().unwrap().render(&messages).unwrap();
    assert_eq!(prompt, recorded["response"]["prompt"].as_str().unwrap());
}

#[test]
fn k_and_v_are_the_stock_servers_within_its_own_noise() {
    let Some(model) = smollm2() else { return };
    for sample in stock_samples("index.json") {
        assert_rows_agree(model, &sample);
    }
}

#[test]
fn the_first_token_is_as_likely_as_at_the_stock_server() {
    let Some(model) = smollm2() else { return };
    for sample in stock_samples("index.json") {
        assert_first_token_agrees(model, &sample);
    }
}

/// Where two tokens are about equally likely, the server's 8-bit activations may tip the scales. So the server's text is
/// followed token by token: each must be the likeliest here too, or nearly.
#[test]
fn every_greedy_token_of_the_stock_server_is_the_likeliest_or_nearly() {
    let Some(model) = smollm2() else { return };
    for sample in stock_samples("index.json") {
        let cells = sample.tokens.len() + sample.greedy_tokens.len();
        let mut cache = MemoryCache::new(model.config(), cells, Precision::F16);
        let mut logits = model.evaluate(&sample.tokens, 0, &mut cache).unwrap();
        for (step, &token) in sample.greedy_tokens.iter().enumerate() {
            let best = most_likely(&logits);
            let gap = log_probability(&logits, best).unwrap() - log_probability(&logits, token).unwrap();
            assert!(gap < 0.5, "{:?}, step {step}: {best} is likelier than {token} by {gap}", sample.prompt);
            logits = model.evaluate(&[token], sample.tokens.len() + step, &mut cache).unwrap();
        }
    }
}
