//! The prompt's tokens, as the command line gives them.

use std::path::PathBuf;

use clap::{Args, value_parser};
use fake_exporter::model::Model;
use kvshare::provider::read_tokens;

use super::VerifyError;

// A plain comment: a documentation comment would become the help of the commands that this is part of.
// The prompt, in one of three ways.
#[derive(Clone, Debug, Default, Args)]
#[group(multiple = false)]
pub(crate) struct PromptArguments {
    /// The prompt's token ids, in a file with one decimal id a line
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// The prompt's token ids
    #[arg(long, value_name = "ID,ID", value_delimiter = ',', value_parser = value_parser!(i32).range(0..))]
    token_ids: Vec<i32>,
    /// The prompt as text, of which the model's tokenizer makes tokens
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
}

impl PromptArguments {
    /// Whether a text was given, which needs a model.
    pub(crate) fn is_text(&self) -> bool {
        self.prompt.is_some()
    }

    /// The tokens; none where no prompt was given.
    ///
    /// # Errors
    /// A file that cannot be read, a text without a model, a prompt without tokens.
    pub(crate) fn resolve(&self, model: Option<&Model>) -> Result<Option<Vec<i32>>, VerifyError> {
        let tokens = if let Some(path) = &self.tokens {
            read_tokens(path)?
        } else if let Some(text) = &self.prompt {
            let tokens = model.ok_or(VerifyError::NoVocabulary)?.tokenizer().encode(text, true, true)?;
            tokens.into_iter().map(u32::cast_signed).collect()
        } else if self.token_ids.is_empty() {
            return Ok(None);
        } else {
            self.token_ids.clone()
        };
        if tokens.is_empty() { Err(VerifyError::EmptyPrompt) } else { Ok(Some(tokens)) }
    }
}
