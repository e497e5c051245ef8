//! State files: those that a stock server wrote, damaged ones, and generated ones.

mod damaged;
mod generated;
mod other_caches;
mod published;
mod server_files;
mod server_rows;
mod support;
