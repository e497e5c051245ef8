//! `kvshare-cli split-ceiling`: what splitting one prompt between two devices can be worth at best.
//!
//! With a GPU that takes `g` a row and an NPU that takes `t` a tile of `r` rows, the best split lets both finish
//! together, and is faster than the GPU alone by the factor `1 + g*r/t`. That holds for the share `P` of the work that
//! can be split (the matrix products, not attention), so all in all it is `1 / ((1 - P) + P / factor)`.

use clap::Args;

use crate::output::{Failure, print};

/// Prints how much faster a prompt split between GPU and NPU can be at best
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvshare-cli split-ceiling --gpu-ms-per-row 0.002 --npu-ms-per-tile 3.1 --gemm-share 0.462
  kvshare-cli split-ceiling --factor 1.164 --gemm-share 0.262")]
pub struct SplitCeilingArguments {
    /// The GPU's time for a row, in ms
    #[arg(long, value_name = "G", value_parser = positive, required_unless_present = "factor")]
    gpu_ms_per_row: Option<f64>,
    /// The NPU's time for a tile, in ms
    #[arg(long, value_name = "T", value_parser = positive, required_unless_present = "factor")]
    npu_ms_per_tile: Option<f64>,
    /// Rows of a tile
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 256)]
    tile_rows: u32,
    /// The factor itself, instead of the two times
    #[arg(long, value_name = "F", value_parser = at_least_one, conflicts_with_all = ["gpu_ms_per_row", "npu_ms_per_tile"])]
    factor: Option<f64>,
    /// The share of the work that can be split, from 0 to 1
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 1.0)]
    gemm_share: f64,
}

/// Runs the command.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(arguments: &SplitCeilingArguments) -> Result<(), Failure> {
    let (gpu, npu) = (arguments.gpu_ms_per_row.unwrap_or(0.0), arguments.npu_ms_per_tile.unwrap_or(1.0));
    let factor = arguments.factor.unwrap_or_else(|| split_factor(gpu, npu, arguments.tile_rows));
    let share = arguments.gemm_share;
    let all = overall(factor, share);
    print(&format!(
        "split share of the work  {share:.3}\nfactor on that share     {factor:.3}\nfactor in all            {all:.3}"
    ))
}

/// How much faster both devices together are than the GPU alone.
pub fn split_factor(gpu_ms_per_row: f64, npu_ms_per_tile: f64, tile_rows: u32) -> f64 {
    1.0 + gpu_ms_per_row * f64::from(tile_rows) / npu_ms_per_tile
}

/// What a `factor` on a `share` of the work makes of the whole (Amdahl's law).
pub fn overall(factor: f64, share: f64) -> f64 {
    1.0 / ((1.0 - share) + share / factor)
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0, "a number over 0")
}

fn at_least_one(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 1.0, "a number of at least 1")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

fn number(text: &str, is_right: impl Fn(f64) -> bool, wanted: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && is_right(*value));
    value.ok_or_else(|| format!("it must be {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_measurements() {
        for (factor, share, in_all) in
            [(1.164, 0.262, "1.038"), (1.164, 0.462, "1.070"), (1.032, 0.262, "1.008"), (1.032, 0.462, "1.015")]
        {
            assert_eq!(format!("{:.3}", overall(factor, share)), in_all, "{factor}, {share}");
        }
    }

    #[test]
    fn both_devices_finish_together() {
        let (gpu, npu, rows) = (0.5, 64.0, 256);
        // Of 300 rows the NPU takes 200 in 50 ms and the GPU 100 in 50 ms, where it alone would take 150 ms.
        assert_eq!(split_factor(gpu, npu, rows), 3.0);
        assert_eq!(overall(3.0, 1.0), 3.0);
        assert_eq!(overall(3.0, 0.0), 1.0);
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for text in ["0", "-1", "NaN", "inf", "", "x"] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert!(at_least_one("0.99").is_err() && share("1.01").is_err() && share("-0.1").is_err());
    }
}
