//! The shared route, the file route and no handoff at all give the same greedy text, and after a handoff the decoder
//! evaluates one token of the prompt: for the embedded model and for one made by others, from 5 tokens to 1700.

use kvshare_tests::{Route, Stage, smollm2};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const STORIES: &str = include_str!("../kvshare-cli/src/demo/stories.txt");

/// Asserts the promise for one prompt, and returns the text.
fn same_text(stage: &Stage, tokens: &[i32], most: u32) -> String {
    let cold = stage.complete_by(Route::None, tokens, most).unwrap();
    assert_eq!((cold.timings.cache_n, cold.timings.prompt_n), (0, tokens.len() as u64));
    for route in [Route::Shared, Route::File] {
        let handed_over = stage.complete_by(route, tokens, most).unwrap();
        let timings = &handed_over.timings;
        assert_eq!((timings.cache_n, timings.prompt_n), (tokens.len() as u64 - 1, 1), "{route:?}");
        assert_eq!(handed_over.content, cold.content, "{route:?}, {} tokens", tokens.len());
    }
    assert!(stage.leftovers().is_empty(), "{:?}", stage.leftovers());
    cold.content
}

#[test]
fn with_the_embedded_model_from_13_to_1700_tokens() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "2048"], &[]);
    let moon = stage.chat_tokens("What is the moon?");
    assert!(same_text(&stage, &moon, 40).contains("ball of rock"));
    let stories = stage.chat_tokens(STORIES);
    assert_eq!(same_text(&stage, &stories, 40).trim(), "The puppet was behind the house.");
    let long = stage.chat_tokens(&[STORIES; 4].join("\n\n"));
    assert!((1600..=1800).contains(&long.len()), "{}", long.len());
    same_text(&stage, &long, 40);
}

#[test]
fn with_every_cache_type_and_both_orders_of_v() {
    let caches: [(&[&str], &[&str]); 4] = [
        (&["--type-k", "f32", "--type-v", "f32"], &["--type-k", "f32", "--type-v", "f32"]),
        (&["--type-k", "bf16", "--type-v", "f16"], &["--type-k", "bf16", "--type-v", "f16"]),
        (&["--flash-attn", "off"], &["--v-trans"]),
        (&["--type-k", "f32", "--flash-attn", "off", "--guard", "tensor"], &["--type-k", "f32", "--v-trans"]),
    ];
    for (decoder, provider) in caches {
        let stage = Stage::start(PROGRAM, None, decoder, provider);
        let tokens = stage.chat_tokens(STORIES);
        assert_eq!(same_text(&stage, &tokens, 40).trim(), "The puppet was behind the house.", "{decoder:?}");
    }
}

#[test]
fn with_a_model_made_by_others_from_5_to_400_tokens() {
    let Some(model) = smollm2::path() else { return };
    let stage = Stage::start(PROGRAM, Some(&model), &["--ctx-size", "1024"], &[]);
    let capital = stage.wait(stage.cycle.decoder.tokenize("The capital of France is")).unwrap();
    assert_eq!(capital, [504, 3575, 282, 4649, 314], "as the stock server's /tokenize answers");
    assert!(same_text(&stage, &capital, 6).starts_with(" Paris"));
    let colours = stage.chat_tokens("Name three primary colours.");
    same_text(&stage, &colours, 6);
    let stories = stage.chat_tokens(STORIES);
    assert!((300..=500).contains(&stories.len()), "{}", stories.len());
    same_text(&stage, &stories, 6);
}
