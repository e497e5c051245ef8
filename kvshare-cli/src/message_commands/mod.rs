//! `kvshare-cli send` and `kvshare-cli recv`: a message by hand, for shell scripts and for whoever tries one end alone.
//!
//! `send` does what a decoder does when it shares its cache, `recv` what the proxy does before it starts a provider.

mod receive;
mod send;

pub use receive::ReceiveArguments;
pub use send::SendArguments;

use std::time::{Duration, Instant};

use crate::output::Failure;

/// Runs `send`.
///
/// # Errors
/// A message that cannot be made, or that does not cross.
pub fn send(arguments: &SendArguments) -> Result<(), Failure> {
    send::run(arguments)
}

/// Runs `recv`. It does not return where a program takes its place.
///
/// # Errors
/// A message that does not arrive, or that the kernel or its header shows to be wrong; a program that does not start.
pub fn receive(arguments: &ReceiveArguments) -> Result<(), Failure> {
    receive::run(arguments)
}

/// When to give up.
fn deadline(seconds: f64) -> Instant {
    Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(86_400 * 365))
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..1e7).contains(value));
    value.ok_or_else(|| "it must be a number of seconds from 0 up".to_owned())
}
