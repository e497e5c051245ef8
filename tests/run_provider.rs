//! `kvshare-cli run-provider` runs a provider as the proxy would, and says what it got wrong.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use fake_exporter::cache_rows::CacheRows;
use fake_exporter::model::{EMBEDDED_GGUF, Model};
use kvshare::header::Params;
use kvshare::layout::TensorType;
use kvshare_tests::eyes::{Cache, Ended, run};
use kvshare_tests::sample;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const PROMPT: &str =
    "<|im_start|>user\nTell me a story about a robot named Zed and a lamp.<|im_end|>\n<|im_start|>assistant\n";
const TOKENS: u64 = 22;
const CELLS: u32 = 101;

/// A directory with a provider that is a shell script; `$reference` is the reference provider.
struct Author {
    directory: tempfile::TempDir,
}

impl Author {
    fn of(script: &str) -> Self {
        let author = Self { directory: tempfile::tempdir().unwrap() };
        let provider = author.path("provider");
        std::fs::write(&provider, format!("#!/bin/sh\nreference='{PROGRAM} reference-provider'\n{script}\n")).unwrap();
        std::fs::set_permissions(&provider, Permissions::from_mode(0o700)).unwrap();
        std::fs::write(author.path("model.gguf"), EMBEDDED_GGUF).unwrap();
        author
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn arguments<'a>(arguments: &[&'a str], provider: &'a str) -> Vec<&'a str> {
        [&["run-provider", "--prompt", PROMPT], arguments, &["--", provider]].concat()
    }

    /// Runs the provider in memory of its own.
    fn run(&self, arguments: &[&str]) -> Ended {
        run(PROGRAM, &Self::arguments(arguments, &self.path("provider")), &[])
    }

    /// Runs the provider in `cache`.
    fn run_in(&self, cache: &Cache, arguments: &[&str]) -> Ended {
        let (header, provider) = (cache.header_path().to_str().unwrap().to_owned(), self.path("provider"));
        let memory = [arguments, &["--layout", &header, "--fds", "3"]].concat();
        run(PROGRAM, &Self::arguments(&memory, &provider), &cache.borrowed())
    }
}

