//! `kvshare-cli verify`: whether the rows of a cache are those that should be there, and if not, what was done wrong.
//!
//! [`Side`] reads the rows of a cache, also in ways in which they should not lie; [`Reference`] is what they are compared
//! with; [`Verification`] compares; [`Mistake`] is what can be told from the rows, and [`Diagnosis`] says which of it
//! explains them. `run-provider` is built on the same.

mod arguments;
mod compare;
mod diagnosis;
mod error;
mod json;
mod mistakes;
mod model_facts;
mod prompt;
mod reference;
mod rope;
mod side;
mod text;
mod tolerance;
mod verification;

pub use arguments::VerifyArguments;
pub use compare::{Agreement, Element};
pub use diagnosis::{Diagnosis, Explained, Explanation};
pub use error::VerifyError;
pub use mistakes::Mistake;
pub use model_facts::ModelFacts;
pub use reference::{FileKind, Reference};
pub use rope::{Pairing, Rope};
pub use side::{Place, Reading, Side, Turn, TurnKind};
pub use tolerance::Tolerance;
pub use verification::{Plane, Verification};

pub(crate) use arguments::tolerance as parse_tolerance;
pub(crate) use json::verification as as_json;
pub(crate) use prompt::PromptArguments;
pub(crate) use text::{verification as as_text, wrapped};

use std::os::fd::OwnedFd;
use std::path::Path;

use fake_exporter::model::Model;
use kvshare::fd;
use kvshare::header::Header;

use crate::inspect::{DescriptorHolder, read_header};
use crate::output::{Failure, print};

/// Runs the command. Returns whether the rows are right.
///
/// # Errors
/// Caches that could not be compared.
pub fn run(arguments: &VerifyArguments) -> Result<bool, Failure> {
    let verification = verify(arguments).map_err(Failure::new)?;
    print(&match arguments.json {
        true => format!("{:#}", as_json(&verification)),
        false => as_text(&verification),
    })?;
    Ok(verification.holds())
}

fn verify(arguments: &VerifyArguments) -> Result<Verification, VerifyError> {
    let descriptors = take(arguments.pid, &arguments.fds)?;
    let against = take(None, &arguments.against_fds)?;
    let kind = arguments.against.as_deref().map(FileKind::of).transpose()?;
    let model_path = match (&arguments.model, &arguments.against) {
        (None, Some(path)) if kind == Some(FileKind::Gguf) => Some(path),
        (model, _) => model.as_ref(),
    };
    let header = read(&arguments.layout, &descriptors, model_path.map(AsRef::as_ref))?;
    let model = match (&arguments.against, kind) {
        (Some(path), Some(FileKind::Gguf)) => Some(Model::open(path)?),
        _ if arguments.prompt.is_text() => model_path.map(Model::open).transpose()?,
        _ => None,
    };
    let tokens = arguments.prompt.resolve(model.as_ref())?;
    let reference = match (&arguments.against, &model) {
        (Some(path), Some(model)) if kind == Some(FileKind::Gguf) => {
            let tokens = tokens.ok_or(VerifyError::NoPrompt)?;
            Reference::of_model(model, &path.display().to_string(), &header, &tokens)?
        }
        (Some(path), _) => Reference::of_state_file(path, tokens.as_deref())?,
        (None, _) => {
            let other = arguments.against_layout.as_ref().unwrap_or(&arguments.layout);
            let header = read(other, &against, model_path.map(AsRef::as_ref))?;
            Reference::of_regions(&header, &against, arguments.stream, tokens.as_deref())?
        }
    };
    let facts = match (model, model_path) {
        (Some(model), _) => ModelFacts::of(&model),
        (None, Some(path)) => ModelFacts::read(path)?,
        (None, None) => ModelFacts::unknown(),
    };
    Verification::of(&Side::open(&header, &descriptors, arguments.stream)?, &reference, facts, arguments.tolerance)
}

fn take(pid: Option<i32>, numbers: &[i32]) -> Result<Vec<OwnedFd>, VerifyError> {
    let holder = DescriptorHolder::open(pid)?;
    let numbers = match numbers {
        [] if pid.is_some() => holder.memory_descriptors()?,
        numbers => numbers.to_vec(),
    };
    Ok(numbers.iter().map(|number| holder.take(*number)).collect::<Result<_, _>>()?)
}

/// The header at `path`, which must describe these descriptors.
fn read(path: &Path, descriptors: &[OwnedFd], model: Option<&Path>) -> Result<Header, VerifyError> {
    let (header, _) = read_header(path, model)?;
    header.check_descriptors(&fd::sizes(descriptors)?)?;
    Ok(header)
}
