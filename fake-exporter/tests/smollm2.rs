//! With SmolLM2-135M, a model made by others, tokens, prompts, K and V are the stock llama-server's too.
//!
//! See `tests/smollm2_file.rs` for how the model gets here, and when these tests are skipped.

use std::sync::OnceLock;

use fake_exporter::model::{Message, Model};

#[path = "../../tests/smollm2_file.rs"]
mod smollm2_file;
mod support;
use support::{
    assert_first_token_agrees, assert_greedy_text_is_likely, assert_rows_agree, ids, json, sample, stock_samples,
};

/// The model, or `None` if its tests are to be skipped.
fn smollm2() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| smollm2_file::path().map(|path| Model::open(path).unwrap())).as_ref()
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

#[test]
fn every_greedy_token_of_the_stock_server_is_the_likeliest_or_nearly() {
    let Some(model) = smollm2() else { return };
    for sample in stock_samples("index.json") {
        assert_greedy_text_is_likely(model, &sample);
    }
}
