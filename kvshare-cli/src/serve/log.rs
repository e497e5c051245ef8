//! What the proxy says on standard error: one line for each thing that happened, as text or as a JSON record.

use std::fmt;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use kvshare::handoff::{Report, RouteTimes};
use serde_json::{Value, json};

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people and their scripts.
    #[default]
    Text,
    /// A JSON object with `time` (seconds since 1970), `event`, `message` (the line) and the event's own fields.
    Json,
}

/// Something that happened.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// A handoff worked.
    HandedOver(&'a Report),
    /// A request was forwarded as it came.
    Forwarded {
        /// Why.
        reason: &'a dyn fmt::Display,
    },
    /// The handshake failed, and the file route carries this request.
    FellBack {
        /// Why.
        reason: &'a dyn fmt::Display,
    },
    /// The backend cannot share at all; it is not asked again.
    NoSharing {
        /// Its words.
        reason: &'a dyn fmt::Display,
    },
    /// A handoff that the backend made no use of.
    Wasted {
        /// Prompt tokens it evaluated all the same.
        evaluated: u64,
    },
    /// A client did not wait for its answer.
    ClientLeft {
        /// What happened meanwhile, as it follows "while".
        doing: &'a str,
    },
    /// A line of the provider's.
    Provider {
        /// The line.
        line: &'a str,
    },
    /// Something about the proxy or its backend as a whole.
    Notice {
        /// What.
        words: &'a dyn fmt::Display,
    },
}

impl LogFormat {
    /// Writes a line. Whoever started us may have closed standard error; nobody's request fails for it.
    pub fn write(self, event: Event<'_>) {
        let _ = writeln!(std::io::stderr(), "{}", self.line(event));
    }

    /// The line of an event.
    pub fn line(self, event: Event<'_>) -> String {
        match self {
            Self::Text => event.to_string(),
            Self::Json => event.record().to_string(),
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HandedOver(report) => report.fmt(formatter),
            Self::Forwarded { reason } => {
                write!(formatter, "hybrid: {reason}; the backend prefills this request itself")
            }
            Self::FellBack { reason } => write!(formatter, "hybrid: {reason}; this request takes the file route"),
            Self::NoSharing { reason } => {
                write!(formatter, "hybrid: {reason}; requests take the file route from now on")
            }
            Self::Wasted { evaluated } => write!(
                formatter,
                "hybrid: warning: the handoff was wasted: the backend evaluated {evaluated} prompt tokens instead of 1"
            ),
            Self::ClientLeft { doing } => write!(formatter, "hybrid: the client left while {doing}"),
            Self::Provider { line } => write!(formatter, "provider: {line}"),
            Self::Notice { words } => write!(formatter, "serve: {words}"),
        }
    }
}

impl Event<'_> {
    fn record(&self) -> Value {
        let (event, fields) = match self {
            Self::HandedOver(report) => ("handed_over", report_fields(report)),
            Self::Forwarded { reason } => ("forwarded", json!({"reason": reason.to_string()})),
            Self::FellBack { reason } => ("fell_back", json!({"reason": reason.to_string()})),
            Self::NoSharing { reason } => ("no_sharing", json!({"reason": reason.to_string()})),
            Self::Wasted { evaluated } => ("wasted", json!({"evaluated": evaluated})),
            Self::ClientLeft { doing } => ("client_left", json!({"while": doing})),
            Self::Provider { line } => ("provider", json!({"line": line})),
            Self::Notice { .. } => ("notice", json!({})),
        };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let mut record = json!({"time": time, "event": event, "message": self.to_string()});
        if let (Some(record), Value::Object(fields)) = (record.as_object_mut(), fields) {
            record.extend(fields);
        }
        record
    }
}

fn report_fields(report: &Report) -> Value {
    let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    let mut fields = json!({
        "prompt_tokens": report.prompt_tokens, "prefill_ms": ms(report.prefill), "first_byte_ms": ms(report.first_byte),
    });
    match report.route {
        RouteTimes::Shared { share, adopt } => {
            fields["route"] = json!("shared");
            fields["share_ms"] = json!(ms(share));
            fields["adopt_ms"] = json!(ms(adopt));
        }
        RouteTimes::File { restore, fell_back } => {
            fields["route"] = json!("file");
            fields["restore_ms"] = json!(ms(restore));
            fields["fell_back"] = json!(fell_back);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_two_lines_that_scripts_read_are_as_agreed() {
        let event = Event::Forwarded { reason: &"the provider ended badly (exit status 3)" };
        let line = "hybrid: the provider ended badly (exit status 3); the backend prefills this request itself";
        assert_eq!(event.to_string(), line);
        let route = RouteTimes::File { restore: Duration::from_millis(7), fell_back: false };
        let (prefill, first_byte) = (Duration::from_millis(97), Duration::from_millis(120));
        let report = Report { prompt_tokens: 251, route, prefill, first_byte };
        let line = "hybrid: 251 prompt tokens: prefill 97 ms, restore 7 ms, first byte 120 ms";
        assert_eq!(Event::HandedOver(&report).to_string(), line);
        let record = Event::HandedOver(&report).record();
        assert_eq!((&record["message"], &record["event"]), (&json!(line), &json!("handed_over")));
        assert_eq!((&record["route"], &record["restore_ms"]), (&json!("file"), &json!(7.0)));
    }
}
