//! What the benchmarks share: quantiles, their arguments, and the serve process.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// The value at `quantile` (0.5: the median) of some times.
pub fn quantile(values: &[f64], quantile: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * quantile).round() as usize]
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value behind the flag `name` on the command line. cargo's own flags pass.
pub fn text(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

/// The number behind the flag `name`, or `default`.
pub fn number(name: &str, default: usize) -> usize {
    text(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} takes a number")))
}

/// Whether the flag `name` is on the command line.
pub fn is_set(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}

/// A command of `kvshare-cli` that listens. It is killed when this is dropped.
pub struct Listening {
    child: Child,
    /// Where it listens, such as `127.0.0.1:41234`.
    pub address: String,
}

impl Listening {
    /// Starts the command and waits until it says where it listens. What it logs goes nowhere.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvshare-cli"));
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("kvshare-cli starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").expect("it listens").to_owned();
        Self { child, address }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
