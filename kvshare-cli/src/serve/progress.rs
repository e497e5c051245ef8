//! A provider's words: into the log, but for how far it has come, which a terminal shows as a bar.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::log::{Event, LogFormat};

/// What the bar counts up to.
const WHOLE: u64 = 1000;

/// Listens to one provider. The bar is gone when this is dropped.
#[derive(Debug)]
pub struct Listener {
    log: LogFormat,
    bar: Option<ProgressBar>,
}

impl Listener {
    /// There is a bar only where somebody looks: on a terminal, with a log for people.
    pub fn new(log: LogFormat) -> Self {
        let is_seen = log == LogFormat::Text && std::io::stderr().is_terminal();
        let bar = is_seen.then(|| {
            let style = ProgressStyle::with_template("prefill {wide_bar} {percent} %");
            let bar = ProgressBar::with_draw_target(Some(WHOLE), ProgressDrawTarget::stderr());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { log, bar }
    }

    /// Takes a line of the provider's standard error.
    pub fn hear(&self, line: &str) {
        let say = || self.log.write(Event::Provider { line });
        match (&self.bar, progress(line)) {
            (Some(bar), Some(done)) => bar.set_position(done),
            (Some(bar), None) => bar.suspend(say),
            (None, _) => say(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Thousandths, of a line such as `progress: 0.42`.
fn progress(line: &str) -> Option<u64> {
    let done = line.strip_prefix("progress: ")?.trim().parse::<f64>().ok()?;
    (0.0..=1.0).contains(&done).then(|| (done * WHOLE as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::progress;

    #[test]
    fn only_a_share_of_the_whole_is_progress() {
        for (line, thousandths) in [
            ("progress: 0.42", Some(420)),
            ("progress: 1", Some(1000)),
            ("progress: 1.01", None),
            ("progress: -1", None),
            ("progress: NaN", None),
            ("progress: half", None),
            ("0.42", None),
        ] {
            assert_eq!(progress(line), thousandths, "{line}");
        }
    }
}
