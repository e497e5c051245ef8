//! The size at which handoffs are shown and measured: the cache of Qwen3-0.6B at 20480 cells, 2240 MiB in three regions,
//! and the prompt lengths at which the shared route was first measured elsewhere. No model runs: the stand-ins' checker
//! has a cache of any shape.

/// Prompt lengths in tokens.
pub const LENGTHS: [usize; 3] = [251, 3189, 12_722];

/// Arguments of a `fake-exporter` with that cache.
pub const DECODER: [&str; 11] = [
    "--checker",
    "--layers",
    "28",
    "--k-width",
    "1024",
    "--v-width",
    "1024",
    "--ctx-size",
    "20480",
    "--reserve",
    "touch",
];

/// Arguments of its `reference-provider`.
pub const PROVIDER: [&str; 3] = ["--checker", "--checker-shape", "28,1024,1024"];

/// A prompt of `length` tokens.
pub fn prompt(length: usize) -> Vec<i32> {
    (0..length).map(|index| (index * 7 % 256) as i32).collect()
}
