//! The line of JSON that a provider ends its standard output with.

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