/// What it printed, on one line.
fn flat(ended: &Ended) -> String {
    ended.text().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cache() -> Cache {
    Cache::new(8, 64, CELLS.into(), Params::plain(CELLS, TensorType::F16))
}

/// A shell command that writes one byte at `offset` of the first region.
fn poke(offset: u64) -> String {
    format!("printf x | dd of=/dev/fd/3 bs=1 seek={offset} conv=notrunc 2>/dev/null")
}

#[test]
fn a_right_provider_passes_in_memory_of_every_type() {
    let author = Author::of("exec $reference \"$@\"");
    let cases: [&[&str]; 5] = [
        &[],
        &["--type-k", "q8_0", "--type-v", "q8_0"],
        &["--type-k", "f32", "--type-v", "bf16", "--v-trans"],
        &["-c", "256"],
        &["-m", &author.path("model.gguf"), "--tolerance", "0"],
    ];
    for arguments in cases {
        let ended = author.run(&[arguments, &["--json"]].concat());
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        let report = ended.json();
        assert_eq!(report["verdict"], "right");
        assert_eq!(report["provider"]["result"]["n_tokens"], TOKENS);
        assert_eq!(report["provider"]["result"]["argmax"], report["provider"]["argmax_expected"]);
        assert_eq!(report["verify"]["positions"], TOKENS);
        assert_eq!(report["inspect"]["layout"]["tensors"][0]["streams"][0]["ranges"], json!([[0, TOKENS]]));
        let padding = if arguments.contains(&"256") { "none" } else { "intact" };
        assert_eq!(report["inspect"]["layout"]["tensors"][0]["padding"]["state"], padding);
    }
    let page = author.run(&[]);
    for words in
        ["THE PROVIDER", "exit status 0", "(the model's own, too)", "ITS MEMORY", "padding", "ITS ROWS", "PASSED"]
    {
        assert!(flat(&page).contains(words), "{words}: {}", page.text());
    }
}

#[test]
fn the_provider_is_started_as_the_proxy_starts_it() {
    let script = "echo \"args $*\" >&2; echo \"url $ONEBIT_HYBRID_BACKEND_URL\" >&2; echo \"in $PWD\" >&2\n\
                  echo \"group $(($(cut -d' ' -f5 /proc/$$/stat) - $$))\" >&2; exec $reference \"$@\"";
    let author = Author::of(script);
    let (provider, model) = (author.path("provider"), author.path("model.gguf"));
    let own = ["run-provider", "--prompt", PROMPT, "-m", &model, "--elfs", "kernels", "--backend-url", "http://b:1"];
    let ended = run(PROGRAM, &[&own[..], &["--", &provider]].concat(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = |start: &str| {
        let lines = ended.stderr.lines().filter_map(|line| line.strip_prefix("provider: "));
        lines.filter_map(|line| line.strip_prefix(start)).next().unwrap().to_owned()
    };
    let directory = said("in ");
    let arguments = said("args ");
    let words: Vec<&str> = arguments.split(' ').collect();
    let ["--tokens", tokens, "--model", found, "--layout", layout, "--fds", "3", "--elfs", elfs] = words[..] else {
        panic!("{arguments}");
    };
    assert!(tokens.starts_with(&directory) && layout.starts_with(&directory), "{arguments}");
    assert_eq!(found, model);
    assert!(elfs.starts_with('/') && elfs.ends_with("/kernels"));
    assert_eq!((said("url ").as_str(), said("group ").as_str()), ("http://b:1", "0"));
    assert!(!std::path::Path::new(&directory).exists(), "it is gone afterwards");
}

#[test]
fn own_arguments_of_the_provider_come_first() {
    let ended = run(PROGRAM, &["run-provider", "--prompt", PROMPT, "--", PROGRAM, "reference-provider"], &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_provider_that_fails_is_told_apart() {
    let author = |script: &str| Author::of(script);
    for (script, words) in [
        ("echo 'no such device' >&2; exit 3", "no such device"),
        ("true", "printed no result"),
        ("echo nonsense", "nonsense"),
        (r#"echo '{"n_tokens": 1, "argmax": 0}'"#, "prefilled 1 tokens, but was given 22"),
        ("kill -SEGV $$", "signal 11"),
        ("exec sleep 100", "ran past its limit of 0.3 s"),
    ] {
        let ended = author(script).run(&["--json", "--prefill-timeout", "0.3"]);
        assert_eq!(ended.code, Some(3), "{words}: {ended:?}");
        let report = ended.json();
        assert!(report["provider"]["failure"].as_str().unwrap().contains(words), "{words}: {report}");
        assert_eq!((&report["verdict"], &report["exit_status"]), (&json!("provider_failed"), &json!(3)));
    }
    let ended = run(PROGRAM, &["run-provider", "--prompt", PROMPT, "--", "/no/such/provider"], &[]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(flat(&ended).contains("/no/such/provider"), "{}", ended.text());
}

#[test]
fn what_it_writes_outside_its_rows_is_found_and_told_apart() {
    let cache = cache();
    let tensor = &cache.header.tensors[4];
    let (name, row) = (tensor.tensor.name(), 2 * 64);
    let zeros = format!(
        "dd if=/dev/zero of=/dev/fd/3 bs=1 seek={} count={} conv=notrunc 2>/dev/null",
        tensor.end(),
        tensor.padding()
    );
    let cases = [
        (poke(tensor.end() + 7), "first at byte 7 behind its end"),
        (zeros, "first at byte 0 behind its end"),
        (poke(tensor.offset + (TOKENS + 1) * row), "it wrote 1 rows from position 23 on, and the prompt has 22 tokens"),
    ];
    for (spoil, words) in cases {
        let ended = Author::of(&format!("$reference \"$@\" && {spoil}")).run_in(&cache, &["--json"]);
        assert_eq!(ended.code, Some(4), "{words}: {ended:?}");
        let report = ended.json();
        assert_eq!(report["outside"].as_array().unwrap().len(), 1, "{report}");
        assert_eq!(report["outside"][0]["tensor"], name);
        assert!(report["outside"][0]["message"].as_str().unwrap().contains(words), "{words}: {report}");
        assert_eq!(report["verify"]["right"], true);
    }
    // What lay in later cells before is not this run's.
    let clean = Author::of("exec $reference \"$@\"").run_in(&cache, &[]);
    assert_eq!(clean.code, Some(0), "{}", clean.text());
}

#[test]
fn the_rows_of_an_earlier_run_do_not_pass_for_this_ones() {
    let cache = cache();
    let model = Model::embedded().unwrap();
    let tokens = model.tokenizer().encode(PROMPT, true, true).unwrap();
    model.evaluate(&tokens, 0, &mut CacheRows::new(&mut cache.mapped())).unwrap();
    let idle = Author::of(r#"echo "{\"n_tokens\": $(wc -l < "$2"), \"argmax\": 0}""#);
    let ended = idle.run_in(&cache, &[]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(flat(&ended).contains("Never written: rows of K and V of all 8 layers are all 0"), "{}", ended.text());
}

#[test]
fn wrong_rows_are_told_apart_with_the_probable_reason() {
    let cache = cache();
    let tensor = &cache.header.tensors[3];
    let first = tensor.offset / 128;
    let swab =
        format!("dd if=/dev/fd/3 of=/dev/fd/3 bs=128 count={TOKENS} skip={first} seek={first} conv=swab,notrunc");
    let ended = Author::of(&format!("$reference \"$@\" && {swab} 2>/dev/null")).run_in(&cache, &[]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for words in
        ["WRONG: V of layer 1.", "the bytes of each element are in reverse order", "NOT PASSED: rows are wrong."]
    {
        assert!(flat(&ended).contains(words), "{words}: {}", ended.text());
    }

    let other_token = "sed '13s/.*/500/' \"$2\" > mine; shift 2; $reference --tokens mine \"$@\"";
    let ended = Author::of(other_token).run(&["--json"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert_eq!(ended.json()["verify"]["planes"][1]["first_row_off"], 12);
    assert_eq!(ended.json()["verify"]["diagnosis"]["explanations"], json!([]));
}

#[test]
fn a_state_file_can_say_what_is_expected() {
    let author = Author::of("exec $reference \"$@\"");
    let [same, other] =
        ["tiny/f16-fa-tiny-a.bin", "tiny/f16-fa-tiny-b.bin"].map(|name| sample(name).to_str().unwrap().to_owned());
    let ended = author.run(&["--json", "--against", &same]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["provider"]["argmax_expected"], Value::Null);
    let refused = author.run(&["--json", "--against", &other]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.json_error().contains("the state file holds 92 tokens, the prompt has 22"), "{}", refused.stderr);
}

#[test]
fn what_cannot_be_tried_is_refused_before_anything_runs() {
    let author = Author::of("touch ran; exec $reference \"$@\"");
    let provider = author.path("provider");
    let model = author.path("model.gguf");
    let header = cache().header_path().to_str().unwrap().to_owned();
    std::fs::write(author.path("header.json"), cache().header.to_json()).unwrap();
    let layout = author.path("header.json");
    let small = Cache::small(0);
    let other = small.header_path().to_str().unwrap().to_owned();
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 1, "a provider needs a prompt"),
        (&["--prompt", "x", "-m", "/no/such.gguf"], 1, "--prompt needs a model"),
        (&["--token-ids", "1", "-m", "/no/such.gguf"], 1, "/no/such.gguf"),
        (&["--token-ids", "1,2,3", "-c", "2"], 1, "the prompt has 3 tokens, but the cache only 2 cells"),
        (&["--token-ids", "9999"], 1, "not in the model's vocabulary"),
        (&["--token-ids", "1", "--layout", &layout, "--fds", "9"], 1, "no descriptor is open at 9"),
        (&["--token-ids", "1", "--layout", &header], 1, "cannot read the header"),
        (&["--token-ids", "1", "--layout", &other, "-m", &model], 1, "cache_k_l2"),
        (&["--token-ids", "1", "--fds", "3"], 2, "--layout"),
    ];
    for (arguments, code, words) in cases {
        let ended = run(PROGRAM, &[&["run-provider"], arguments, &["--", &provider]].concat(), &[]);
        assert_eq!(ended.code, Some(code), "{words}: {ended:?}");
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
    assert_eq!(run(PROGRAM, &["run-provider", "--prompt", "x"], &[]).code, Some(2), "no program");
    let made = author.run(&["--layout", &layout]);
    assert_eq!(made.code, Some(0), "memory is made for a header alone: {made:?}");
}
