//! The decoder as a program: started as a process, spoken to over HTTP, its cache written by this process.

mod client;
mod files;
mod handoff;
mod http_shapes;
mod misbehaving;
mod model;
mod process;
mod server;
mod sharing;
mod streaming;
