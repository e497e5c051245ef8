//! Programs that were written from the protocol's document alone, in C and in Python, as decoder and as provider, with this
//! library between them and at either end.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kvshare::handoff::{Cancel, Destination, ProviderProgram, ShareDesk};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kvshare-parts");
const LIMIT: Duration = Duration::from_secs(60);

/// A program that can be either side; its first argument says which.
#[derive(Clone, Debug)]
struct Peer {
    name: &'static str,
    words: Vec<PathBuf>,
}

fn peers(directory: &Path) -> Vec<Peer> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let compiled = directory.join("peer");
    let compile = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&compiled, &here.join("peer.c")])
        .status();
    assert!(compile.expect("there is a C compiler").success());
    vec![
        Peer { name: "C", words: vec![compiled] },
        Peer { name: "Python", words: vec!["python3".into(), here.join("peer.py")] },
        Peer { name: "ours", words: vec![PROGRAM.into(), "peer".into()] },
    ]
}

/// A peer that has a cache.
struct Decoder {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Decoder {
    fn start(peer: &Peer, socket: &Path) -> Self {
        let mut command = Command::new(&peer.words[0]);
        command.args(&peer.words[1..]).arg("decode").arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a decoder");
        let (questions, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, questions, answers: BufReader::new(answers) }
    }

    /// What it says of rows for these tokens.
    fn judges(&mut self, tokens: &[i32]) -> String {
        let words: Vec<_> = tokens.iter().map(i32::to_string).collect();
        writeln!(self.questions, "{}", words.join(" ")).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn end(self) {
        let Self { mut process, questions, answers } = self;
        drop((questions, answers));
        assert!(process.wait().unwrap().success());
    }
}

#[test]
fn every_decoder_understands_every_provider() {
    let only_ours = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().permissions(only_ours).tempdir().unwrap();
    let model = directory.path().join("model");
    std::fs::write(&model, "no GGUF").unwrap();
    let peers = peers(directory.path());
    let tokens = [504, 3575, 282];
    for decoder in &peers {
        for provider in &peers {
            let name = format!("decoder {}, provider {}", decoder.name, provider.name);
            let desk = ShareDesk::open(directory.path()).unwrap();
            let mut running = Decoder::start(decoder, desk.path());
            let share = desk.receive(Instant::now() + LIMIT, LIMIT, &Cancel::new().unwrap());
            let share = share.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(running.judges(&tokens), "wrong", "{name}: nobody has written yet");

            let mut program = ProviderProgram::new(&provider.words[0], &model);
            program.leading_arguments = provider.words[1..].iter().map(Into::into).collect();
            program.leading_arguments.push("provide".into());
            program.time_limit = LIMIT;
            let mut said = Vec::new();
            let mut hear = |line: &str| said.push(line.to_owned());
            let report = program.run(&tokens, Destination::Shared(&share), directory.path(), None, &mut hear);
            let report = report.unwrap_or_else(|error| panic!("{name}: {error}; {said:?}"));
            assert_eq!(report.result.n_tokens, 3, "{name}");
            assert_eq!(running.judges(&tokens), "right", "{name}");
            assert_eq!(running.judges(&[504, 3575, 283]), "wrong", "{name}");
            running.end();
        }
    }
}
