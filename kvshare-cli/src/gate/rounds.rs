//! Asking and measuring: every prompt by every route, in turns, so that whatever else the machine does hits all alike.

use std::time::Duration;

use serde::Serialize;

use super::prompts::prompts;
use super::rows::{Apart, RowsError, SavedRows};
use super::subject::Subject;
use crate::cycle::{Completion, Cycle, CycleError, DecoderError};
use crate::output::Failure;
use crate::stage::{Stage, ms, quiet};

/// How a prompt's cache gets to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Route {
    /// By descriptor.
    Shared,
    /// Through a state file.
    File,
    /// Not at all: the decoder computes it.
    None,
}

impl Route {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::File => "file",
            Self::None => "none",
        }
    }
}

/// What is done.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    /// Prompt lengths, from short to long.
    pub(super) lengths: Vec<usize>,
    /// How many tokens of text are generated.
    pub(super) tokens: u32,
    /// How often each handoff is made.
    pub(super) runs: u32,
    /// Whether rows are not compared.
    pub(super) text_only: bool,
    /// The routes of handoffs.
    #[serde(skip)]
    pub(super) routes: Vec<Route>,
}

/// One prompt and what every route made of it.
#[derive(Debug, Serialize)]
pub(super) struct Length {
    pub(super) prompt_tokens: usize,
    /// What the decoder answers by itself.
    pub(super) none: Answer,
    /// The handoffs.
    pub(super) handoffs: Vec<Handoff>,
    /// How far apart the rows of every two routes are, where both left some and they are compared.
    pub(super) rows: Vec<Pair>,
}

/// How far the rows of one route are from those of another.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pair {
    pub(super) route: Route,
    pub(super) other: Route,
    /// Where they are farthest apart.
    pub(super) farthest: Apart,
}

/// A text, and how many prompt tokens the decoder evaluated for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) evaluated: u64,
}

/// The handoffs of one prompt by one route.
#[derive(Debug, Serialize)]
pub(super) struct Handoff {
    pub(super) route: Route,
    /// Those that worked, in order.
    pub(super) runs: Vec<Run>,
    /// Why one did not. No other was tried then.
    pub(super) failure: Option<String>,
    /// Whether that is since the decoder cannot share at all.
    pub(super) cannot_share: bool,
}

/// One handoff that worked. Times are in milliseconds; absent stages did not happen.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) answer: Answer,
    pub(super) share_ms: Option<f64>,
    pub(super) provider_ms: f64,
    pub(super) adopt_ms: Option<f64>,
    pub(super) restore_ms: Option<f64>,
    /// Bytes that crossed as data: the message, or the file.
    pub(super) crossed_bytes: u64,
    /// Bytes that the decoder read by system calls meanwhile, sockets apart; unknown where its process is.
    pub(super) decoder_read_bytes: Option<u64>,
}

impl Length {
    /// The handoffs by `route`.
    pub(super) fn handoff(&self, route: Route) -> Option<&Handoff> {
        self.handoffs.iter().find(|handoff| handoff.route == route)
    }

    /// The text after the first handoff by `route`, or without one.
    pub(super) fn text(&self, route: Route) -> Option<&str> {
        match route {
            Route::None => Some(&self.none.text),
            _ => self.handoff(route)?.runs.first().map(|run| run.answer.text.as_str()),
        }
    }
}

/// Makes all handoffs of the plan.
///
/// # Errors
/// The decoder fails at what is no handoff.
pub(super) async fn run(stage: &Stage, subject: &Subject, plan: &Plan) -> Result<Vec<Length>, Failure> {
    let prompts = prompts(&subject.cycle.decoder, &plan.lengths).await.map_err(Failure::new)?;
    let mut lengths = Vec::new();
    for prompt in &prompts {
        lengths.push(first_round(stage, subject, plan, prompt).await?);
    }
    for round in 2..=plan.runs {
        for (prompt, length) in prompts.iter().zip(&mut lengths) {
            for handoff in length.handoffs.iter_mut().filter(|handoff| handoff.failure.is_none()) {
                stage.say(&format!(
                    "{} tokens, {} route, {round} of {}",
                    prompt.len(),
                    handoff.route.name(),
                    plan.runs
                ));
                if handoff.make(subject, prompt).await? {
                    handoff.answer(subject, prompt, plan.tokens).await?;
                }
            }
        }
    }
    // Nobody's next prompt is to find a test's cells.
    subject.cycle.decoder.erase().await.map_err(Failure::new)?;
    Ok(lengths)
}

/// Answers one prompt by every route, and compares the rows that each left in the cache.
async fn first_round(stage: &Stage, subject: &Subject, plan: &Plan, prompt: &[i32]) -> Result<Length, Failure> {
    let mut saved = Vec::new();
    stage.say(&format!("{} tokens without a handoff", prompt.len()));
    let none = answer_alone(subject, plan, prompt, &mut saved).await?;
    let mut handoffs = Vec::new();
    for &route in &plan.routes {
        stage.say(&format!("{} tokens, {} route, 1 of {}", prompt.len(), route.name(), plan.runs));
        let mut handoff = Handoff { route, runs: Vec::new(), failure: None, cannot_share: false };
        if handoff.make(subject, prompt).await? {
            save_rows(subject, plan, route, &mut saved).await?;
            handoff.answer(subject, prompt, plan.tokens).await?;
        }
        handoffs.push(handoff);
    }
    let rows =
        tokio::task::spawn_blocking(move || compare(&saved)).await.map_err(Failure::new)?.map_err(Failure::new)?;
    Ok(Length { prompt_tokens: prompt.len(), none, handoffs, rows })
}

