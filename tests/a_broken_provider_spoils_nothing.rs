//! Whatever a provider does wrong, the decoder adopts nothing, loses no descriptor, and serves the next request.

use std::path::PathBuf;
use std::time::Duration;

use kvshare::handoff::ProviderProgram;
use kvshare_cli::cycle::CycleError;
use kvshare_tests::{Route, Stage};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const QUESTION: &str = "What is the moon?";

/// A provider that is a shell script.
fn script(script: &str, model: PathBuf) -> ProviderProgram {
    let leading_arguments = ["-c", script, "provider"].map(Into::into).to_vec();
    let time_limit = Duration::from_millis(500);
    ProviderProgram { leading_arguments, time_limit, ..ProviderProgram::new("/bin/sh", model) }
}

fn broken_providers(good: &ProviderProgram) -> Vec<(ProviderProgram, &'static str)> {
    let model = || good.model.clone();
    let with = |arguments: &[&str]| {
        let mut provider = good.clone();
        provider.leading_arguments.extend(arguments.iter().map(Into::into));
        provider
    };
    vec![
        (ProviderProgram::new("/no/such/provider", model()), "/no/such/provider"),
        (ProviderProgram::new(model(), model()), "may not be executed"),
        (script("exec sleep 100", model()), "ran past its limit"),
        (script("true", model()), "printed no result"),
        (script("echo nonsense", model()), "nonsense"),
        (script(r#"echo '{"n_tokens": 1, "argmax": 0}'"#, model()), "prefilled 1 tokens, but was given"),
        (script("echo 'no such device' >&2; exit 3", model()), "no such device"),
        (script("kill -SEGV $$", model()), "signal 11"),
        (with(&["--no-such-flag"]), "exit status 2"),
        (ProviderProgram { model: "/no/such/model.gguf".into(), ..good.clone() }, "/no/such/model.gguf"),
        (ProviderProgram { model: "/etc/passwd".into(), ..good.clone() }, "GGUF"),
    ]
}

#[test]
fn on_the_shared_route_and_on_the_file_route() {
    let mut stage = Stage::start(PROGRAM, None, &["--ctx-size", "256"], &[]);
    let good = stage.cycle.provider.clone();
    let tokens = stage.chat_tokens(QUESTION);
    let expected = stage.complete_by(Route::Shared, &tokens, 40).unwrap().content;
    let descriptors = stage.decoder_descriptors();

    for (provider, words) in broken_providers(&good) {
        for route in [Route::Shared, Route::File] {
            stage.cycle.provider = provider.clone();
            let failure = stage.complete_by(route, &tokens, 40).unwrap_err();
            assert!(matches!(failure, CycleError::Provider(_)), "{words}, {route:?}: {failure:?}");
            assert!(failure.to_string().contains(words), "{words}, {route:?}: {failure}");
            assert!(stage.leftovers().is_empty(), "{words}: {:?}", stage.leftovers());

            // The request as it came: nothing was adopted, so the decoder evaluates all of it.
            let own = stage.wait(stage.cycle.decoder.complete(&tokens, 40)).unwrap();
            assert_eq!((own.timings.cache_n, own.content.as_str()), (0, expected.as_str()), "{words}");

            stage.cycle.provider = good.clone();
            let next = stage.complete_by(route, &tokens, 40).unwrap();
            assert_eq!((next.timings.prompt_n, next.content.as_str()), (1, expected.as_str()), "{words}");
            assert_eq!(stage.decoder_descriptors(), descriptors, "{words}, {route:?}");
        }
    }
}

#[test]
fn a_provider_that_writes_nonsense_rows_is_found_by_the_checker() {
    let shape = ["--checker", "--layers", "2", "--k-width", "64", "--v-width", "64", "--ctx-size", "512"];
    let mut stage = Stage::start(PROGRAM, None, &shape, &["--checker", "--checker-shape", "2,64,64"]);
    let tokens: Vec<i32> = (0..20).collect();
    for route in [Route::Shared, Route::File] {
        let right = stage.complete_by(route, &tokens, 200).unwrap();
        assert!(right.content.ends_with("is right"), "{route:?}: {}", right.content);
    }
    // One that claims success and writes nothing. The tokens are others, since the rows of these are still there.
    let tokens: Vec<i32> = (100..120).collect();
    stage.cycle.provider = script(r#"echo "{\"n_tokens\": $(wc -l < "$2"), \"argmax\": 0}""#, "none".into());
    let wrong = stage.complete_by(Route::Shared, &tokens, 200).unwrap();
    assert!(wrong.content.starts_with("wrong: cache_k_l0, position 0"), "{}", wrong.content);
}

#[test]
fn a_prompt_over_the_context_is_refused_by_the_decoder_and_by_the_provider() {
    let stage = Stage::start(PROGRAM, None, &["--ctx-size", "64"], &[]);
    let tokens = vec![300; 100];
    let too_long = stage.wait(stage.cycle.decoder.complete(&tokens, 1)).unwrap_err().to_string();
    assert!(too_long.contains("400") && too_long.contains("100"), "{too_long}");
    let provider = stage.wait(stage.cycle.share(&tokens, |_| {})).unwrap_err().to_string();
    assert!(provider.contains("100 tokens") && provider.contains("64 cells"), "{provider}");
}
