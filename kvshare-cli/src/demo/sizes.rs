//! The second part: the cache of a real model's size, at three prompt lengths, over both routes.
//!
//! No model runs here. The provider writes a known function into every element of the prompt's rows, and the decoder
//! compares each one, so that a wrong byte anywhere shows.

use serde::Serialize;

use crate::cycle::Cycle;
use crate::output::Failure;
use crate::qwen3_size::{DECODER, LENGTHS, PROVIDER, prompt};
use crate::stage::{Stage, ms, quiet};

/// How the checker's words end when every element is right; any others name the first wrong one.
const RIGHT: &str = "is right";

/// All handoffs of the second part.
#[derive(Debug, Serialize)]
pub(super) struct Sizes {
    pub(super) geometry: &'static str,
    pub(super) region_bytes: u64,
    pub(super) regions: usize,
    pub(super) decoder_peak_bytes: Option<u64>,
    pub(super) rows: Vec<SizeRow>,
}

/// One handoff. Times are in milliseconds; absent stages did not happen.
#[derive(Debug, Serialize)]
pub(super) struct SizeRow {
    pub(super) prompt_tokens: usize,
    pub(super) route: &'static str,
    pub(super) crossed_bytes: u64,
    pub(super) copied_bytes: u64,
    pub(super) share_ms: Option<f64>,
    pub(super) provider_ms: f64,
    pub(super) adopt_ms: Option<f64>,
    pub(super) restore_ms: Option<f64>,
    pub(super) evaluated: u64,
    pub(super) verdict: String,
}

impl SizeRow {
    pub(super) fn is_right(&self) -> bool {
        self.evaluated == 1 && self.verdict.ends_with(RIGHT)
    }
}

impl Sizes {
    pub(super) fn is_right(&self) -> bool {
        self.rows.iter().all(SizeRow::is_right)
    }
}

pub(super) fn run(stage: &Stage) -> Result<Sizes, Failure> {
    stage.say("starting a decoder with a 2240 MiB cache");
    let decoder = stage.decoder(&DECODER)?;
    let provider = stage.reference_provider("checker".into(), &PROVIDER);
    let cycle = stage.cycle(&decoder, provider)?;
    let mut sizes = Sizes {
        geometry: "28 layers, K and V 1024 wide, f16, 20480 cells (Qwen3-0.6B)",
        region_bytes: 0,
        regions: 0,
        decoder_peak_bytes: None,
        rows: Vec::new(),
    };
    stage.wait(async {
        for length in LENGTHS {
            let tokens = prompt(length);
            // The file goes first: while it is there, the decoder has not touched as many of its own pages yet.
            stage.say(&format!("{length} tokens through a file"));
            let file = by_file(&cycle, &tokens).await?;
            stage.say(&format!("{length} tokens through shared memory"));
            let shared = by_share(&cycle, &tokens, &mut sizes).await?;
            sizes.rows.extend([shared, file]);
        }
        Ok(())
    })?;
    sizes.decoder_peak_bytes = decoder.peak_memory();
    Ok(sizes)
}

async fn by_share(cycle: &Cycle, tokens: &[i32], sizes: &mut Sizes) -> Result<SizeRow, Failure> {
    cycle.decoder.erase().await.map_err(Failure::new)?;
    let handoff = cycle.share(&tokens[..tokens.len() - 1], quiet).await.map_err(Failure::new)?;
    (sizes.region_bytes, sizes.regions) = (handoff.region_bytes, handoff.descriptors);
    let (evaluated, verdict) = verdict(cycle, tokens).await?;
    Ok(SizeRow {
        prompt_tokens: tokens.len(),
        route: "shared",
        crossed_bytes: handoff.message_bytes,
        copied_bytes: 0,
        share_ms: Some(ms(handoff.share)),
        provider_ms: ms(handoff.provider.wall),
        adopt_ms: Some(ms(handoff.adopt)),
        restore_ms: None,
        evaluated,
        verdict,
    })
}

async fn by_file(cycle: &Cycle, tokens: &[i32]) -> Result<SizeRow, Failure> {
    cycle.decoder.erase().await.map_err(Failure::new)?;
    let handoff = cycle.restore(&tokens[..tokens.len() - 1], quiet).await.map_err(Failure::new)?;
    let (evaluated, verdict) = verdict(cycle, tokens).await?;
    Ok(SizeRow {
        prompt_tokens: tokens.len(),
        route: "file",
        crossed_bytes: handoff.file_bytes,
        copied_bytes: 2 * handoff.file_bytes,
        share_ms: None,
        provider_ms: ms(handoff.provider.wall),
        adopt_ms: None,
        restore_ms: Some(ms(handoff.restore)),
        evaluated,
        verdict,
    })
}

/// What the decoder says of the cache it was handed.
async fn verdict(cycle: &Cycle, tokens: &[i32]) -> Result<(u64, String), Failure> {
    let completion = cycle.decoder.complete(tokens, 512).await.map_err(Failure::new)?;
    Ok((completion.timings.prompt_n, completion.content))
}
