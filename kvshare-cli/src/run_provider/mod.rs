//! `kvshare-cli run-provider`: one run of a provider as the proxy would make it, and everything that can be said of it.
//!
//! `memory` is prepared so that whatever is written shows; the provider runs; `inspect` looks at the memory, [`Outside`] at
//! what it must not touch, and `verify` at its rows.

mod arguments;
mod memory;
mod outside;
mod page;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fake_exporter::model::{Model, ModelError};
use kvshare::handoff::{Destination, ProviderFailure, ProviderProgram, ProviderReport, ReceivedShare};

pub use arguments::RunProviderArguments;
pub use outside::{Outside, OutsidePlace};

use crate::cycle::cancellable;
use crate::inspect::reader::{CacheReader, TensorSurvey, survey};
use crate::inspect::{Report, has_digest};
use crate::output::{Failure, print};
use crate::serve::end_with_parent;
use crate::stage::Stage;
use crate::verify::{FileKind, ModelFacts, Reference, Side, Verification, VerifyError};

/// Everything that is known of a run.
#[derive(Debug)]
struct Trial {
    program: PathBuf,
    tokens: usize,
    /// What the provider achieved.
    provider: Result<ProviderReport, ProviderFailure>,
    /// The likeliest next token as the model has it.
    argmax: Option<u32>,
    /// The memory afterwards.
    memory: Report,
    outside: Vec<Outside>,
    rows: Verification,
}

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Right,
    ProviderFailed,
    WroteOutside,
    RowsWrong,
}

impl Verdict {
    fn exit_status(self) -> u8 {
        match self {
            Self::Right => 0,
            Self::ProviderFailed => 3,
            Self::WroteOutside => 4,
            Self::RowsWrong => 5,
        }
    }
}

impl Trial {
    fn verdict(&self) -> Verdict {
        if self.provider.is_err() {
            Verdict::ProviderFailed
        } else if !self.outside.is_empty() {
            Verdict::WroteOutside
        } else if !self.rows.holds() {
            Verdict::RowsWrong
        } else {
            Verdict::Right
        }
    }
}

/// Runs the command: its exit status says what the run came to.
///
/// # Errors
/// A provider that could not be tried, or rows that could not be compared.
pub fn run(arguments: &RunProviderArguments) -> Result<u8, Failure> {
    let stage = Stage::prepare()?;
    let trial = try_provider(&stage, arguments)?;
    drop(stage);
    print(&if arguments.json { format!("{:#}", page::as_json(&trial)) } else { page::as_text(&trial) })?;
    Ok(trial.verdict().exit_status())
}

fn try_provider(stage: &Stage, arguments: &RunProviderArguments) -> Result<Trial, Failure> {
    let path = arguments.model.clone().map_or_else(|| stage.embedded_model(), Ok)?;
    stage.say("loading the model");
    let model = Model::open(&path);
    let prompt = arguments.prompt.resolve(model.as_ref().ok()).map_err(Failure::new)?;
    let tokens = prompt.ok_or_else(|| {
        Failure::new("a provider needs a prompt; give --tokens FILE, --token-ids ID,ID or --prompt TEXT")
    })?;

    let share = memory::prepare(arguments, &path, tokens.len() as u64)?;
    let reference = expected(arguments, &path, &model, &share, &tokens)?;
    let before = look(&share)?;

    let provider = provider(arguments, &path);
    stage.say("the provider runs");
    let (directory, log) = (stage.directory().to_owned(), stage.log());
    let (program, count) = (provider.program.clone(), tokens.len());
    let run = move |cancel: &_| {
        let place = Destination::Shared(&share);
        let outcome = provider.run(&tokens, place, &directory, Some(cancel), &mut |line| log(line));
        (outcome, share)
    };
    let (outcome, share) = stage.wait(async { cancellable(run).await.map_err(Failure::new) })?;

    let found = Side::open(&share.header, &share.descriptors, 0).map_err(Failure::new)?;
    let facts = model.map_or_else(|error| ModelFacts::unusable(&error), |model| ModelFacts::of(&model));
    let rows = Verification::of(&found, &reference, facts, arguments.tolerance).map_err(Failure::new)?;
    let outside = Outside::of(&before, &look(&share)?, count as u64);
    let memory = Report::of_own(Arc::unwrap_or_clone(share.header), has_digest(&share.header_bytes), share.descriptors);
    Ok(Trial { program, tokens: count, provider: outcome, argmax: reference.argmax, memory, outside, rows })
}

/// The rows that are expected: those of a state file, or of the model's own prefill.
fn expected(
    arguments: &RunProviderArguments,
    path: &Path,
    model: &Result<Model, ModelError>,
    share: &ReceivedShare,
    tokens: &[i32],
) -> Result<Reference, Failure> {
    match (&arguments.against, model) {
        (Some(file), _) => match FileKind::of(file).map_err(Failure::new)? {
            FileKind::StateFile => Reference::of_state_file(file, Some(tokens)).map_err(Failure::new),
            FileKind::Gguf => Err(Failure::new("--against takes a state file here; a model is given with -m")),
        },
        (None, Ok(model)) => {
            let name = match &arguments.model {
                Some(_) => path.display().to_string(),
                None => "kvshare-tiny (embedded)".to_owned(),
            };
            Reference::of_model(model, &name, &share.header, tokens).map_err(Failure::new)
        }
        (None, Err(error)) => Err(Failure::new(format!(
            "{error} (this model cannot be prefilled here; give --against with a state file that a llama-server saved)"
        ))),
    }
}

/// The provider as the proxy would run it.
fn provider(arguments: &RunProviderArguments, model: &Path) -> ProviderProgram {
    // clap requires a program.
    let (program, own) =
        arguments.program.split_first().map_or((Path::new(""), &[][..]), |(program, own)| (program.as_ref(), own));
    let mut provider = ProviderProgram::new(program, model);
    provider.leading_arguments = own.to_vec();
    provider.launcher = end_with_parent::launcher().to_vec();
    provider.elfs = arguments.elfs.as_ref().filter(|elfs| !elfs.is_empty()).map(PathBuf::from);
    provider.time_limit = arguments.prefill_timeout;
    let url = arguments.backend_url.as_ref();
    provider.environment = url.map(|url| ("ONEBIT_HYBRID_BACKEND_URL".into(), url.into())).into_iter().collect();
    provider
}

fn look(share: &ReceivedShare) -> Result<Vec<TensorSurvey>, Failure> {
    let reader = CacheReader::open(&share.header, &share.descriptors).map_err(VerifyError::from);
    Ok(survey(&reader.map_err(Failure::new)?))
}
