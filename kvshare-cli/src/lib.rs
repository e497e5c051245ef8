//! kvshare at the command line: the demo, the layout, and the stand-ins as subcommands of one program.
//!
//! The commands are a library so that tests can run a handoff without a terminal.
#![forbid(unsafe_code)]

pub mod command_line;
pub mod cycle;
pub mod decoder_process;
pub mod demo;
pub mod doctor;
pub mod gate;
pub mod header_file;
pub mod inspect;
pub mod layout_command;
pub mod manual;
pub mod message_commands;
pub mod output;
pub mod qwen3_size;
pub mod run_provider;
pub mod serve;
pub mod split_ceiling;
mod stage;
pub mod state_command;
pub mod verify;
