//! The first part: one question, answered by every route.

use kvshare::handoff::ProviderProgram;
use serde::Serialize;

use super::DemoArguments;
use crate::cycle::{Completion, Cycle};
use crate::output::Failure;
use crate::stage::{Stage, ms, quiet};

const STORIES: &str = include_str!("stories.txt");

/// One question and what became of it on each route.
#[derive(Debug, Serialize)]
pub(super) struct Story {
    pub(super) model: String,
    pub(super) question: String,
    pub(super) prompt_tokens: usize,
    pub(super) cache_bytes: u64,
    pub(super) answers: Vec<Answer>,
}

/// One answer, and what it took to get it. Times are in milliseconds; absent stages did not happen.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) route: &'static str,
    pub(super) text: String,
    /// Prompt tokens that the decoder had to evaluate itself.
    pub(super) evaluated: u64,
    pub(super) share_ms: Option<f64>,
    pub(super) provider_ms: Option<f64>,
    pub(super) prefill_ms: Option<f64>,
    pub(super) adopt_ms: Option<f64>,
    pub(super) restore_ms: Option<f64>,
    pub(super) decoder_prefill_ms: f64,
    /// Bytes that crossed as data: the message, or the file.
    pub(super) crossed_bytes: u64,
    /// Bytes of the cache that were copied: into the file and out of it.
    pub(super) copied_bytes: u64,
}

impl Story {
    /// Whether all routes gave one text, and each handoff spared the decoder the prompt.
    pub(super) fn is_right(&self) -> bool {
        let same = self.answers.windows(2).all(|pair| pair[0].text == pair[1].text);
        let spared = self.answers.iter().all(|answer| answer.route == "none" || answer.evaluated == 1);
        same && spared
    }
}

pub(super) fn run(stage: &Stage, arguments: &DemoArguments) -> Result<Story, Failure> {
    let model = match &arguments.model {
        Some(path) => path.clone(),
        None => stage.embedded_model()?,
    };
    let name = match &arguments.model {
        Some(path) => path.display().to_string(),
        None => "kvshare-tiny, 3 million parameters (embedded)".to_owned(),
    };
    let question = arguments.prompt.clone().unwrap_or_else(|| STORIES.to_owned());
    stage.say("starting a decoder and loading the model");
    let model_text = model.to_string_lossy().into_owned();
    let decoder = stage.decoder(&["--model", &model_text, "--reserve", "touch"])?;
    let provider = match &arguments.provider {
        Some(program) => ProviderProgram::new(program, model),
        None => stage.reference_provider(model, &[]),
    };
    let cycle = stage.cycle(&decoder, provider)?;
    stage.wait(async {
        let prompt = cycle.decoder.apply_template(&question).await.map_err(Failure::new)?;
        let tokens = cycle.decoder.tokenize(&prompt).await.map_err(Failure::new)?;
        if tokens.len() < 2 {
            return Err(Failure::new("the prompt has fewer than two tokens, so there is nothing to hand over"));
        }
        let mut answers = Vec::new();
        let mut cache_bytes = 0;
        for route in ["shared", "file", "none"] {
            stage.say(&format!("answering: route {route}"));
            // Each route starts with an empty slot, or the decoder would answer from the route before.
            cycle.decoder.erase().await.map_err(Failure::new)?;
            let (answer, region_bytes) = answer(&cycle, route, &tokens, arguments.tokens).await?;
            cache_bytes = region_bytes.unwrap_or(cache_bytes);
            answers.push(answer);
        }
        Ok(Story { model: name, question, prompt_tokens: tokens.len(), cache_bytes, answers })
    })
}

/// Answers by one route; also says how large the regions are, where it was told.
async fn answer(
    cycle: &Cycle,
    route: &'static str,
    tokens: &[i32],
    most: u32,
) -> Result<(Answer, Option<u64>), Failure> {
    // The decoder evaluates the last token itself: it needs its logits.
    let handed_over = &tokens[..tokens.len() - 1];
    let mut answer = Answer {
        route,
        text: String::new(),
        evaluated: 0,
        share_ms: None,
        provider_ms: None,
        prefill_ms: None,
        adopt_ms: None,
        restore_ms: None,
        decoder_prefill_ms: 0.0,
        crossed_bytes: 0,
        copied_bytes: 0,
    };
    let mut region_bytes = None;
    match route {
        "shared" => {
            let handoff = cycle.share(handed_over, quiet).await.map_err(Failure::new)?;
            answer.share_ms = Some(ms(handoff.share));
            answer.provider_ms = Some(ms(handoff.provider.wall));
            answer.prefill_ms = Some(ms(handoff.provider.prefill()));
            answer.adopt_ms = Some(ms(handoff.adopt));
            answer.crossed_bytes = handoff.message_bytes;
            region_bytes = Some(handoff.region_bytes);
        }
        "file" => {
            let handoff = cycle.restore(handed_over, quiet).await.map_err(Failure::new)?;
            answer.provider_ms = Some(ms(handoff.provider.wall));
            answer.prefill_ms = Some(ms(handoff.provider.prefill()));
            answer.restore_ms = Some(ms(handoff.restore));
            answer.crossed_bytes = handoff.file_bytes;
            answer.copied_bytes = 2 * handoff.file_bytes;
        }
        _ => {}
    }
    let Completion { content, timings } = cycle.decoder.complete(tokens, most).await.map_err(Failure::new)?;
    answer.text = content.trim().to_owned();
    answer.evaluated = timings.prompt_n;
    answer.decoder_prefill_ms = timings.prompt_ms;
    Ok((answer, region_bytes))
}
