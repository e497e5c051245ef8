//! The embedded model behind the decoder: the stock server's greedy tokens, on every route.

use std::fs;
use std::path::PathBuf;

use fake_exporter::cache_rows::CacheRows;
use fake_exporter::model::Model;
use serde_json::{Value, json};

use super::handoff::share;
use super::server::Server;

fn json_of(path: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
}

/// The prompts that come with the model: prompt, its tokens, and the stock server's greedy continuation.
fn samples() -> Vec<(String, Vec<i32>, Vec<i32>)> {
    let samples = json_of("model/samples.json");
    let sample = |sample: &Value| {
        let prompt = sample["prompt"].as_str().unwrap().to_owned();
        (prompt, ids(&sample["prompt_ids"]), ids(&sample["greedy_ids"]))
    };
    samples.as_array().unwrap().iter().map(sample).collect()
}

#[test]
fn no_handoff_the_file_route_and_the_shared_route_give_the_stock_servers_tokens() {
    let server = Server::start(&[]);
    let model = Model::embedded().unwrap();
    for (prompt, tokens, greedy) in samples() {
        let body = json!({"prompt": prompt, "n_predict": greedy.len(), "return_tokens": true});
        let handed_over = &tokens[..tokens.len() - 1];
        let check = |reply: &Value, cached: usize| {
            assert_eq!(ids(&reply["tokens"]), greedy, "{prompt:?}");
            let timings = &reply["timings"];
            assert_eq!(timings["cache_n"], cached, "{prompt:?}");
            assert_eq!(timings["prompt_n"], tokens.len() - cached, "{prompt:?}");
        };

        server.action("erase", json!({}));
        check(&server.ok("/completion", body.clone()), 0);

        server.ok("/completion", json!({"prompt": handed_over, "n_predict": 1, "cache_prompt": false}));
        server.action("save", json!({"filename": "prompt.bin"}));
        server.action("erase", json!({}));
        server.action("restore", json!({"filename": "prompt.bin"}));
        check(&server.ok("/completion", body.clone()), handed_over.len());

        let share = share(&server);
        let unsigned: Vec<u32> = handed_over.iter().map(|token| token.cast_unsigned()).collect();
        model.evaluate(&unsigned, 0, &mut CacheRows::new(&mut share.map())).unwrap();
        server.action("adopt", share.adopt_body(handed_over));
        check(&server.ok("/completion", body), handed_over.len());
    }
}

#[test]
fn a_state_file_of_the_stock_server_is_answered_from() {
    let index = json_of("../tests/data/samples/tiny/index.json");
    for entry in index.as_array().unwrap() {
        // Without `-np 1`, which is the same for both.
        let arguments: Vec<&str> = entry["args"].as_array().unwrap()[2..].iter().map(|a| a.as_str().unwrap()).collect();
        let server = Server::start(&arguments);
        let name = entry["file"].as_str().unwrap();
        let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/samples/tiny");
        fs::copy(samples.join(name), server.directory().join(name)).unwrap();
        let tokens = ids(&entry["tokens"]);
        assert_eq!(server.action("restore", json!({"filename": name}))["n_restored"], tokens.len());
        let expected = ids(&entry["greedy_tokens"]);
        let reply =
            server.ok("/completion", json!({"prompt": tokens, "n_predict": expected.len(), "return_tokens": true}));
        assert_eq!(ids(&reply["tokens"]), expected, "{name}");
        assert_eq!(reply["timings"]["prompt_n"], 1, "{name}");
    }
}

#[test]
fn a_quantized_cache_is_handed_over() {
    let server = Server::start(&["-ctk", "q8_0", "-ctv", "q8_0"]);
    let share = share(&server);
    let params = share.header.params.as_ref().unwrap();
    // Heads of 32 channels are not rotated: llama.cpp rotates those that 64 divides.
    assert_eq!((params.n_rot_k, params.n_rot_v), (0, 0));
    let (prompt, tokens, greedy) = samples().swap_remove(0);
    let unsigned: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
    let model = Model::embedded().unwrap();
    model.evaluate(&unsigned[..unsigned.len() - 1], 0, &mut CacheRows::new(&mut share.map())).unwrap();
    server.action("adopt", share.adopt_body(&tokens[..tokens.len() - 1]));
    let reply = server.ok("/completion", json!({"prompt": prompt, "n_predict": 8, "return_tokens": true}));
    assert_eq!(ids(&reply["tokens"]), greedy[..8]);
}

#[test]
fn a_comparison_tells_in_which_layer_a_provider_went_wrong() {
    let server = Server::start(&["--compare"]);
    let error = server.refused("/slots/0?action=compare", json!({}));
    assert_eq!(error["code"], 400);
    let (_, tokens, _) = samples().swap_remove(0);
    let share = share(&server);
    let unsigned: Vec<u32> = tokens.iter().map(|token| token.cast_unsigned()).collect();
    let mut cache = share.map();
    Model::embedded().unwrap().evaluate(&unsigned, 0, &mut CacheRows::new(&mut cache)).unwrap();
    cache.v_mut(3).unwrap().write_f32(7, &[0.0; 64]).unwrap();
    server.action("adopt", share.adopt_body(&tokens));
    let comparison = server.action("compare", json!({}))["comparison"].clone();
    assert_eq!(comparison["n_tokens"], tokens.len());
    for (layer, errors) in (0..).zip(comparison["layers"].as_array().unwrap()) {
        assert_eq!((&errors["layer"], &errors["k"]), (&json!(layer), &json!(0.0)));
        assert_eq!(errors["v"].as_f64().unwrap() > 0.05, layer == 3, "{errors}");
    }
}

#[test]
fn a_conversation_is_templated_and_tokenized_as_by_the_stock_server() {
    let server = Server::start(&[]);
    let samples = json_of("model/samples.json");
    for sample in samples.as_array().unwrap() {
        if sample["kind"] == "chat" {
            let messages = json!({"messages": [{"role": "user", "content": sample["user"]}]});
            assert_eq!(server.ok("/apply-template", messages), json!({"prompt": sample["prompt"]}));
        }
        let body = json!({"content": sample["prompt"], "add_special": true, "parse_special": true});
        assert_eq!(server.ok("/tokenize", body), json!({"tokens": sample["prompt_ids"]}));
        let text = server.ok("/detokenize", json!({"tokens": sample["greedy_ids"]}));
        assert_eq!(text["content"].as_str().unwrap().trim_end(), sample["greedy_text"].as_str().unwrap().trim_end());
    }
}
