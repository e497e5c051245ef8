//! A conversation to a prompt, by the chat template in the GGUF.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, context};
use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Why a conversation could not be made into a prompt.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum ChatError {
    /// The GGUF has no template.
    #[error(
        "the model has no chat template (\"tokenizer.chat_template\"); send a plain prompt, or use an instruct model"
    )]
    NoTemplate,
    /// The template is not valid Jinja.
    #[error("the model's chat template is not valid: {0:#}; convert the model again")]
    Template(#[source] Error),
    /// The template refused the conversation, or failed on it.
    #[error("the model's chat template refused the messages: {0:#}")]
    Messages(#[source] Error),
}

/// One message of a conversation, as in OpenAI's chat completions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    #[serde(default)]
    pub content: Content,
    /// Other fields, which the template may use.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(text.into()), other: serde_json::Map::new() }
    }
}

/// What a message says. In JSON: a string, a list of parts, or null.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Texts, which are joined by line breaks.
    Parts(Vec<Part>),
    /// Nothing.
    #[default]
    Nothing,
}

/// A part of a message. In JSON: `{"type": "text", "text": "..."}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// A text. Images and other parts are not for these models.
    Text {
        /// The text.
        text: String,
    },
}

impl Content {
    /// All of it as one text. llama.cpp joins parts with line breaks, too (`common_chat_msg::to_json_oaicompat` in
    /// common/chat.cpp).
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().map(|Part::Text { text }| text.as_str()).collect();
                texts.join("\n")
            }
            Self::Nothing => String::new(),
        }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// The template's name in its environment, seen in its error messages.
const NAME: &str = "tokenizer.chat_template";
/// Steps that a template may take, so that one with endless loops ends. A message takes some tens.
const FUEL: u64 = 10_000_000;

impl ChatTemplate {
    /// Compiles a template with the settings of Hugging Face's `apply_chat_template`.
    pub(super) fn new(source: String, bos_token: String, eos_token: String) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(ChatError::Template)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, source).map_err(ChatError::Template)?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// The prompt that makes the model answer the last message.
    ///
    /// # Errors
    ///
    /// [`ChatError::Messages`] if the template refuses the messages, in the template's own words.
    ///
    /// # Examples
    ///
    /// ```
    /// use fake_exporter::model::{Message, Model};
    ///
    /// let model = Model::embedded()?;
    /// let prompt = model.chat_template()?.render(&[Message::new("user", "Why does it rain?")])?;
    /// assert_eq!(prompt, "<|im_start|>user\nWhy does it rain?<|im_end|>\n<|im_start|>assistant\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let messages: Vec<Message> = messages
            .iter()
            .map(|message| Message { content: Content::Text(message.content.text()), ..message.clone() })
            .collect();
        let template = self.environment.get_template(NAME).map_err(ChatError::Messages)?;
        let prompt = template.render(context! {
            messages => Serde(messages),
            tools => (),
            add_generation_prompt => true,
            bos_token => &self.bos_token,
            eos_token => &self.eos_token,
        });
        prompt.map_err(ChatError::Messages)
    }
}

/// Lets a template refuse a conversation.
fn raise_exception(reason: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

/// Today's date as the template wants it, in local time, as in Hugging Face's templates and llama.cpp's.
fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(&format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now(\"{format}\"): {error}")))
}
