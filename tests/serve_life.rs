//! `kvshare-cli serve` from its start to its end: what it refuses, and what it leaves behind.
fn main() {}
