//! The embedded model gives the tokens, texts and K and V rows that the stock llama-server gives with it.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::LazyLock;

use fake_exporter::model::{EvaluateError, MemoryCache, Message, Model, Precision, Progress, most_likely};
use serde_json::Value;

mod support;
use support::{assert_first_token_agrees, assert_rows_agree, ids, json, sample, stock_samples};

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::embedded().unwrap());

/// The six prompts of the model's `samples.json`, with the stock server's tokens.
fn samples() -> Vec<Value> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/model/samples.json"));
    let samples = json(path).as_array().unwrap().clone();
    assert_eq!(samples.len(), 6);
    samples
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The likeliest tokens one after the other, up to `count` or the end of the answer, which is included.
fn greedy(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut cache = MemoryCache::new(model.config(), prompt.len() + count, Precision::F16);
    let mut tokens = vec![most_likely(&model.evaluate(prompt, 0, &mut cache).unwrap())];
    while let Some(&last) = tokens.last()
        && tokens.len() < count
        && !model.tokenizer().is_end(last)
    {
        let position = prompt.len() + tokens.len() - 1;
        tokens.push(most_likely(&model.evaluate(&[last], position, &mut cache).unwrap()));
    }
    tokens
}

#[test]
fn a_prompt_becomes_the_stock_servers_tokens() {
    for sample in samples() {
        let tokens = MODEL.tokenizer().encode(text(&sample["prompt"]), true, true).unwrap();
        assert_eq!(tokens, ids(&sample["prompt_ids"]), "{}", sample["prompt"]);
    }
}

#[test]
fn greedy_text_is_the_stock_servers_token_for_token() {
    for sample in samples() {
        let expected = ids(&sample["greedy_ids"]);
        let tokens = greedy(&MODEL, &ids(&sample["prompt_ids"]), expected.len());
        assert_eq!(tokens, expected, "{}", sample["user"]);
        assert_eq!(MODEL.tokenizer().decode(&tokens), text(&sample["greedy_text"]));
        let ended = MODEL.tokenizer().is_end(*tokens.last().unwrap());
        assert_eq!(ended, sample["stopped_at_end"].as_bool().unwrap());
    }
}

#[test]
fn a_message_becomes_the_stock_servers_prompt() {
    for sample in samples().iter().filter(|sample| sample["kind"] == "chat") {
        let prompt = MODEL.chat_template().unwrap().render(&[Message::new("user", text(&sample["user"]))]).unwrap();
        assert_eq!(prompt, text(&sample["prompt"]));
    }
}

#[test]
fn k_and_v_are_the_stock_servers_within_its_own_noise() {
    for sample in stock_samples("tiny/index.json") {
        assert_rows_agree(&MODEL, &sample);
    }
}

#[test]
fn the_first_token_is_as_likely_as_at_the_stock_server() {
    for sample in stock_samples("tiny/index.json") {
        assert_first_token_agrees(&MODEL, &sample);
    }
}

#[test]
fn a_control_token_in_a_text_is_text_unless_it_is_to_be_parsed() {
    let tokenizer = MODEL.tokenizer();
    assert_eq!(tokenizer.encode("<|im_end|>", true, true).unwrap(), [2]);
    let plain = tokenizer.encode("<|im_end|>", true, false).unwrap();
    assert!(plain.len() > 1 && !plain.contains(&2), "{plain:?}");
    assert_eq!(tokenizer.decode(&plain), "<|im_end|>");
}

#[test]
fn every_text_survives_the_way_to_tokens_and_back() {
    let tokenizer = MODEL.tokenizer();
    for text in
        ["", " ", "a  b\n\n\tc", "Zed's 1234 lamps!", "naïve café", "漢字 и кириллица", "👩‍🚀🚀", "\u{0}\u{7f}\u{ad}"]
    {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, true, false).unwrap()), text);
    }
}

#[test]
fn a_character_may_be_spread_over_tokens_and_comes_together_from_their_bytes() {
    let tokenizer = MODEL.tokenizer();
    let tokens = tokenizer.encode("🚀", true, false).unwrap();
    assert!(tokens.len() > 1);
    assert!(std::str::from_utf8(&tokenizer.token_bytes(tokens[0])).is_err());
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token)).collect();
    assert_eq!(bytes, "🚀".as_bytes());
}

#[test]
fn ids_outside_the_vocabulary_are_no_text() {
    assert_eq!(MODEL.tokenizer().token_bytes(2048), b"");
    assert!(!MODEL.tokenizer().is_end(2048));
    assert_eq!(MODEL.tokenizer().name(2048), None);
}

