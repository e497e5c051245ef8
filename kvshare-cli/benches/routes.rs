//! Handing a cache over by HTTP, share plus adopt, beside the file route's save plus restore, at three prompt lengths.
//!
//! The cache is that of Qwen3-0.6B with 20480 cells: 28 layers of 1024 K and 1024 V channels in f16, 2240 MiB, of which only
//! the prompt's rows are ever written. A provider writes them once for each length, before anything is timed; what is
//! timed is what the one who asks sees of the calls to the decoder, and nothing of the provider's. The state file is on
//! the directory that `--directory` names, by default the system's temporary one.
//!
//! `cargo bench -p kvshare-cli --bench routes -- --json` prints JSON; `--rounds N` sets how often each length takes its turn.

mod measure;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvshare::handoff::ProviderProgram;
use kvshare_cli::cycle::{Cycle, DecoderClient, Lease, lease};
use kvshare_cli::output::table;
use kvshare_cli::qwen3_size::{DECODER, LENGTHS, PROVIDER, prompt};
use measure::{Listening, is_set, median, number, quantile, text};
use serde_json::json;

const ROUNDS: usize = 15;
/// Shared handoffs for each one by file, which takes hundreds of times as long.
const SHARED_A_ROUND: usize = 20;

/// The times of one length, in milliseconds.
#[derive(Default)]
struct Times {
    /// A call that has the decoder do next to nothing: what HTTP itself takes.
    call: Vec<f64>,
    share: Vec<f64>,
    adopt: Vec<f64>,
    shared: Vec<f64>,
    save: Vec<f64>,
    restore: Vec<f64>,
}

/// Share plus adopt, with nothing between.
async fn share_and_adopt(cycle: &Cycle, tokens: &[i32], times: &mut Times) {
    let calling = Instant::now();
    cycle.decoder.erase().await.expect("erased");
    times.call.push(ms(calling.elapsed()));
    let started = Instant::now();
    let limit = Duration::from_secs(30);
    let Lease { share, share_id } = lease(&cycle.decoder, &cycle.slot_directory, limit).await.expect("a share");
    let shared = started.elapsed();
    let adopting = Instant::now();
    cycle.decoder.adopt(tokens, share_id).await.expect("adopted");
    let adopted = adopting.elapsed();
    drop(share);
    times.share.push(ms(shared));
    times.adopt.push(ms(adopted));
    times.shared.push(ms(shared + adopted));
}

/// Save plus restore of what the slot holds.
async fn save_and_restore(cycle: &Cycle, times: &mut Times) {
    let name = "routes.bin";
    let started = Instant::now();
    cycle.decoder.save(name).await.expect("saved");
    times.save.push(ms(started.elapsed()));
    cycle.decoder.erase().await.expect("erased");
    let started = Instant::now();
    cycle.decoder.restore(name).await.expect("restored");
    times.restore.push(ms(started.elapsed()));
    std::fs::remove_file(cycle.slot_directory.join(name)).expect("removed");
}

async fn measure(cycle: Cycle, rounds: usize) -> [Times; 3] {
    let tokens = LENGTHS.map(prompt);
    // The longest first: a first write to a page costs more than any other, and is nobody's handoff.
    for tokens in tokens.iter().rev() {
        cycle.share(tokens, |_| {}).await.expect("written");
    }
    let mut times: [Times; 3] = Default::default();
    for round in 0..=rounds {
        for (tokens, times) in tokens.iter().zip(&mut times) {
            // What the first round tells is how long a first time takes.
            let mut unused = Times::default();
            let times = if round == 0 { &mut unused } else { times };
            for _ in 0..SHARED_A_ROUND {
                share_and_adopt(&cycle, tokens, times).await;
            }
            save_and_restore(&cycle, times).await;
        }
    }
    times
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The kind of file system that `directory` is on, as /proc/self/mounts names it.
fn file_system(directory: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let on = fields.filter(|fields| fields.len() > 2 && directory.starts_with(fields[1]));
    on.max_by_key(|fields| fields[1].len()).map_or_else(|| "unknown".to_owned(), |fields| fields[2].to_owned())
}

fn main() {
    let parent = text("--directory").map_or_else(std::env::temp_dir, PathBuf::from);
    let only_ours = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().permissions(only_ours).tempdir_in(parent).expect("a directory");
    let path = directory.path().display().to_string();
    let decoder =
        Listening::start([&["fake-exporter", "--port", "0", "--slot-save-path", &path], &DECODER[..]].concat());
    let mut provider = ProviderProgram::new(env!("CARGO_BIN_EXE_kvshare-cli"), "checker");
    provider.leading_arguments = ["reference-provider"].iter().chain(&PROVIDER).map(Into::into).collect();
    let url = format!("http://{}", decoder.address);
    let client = DecoderClient::new(&url);
    let cycle = Cycle { decoder: client, provider, slot_directory: directory.path().to_owned() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let rounds = number("--rounds", ROUNDS);
    // A task, as a server's handoffs are: what block_on itself runs is woken across threads once more a call.
    let times = runtime.block_on(runtime.spawn(measure(cycle, rounds))).expect("measured");

    let file_system = file_system(directory.path());
    let rows = LENGTHS.iter().zip(&times).map(|(length, times)| {
        let file = median(&times.save) + median(&times.restore);
        json!({
            "tokens": length,
            "call_ms": median(&times.call),
            "share_ms": median(&times.share), "adopt_ms": median(&times.adopt),
            "shared_ms": median(&times.shared), "shared_p99_ms": quantile(&times.shared, 0.99),
            "save_ms": median(&times.save), "restore_ms": median(&times.restore), "file_ms": file,
            "restore_ratio": median(&times.restore) / median(&times.shared),
            "file_ratio": file / median(&times.shared),
        })
    });
    let rows: Vec<_> = rows.collect();
    if is_set("--json") {
        println!("{:#}", json!({"file_system": file_system, "rounds": rounds, "lengths": rows}));
        return;
    }
    let titles = [
        "tokens",
        "any call",
        "share",
        "adopt",
        "both",
        "p99",
        "save",
        "restore",
        "restore / both",
        "save + restore / both",
    ];
    let mut table = table(&titles, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for row in &rows {
        let value = |name: &str| row[name].as_f64().unwrap_or_default();
        let ms = |name: &str| format!("{:.3}", value(name));
        let ratio = |name: &str| format!("{:.0}", value(name));
        let names = ["call_ms", "share_ms", "adopt_ms", "shared_ms", "shared_p99_ms", "save_ms", "restore_ms"];
        let mut cells = vec![row["tokens"].to_string()];
        cells.extend(names.map(ms));
        cells.extend(["restore_ratio", "file_ratio"].map(ratio));
        table.add_row(cells);
    }
    println!("medians in ms of {rounds} rounds, state files on {file_system}\n{table}");
}
