//! The line of JSON that a provider ends its standard output with.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// What a provider reports: the last line of its standard output.
///
/// ```
/// use kvshare::provider::ResultLine;
///
/// let line: ResultLine = r#"{"n_tokens": 21, "argmax": 477, "prefill_ms": 3.5}"#.parse()?;
/// assert_eq!(line.n_tokens, 21);
/// assert_eq!(line.to_string(), r#"{"n_tokens":21,"argmax":477,"prefill_ms":3.5}"#);
/// # Ok::<(), kvshare::provider::ResultLineError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// How many tokens it prefilled: all that it was given.
    pub n_tokens: u64,
    /// The likeliest token after them, for diagnostics.
    pub argmax: i64,
    /// How long its prefill took, if it says so; else its whole run counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_ms: Option<f64>,
}

/// What a provider may say of work that its device has not finished.
#[derive(Deserialize)]
struct UnfinishedWork {
    fence_fd: Option<IgnoredAny>,
}

/// A last line that is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the provider's last line {line:?} is no result such as {{\"n_tokens\": 21, \"argmax\": 477}}: {problem}")]
pub struct ResultLineError {
    /// The line, shortened.
    pub line: String,
    /// What is wrong with it.
    pub problem: String,
}

impl std::str::FromStr for ResultLine {
    type Err = ResultLineError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let refuse = |problem: String| ResultLineError { line: line.chars().take(120).collect(), problem };
        // serde would take a list of the values, too.
        if !line.trim_start().starts_with('{') {
            return Err(refuse("it is no JSON object".to_owned()));
        }
        let result: Self = serde_json::from_str(line).map_err(|error| refuse(error.to_string()))?;
        // To pass over it would be to hand on rows that are not written yet.
        if serde_json::from_str::<UnfinishedWork>(line).is_ok_and(|work| work.fence_fd.is_some()) {
            let remedy = "attach the fence to the regions, which keep it (DMA_BUF_IOCTL_IMPORT_SYNC_FILE)";
            return Err(refuse(format!("fence_fd is closed when the provider has exited; {remedy}")));
        }
        match result.prefill_ms {
            Some(time) if time < 0.0 => Err(refuse("prefill_ms is negative".to_owned())),
            _ => Ok(result),
        }
    }
}

impl std::fmt::Display for ResultLine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}