#[test]
fn a_prompt_evaluated_in_pieces_gives_the_same_logits() {
    let story = text(&samples()[5]["prompt"]).repeat(7);
    let tokens = MODEL.tokenizer().encode(&story, true, true).unwrap();
    assert!(tokens.len() > 600, "longer than a chunk of 512: {}", tokens.len());
    let mut cache = MemoryCache::new(MODEL.config(), tokens.len(), Precision::F32);
    let at_once = MODEL.evaluate(&tokens, 0, &mut cache).unwrap();

    for cuts in [vec![1, 2, 3], vec![512], vec![300, 599], vec![tokens.len() - 1]] {
        let mut cache = MemoryCache::new(MODEL.config(), tokens.len(), Precision::F32);
        let mut start = 0;
        let mut logits = Vec::new();
        for end in cuts.iter().copied().chain([tokens.len()]) {
            logits = MODEL.evaluate(&tokens[start..end], start, &mut cache).unwrap();
            start = end;
        }
        let difference = logits.iter().zip(&at_once).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-3, "cut at {cuts:?}: {difference}");
    }
}

#[test]
fn attention_reads_k_and_v_from_the_cache() {
    let tokens = ids(&samples()[4]["prompt_ids"]);
    let (last, before) = tokens.split_last().unwrap();
    let mut cache = MemoryCache::new(MODEL.config(), tokens.len(), Precision::F16);
    MODEL.evaluate(before, 0, &mut cache).unwrap();
    let kept = MODEL.evaluate(&[*last], before.len(), &mut cache).unwrap();
    let mut empty = MemoryCache::new(MODEL.config(), tokens.len(), Precision::F16);
    let lost = MODEL.evaluate(&[*last], before.len(), &mut empty).unwrap();
    assert_eq!(most_likely(&kept), ids(&samples()[4]["greedy_ids"])[0]);
    assert_ne!(kept, lost);
}

#[test]
fn an_evaluation_reports_its_progress_and_stops_when_told_to() {
    let tokens = vec![5; 600];
    let mut cache = MemoryCache::new(MODEL.config(), tokens.len(), Precision::F16);
    let mut seen = Vec::new();
    let stopped = MODEL.evaluate_observed(&tokens, 0, &mut cache, |progress| {
        seen.push(progress);
        if seen.len() == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(EvaluateError::Stopped { done: 523, total: 600 })), "{stopped:?}");
    let expected: Vec<_> =
        [0, 64, 128, 192, 256, 320, 384, 448, 512, 523].map(|done| Progress { done, total: 600 }).into();
    assert_eq!(seen, expected);
}

#[test]
fn what_cannot_be_evaluated_is_refused_by_name() {
    let mut cache = MemoryCache::new(MODEL.config(), 4, Precision::F16);
    let table: [(&[u32], usize, &str); 5] = [
        (&[], 0, "there are no tokens to evaluate; give at least one"),
        (
            &[5, 2048],
            0,
            "the token id 2048 is not in the model's vocabulary of 2048; tokenize with this model's tokenizer",
        ),
        (
            &[5, 6],
            2047,
            "2 tokens from position 2047 on do not fit into the model's context of 2048; shorten the prompt",
        ),
        (
            &[5],
            usize::MAX,
            "1 tokens from position 18446744073709551615 on do not fit into the model's context of 2048; shorten the prompt",
        ),
        (
            &[5, 6],
            3,
            "the KV cache of layer 0 could not be used: layer 0 of the cache holds 4 positions and has no position 4; \
             give the cache more cells",
        ),
    ];
    for (tokens, position, expected) in table {
        let error = MODEL.evaluate(tokens, position, &mut cache).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn content_may_be_a_list_of_text_parts() {
    let messages: Vec<Message> = serde_json::from_str(
        r#"[{"role": "user", "content": [{"type": "text", "text": "Why does"}, {"type": "text", "text": "it rain?"}]}]"#,
    )
    .unwrap();
    let prompt = MODEL.chat_template().unwrap().render(&messages).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nWhy does\nit rain?<|im_end|>\n<|im_start|>assistant\n");
    let image = r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}"#;
    assert!(serde_json::from_str::<Message>(image).is_err());
}

#[test]
fn the_samples_lie_in_the_repository() {
    assert!(sample("tiny/index.json").is_file());
}