/// The decoder's own answer. It evaluates the last token alone, as it does after a handoff: one token alone can give
/// another text than the same token in a batch.
async fn answer_alone(
    subject: &Subject,
    plan: &Plan,
    prompt: &[i32],
    saved: &mut Vec<(Route, SavedRows)>,
) -> Result<Answer, Failure> {
    let decoder = &subject.cycle.decoder;
    decoder.erase().await.map_err(Failure::new)?;
    let before_last = decoder.complete(&prompt[..prompt.len() - 1], 1).await.map_err(Failure::new)?;
    save_rows(subject, plan, Route::None, saved).await?;
    let Completion { content, timings } = decoder.complete(prompt, plan.tokens).await.map_err(Failure::new)?;
    Ok(Answer { text: content, evaluated: before_last.timings.prompt_n + timings.prompt_n })
}

async fn save_rows(
    subject: &Subject,
    plan: &Plan,
    route: Route,
    saved: &mut Vec<(Route, SavedRows)>,
) -> Result<(), Failure> {
    if !plan.text_only {
        let rows = SavedRows::save(&subject.cycle).await.map_err(Failure::new)?;
        saved.push((route, rows));
    }
    Ok(())
}

/// Every two of the saved rows, the later ones compared with the earlier.
fn compare(saved: &[(Route, SavedRows)]) -> Result<Vec<Pair>, RowsError> {
    let mut pairs = Vec::new();
    for (index, (other, other_rows)) in saved.iter().enumerate() {
        for (route, rows) in &saved[index + 1..] {
            pairs.push(Pair { route: *route, other: *other, farthest: rows.compare(other_rows)? });
        }
    }
    Ok(pairs)
}

impl Handoff {
    /// Makes a handoff of the prompt, and notes why it failed if it does.
    async fn make(&mut self, subject: &Subject, prompt: &[i32]) -> Result<bool, Failure> {
        forget_rows(&subject.cycle, prompt).await.map_err(Failure::new)?;
        match hand_over(subject, self.route, prompt).await {
            Ok(run) => self.runs.push(run),
            Err(error) => {
                self.cannot_share = matches!(&error, CycleError::Decoder(error) if error.never_shares());
                self.failure = Some(error.to_string());
            }
        }
        Ok(self.failure.is_none())
    }

    /// Has the decoder answer the prompt that was handed over.
    async fn answer(&mut self, subject: &Subject, prompt: &[i32], tokens: u32) -> Result<(), Failure> {
        let completion = subject.cycle.decoder.complete(prompt, tokens).await.map_err(Failure::new)?;
        if let Some(run) = self.runs.last_mut() {
            run.answer = Answer { text: completion.content, evaluated: completion.timings.prompt_n };
        }
        Ok(())
    }
}

/// Has the decoder put other rows where the prompt's will be. Rows of an earlier handoff of the same prompt would hide a
/// provider that writes none.
async fn forget_rows(cycle: &Cycle, prompt: &[i32]) -> Result<(), DecoderError> {
    let backwards: Vec<i32> = prompt.iter().rev().copied().collect();
    cycle.decoder.erase().await?;
    cycle.decoder.complete(&backwards, 1).await?;
    cycle.decoder.erase().await
}

/// Hands over all of the prompt but its last token, which the decoder evaluates itself.
async fn hand_over(subject: &Subject, route: Route, prompt: &[i32]) -> Result<Run, CycleError> {
    let tokens = &prompt[..prompt.len() - 1];
    let reads_before = subject.decoder_reads();
    let mut run = match route {
        Route::Shared => {
            let handoff = subject.cycle.share(tokens, quiet).await?;
            let mut run = Run::new(handoff.provider.wall, handoff.message_bytes);
            (run.share_ms, run.adopt_ms) = (Some(ms(handoff.share)), Some(ms(handoff.adopt)));
            run
        }
        Route::File | Route::None => {
            let handoff = subject.cycle.restore(tokens, quiet).await?;
            let mut run = Run::new(handoff.provider.wall, handoff.file_bytes);
            run.restore_ms = Some(ms(handoff.restore));
            run
        }
    };
    let reads = subject.decoder_reads().zip(reads_before);
    run.decoder_read_bytes = reads.map(|(after, before)| after.saturating_sub(before));
    Ok(run)
}

impl Run {
    fn new(provider: Duration, crossed_bytes: u64) -> Self {
        Self {
            answer: Answer { text: String::new(), evaluated: 0 },
            share_ms: None,
            provider_ms: ms(provider),
            adopt_ms: None,
            restore_ms: None,
            crossed_bytes,
            decoder_read_bytes: None,
        }
    }
}
