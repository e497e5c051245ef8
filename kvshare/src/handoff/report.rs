//! What a handoff cost, in one line that people and their scripts read.

use std::fmt;
use std::time::Duration;

/// One handoff that worked: what each stage took.
///
/// ```
/// use std::time::Duration;
/// use kvshare::handoff::{Report, RouteTimes};
///
/// let report = Report {
///     prompt_tokens: 251,
///     route: RouteTimes::Shared { share: Duration::from_micros(430), adopt: Duration::from_micros(2) },
///     prefill: Duration::from_millis(97),
///     first_byte: Duration::from_millis(120),
/// };
/// let line = "hybrid: 251 prompt tokens: share 0.430 ms, prefill 97 ms, adopt 0.002 ms, first byte 120 ms";
/// assert_eq!(report.to_string(), line);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The route, with what it took.
    pub route: RouteTimes,
    /// The provider's prefill.
    pub prefill: Duration,
    /// From the handoff's start to the decoder's first byte.
    pub first_byte: Duration,
}

/// What a route's own stages took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTimes {
    /// Through the decoder's memory.
    Shared {
        /// From asking for the share to holding its descriptors.
        share: Duration,
        /// The decoder taking the cells.
        adopt: Duration,
    },
    /// Through a state file.
    File {
        /// The decoder reading it.
        restore: Duration,
        /// Whether sharing is on and this handoff fell back.
        fell_back: bool,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompt_tokens, route, prefill, first_byte } = self;
        let (prefill, first_byte) = (ms(*prefill), ms(*first_byte));
        write!(formatter, "hybrid: {prompt_tokens} prompt tokens: ")?;
        match route {
            RouteTimes::Shared { share, .. } => write!(formatter, "share {:.3} ms, ", ms(*share))?,
            RouteTimes::File { fell_back: true, .. } => write!(formatter, "share 0.000 ms, ")?,
            RouteTimes::File { fell_back: false, .. } => {}
        }
        write!(formatter, "prefill {prefill:.0} ms, ")?;
        match route {
            RouteTimes::Shared { adopt, .. } => write!(formatter, "adopt {:.3} ms, ", ms(*adopt))?,
            RouteTimes::File { restore, .. } => write!(formatter, "restore {:.0} ms, ", ms(*restore))?,
        }
        write!(formatter, "first byte {first_byte:.0} ms")
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
