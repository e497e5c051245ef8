//! Text to token ids and back, by the vocabulary in the GGUF.
//!
//! Byte-level BPE only (`tokenizer.ggml.model` = `gpt2`), with the ways of cutting a text into words that the supported
//! models use. The BPE itself is the `tokenizers` crate's.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::sync::LazyLock;

use thiserror::Error;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::gguf::{Gguf, GgufError, required};

/// Why a vocabulary cannot be used, or a text not be tokenized.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// Something is missing from the GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The tokenizer is not byte-level BPE.
    #[error("the tokenizer model \"{model}\" is not supported, only \"gpt2\" (byte-level BPE) is; use such a model")]
    Model {
        /// `tokenizer.ggml.model`.
        model: String,
    },
    /// Texts are cut into words in another way.
    #[error(
        "the pre-tokenizer \"{pre}\" is not supported, only \"smollm\", \"gpt-2\" and \"qwen2\" are; use such a model"
    )]
    PreTokenizer {
        /// `tokenizer.ggml.pre`.
        pre: String,
    },
    /// The vocabulary's size is not that of the embedding matrix.
    #[error("the vocabulary has {tokens} tokens and {types} types, and the model {n_vocab}; convert the model again")]
    Size {
        /// Entries of `tokenizer.ggml.tokens`.
        tokens: usize,
        /// Entries of `tokenizer.ggml.token_type`.
        types: usize,
        /// Rows of the embedding matrix.
        n_vocab: usize,
    },
    /// A merge is not two tokens that make a third.
    #[error("the merge \"{merge}\" does not join two tokens to a third; convert the model again")]
    Merge {
        /// The entry of `tokenizer.ggml.merges`.
        merge: String,
    },
    /// A special token's id is not in the vocabulary.
    #[error("\"{key}\" is {token}, which is not in the vocabulary of {n_vocab}; convert the model again")]
    SpecialToken {
        /// The metadata key.
        key: &'static str,
        /// Its value.
        token: u32,
        /// The size of the vocabulary.
        n_vocab: usize,
    },
    /// The `tokenizers` crate refused the vocabulary or a text.
    #[error("the tokenizer failed: {0}")]
    Library(#[source] tokenizers::Error),
}

/// What a token is for (`llama_token_type` in llama.cpp's include/llama.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// A piece of text, spelled in the byte-level alphabet.
    Text,
    /// Steers the model and is no text: unknown (2) and control (3).
    Control,
    /// A text that is always one token (4), spelled as it is.
    UserDefined,
}

/// A model's vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    tokens: Vec<String>,
    types: Vec<TokenType>,
    /// Sees control tokens in a text.
    parsing: tokenizers::Tokenizer,
    /// Takes the names of control tokens for plain text.
    plain: tokenizers::Tokenizer,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    ends: Vec<u32>,
}

impl Tokenizer {
    pub(super) fn read(gguf: &Gguf<impl Read + Seek>, n_vocab: usize) -> Result<Self, TokenizerError> {
        let model = required("tokenizer.ggml.model", gguf.text("tokenizer.ggml.model")?)?;
        if model != "gpt2" {
            return Err(TokenizerError::Model { model: model.to_owned() });
        }
        let words = pre_tokenizer(required("tokenizer.ggml.pre", gguf.text("tokenizer.ggml.pre")?)?)?;
        let tokens = required("tokenizer.ggml.tokens", gguf.texts("tokenizer.ggml.tokens")?)?;
        let numbers = gguf.numbers("tokenizer.ggml.token_type")?.unwrap_or_else(|| vec![1; tokens.len()]);
        if tokens.len() != n_vocab || numbers.len() != n_vocab {
            return Err(TokenizerError::Size { tokens: tokens.len(), types: numbers.len(), n_vocab });
        }
        let tokens: Vec<String> = tokens.into_iter().map(str::to_owned).collect();
        let types: Vec<TokenType> = numbers.into_iter().map(TokenType::from_number).collect();
        let merges = required("tokenizer.ggml.merges", gguf.texts("tokenizer.ggml.merges")?)?;

        let mut parsing = tokenizers::Tokenizer::new(bpe(&tokens, &merges)?);
        parsing.with_pre_tokenizer(Some(words));
        let added = tokens.iter().zip(&types).filter(|(_, token_type)| **token_type != TokenType::Text);
        let added = added.map(|(token, token_type)| {
            AddedToken::from(token.as_str(), *token_type == TokenType::Control).normalized(false)
        });
        parsing.add_tokens(added).map_err(TokenizerError::Library)?;
        let mut plain = parsing.clone();
        plain.set_encode_special_tokens(true);

        let special = |key: &'static str| match gguf.number(key)? {
            Some(token) if token as usize >= n_vocab => Err(TokenizerError::SpecialToken { key, token, n_vocab }),
            token => Ok(token),
        };
        let (bos, eos) = (special("tokenizer.ggml.bos_token_id")?, special("tokenizer.ggml.eos_token_id")?);
        let mut ends = named_ends(&tokens, &types);
        ends.extend(eos);
        ends.extend(special("tokenizer.ggml.eot_token_id")?);
        ends.extend(special("tokenizer.ggml.eom_token_id")?);
        ends.sort_unstable();
        ends.dedup();

        let add_bos = gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
        let add_eos = gguf.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        Ok(Self { tokens, types, parsing, plain, bos, eos, add_bos, add_eos, ends })
    }

    /// The ids of a text's tokens.
    ///
    /// With `add_special`, the tokens that the model wants before and after every text are added, if it wants any
    /// (`add_bos_token`, `add_eos_token`). With `parse_special`, the name of a control token (`<|im_start|>`) in the text
    /// becomes that token; without it, it is a text like any other. Both are named as in llama-server's `/tokenize`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Library`] if the `tokenizers` crate fails.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let tokenizer = if parse_special { &self.parsing } else { &self.plain };
        let encoding = tokenizer.encode_fast(text, false).map_err(TokenizerError::Library)?;
        let before = self.bos.filter(|_| add_special && self.add_bos);
        let after = self.eos.filter(|_| add_special && self.add_eos);
        Ok(before.into_iter().chain(encoding.get_ids().iter().copied()).chain(after).collect())
    }

    /// The text of the tokens. Control tokens are no text, and bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.token_bytes(token)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token adds to a text. A character may be spread over several tokens, so that only the bytes of
    /// all of them are UTF-8. Control tokens, and ids outside the vocabulary, add nothing.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        let index = token as usize;
        let (Some(text), Some(token_type)) = (self.tokens.get(index), self.types.get(index)) else { return Vec::new() };
        match token_type {
            TokenType::Control => Vec::new(),
            TokenType::UserDefined => text.as_bytes().to_vec(),
            TokenType::Text => text.chars().flat_map(bytes_of_char).collect(),
        }
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// The token's name in the vocabulary, such as `<|im_end|>`.
    pub fn name(&self, token: u32) -> Option<&str> {
        self.tokens.get(token as usize).map(String::as_str)
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if there is one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }
}

impl TokenType {
    fn from_number(number: i32) -> Self {
        match number {
            2 | 3 => Self::Control,
            4 => Self::UserDefined,
            _ => Self::Text,
        }
    }
}

/// How a text is cut into words before BPE (`llm_tokenizer_bpe` in llama.cpp's src/llama-vocab.cpp).
fn pre_tokenizer(pre: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    const QWEN2_WORDS: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let gpt2_words = ByteLevel::new(false, true, true);
    let bytes_only = ByteLevel::new(false, true, false);
    match pre {
        "gpt-2" => Ok(gpt2_words.into()),
        "smollm" => Ok(Sequence::new(vec![Digits::new(true).into(), gpt2_words.into()]).into()),
        "qwen2" => {
            let pattern = SplitPattern::Regex(QWEN2_WORDS.to_owned());
            let words =
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Library)?;
            Ok(Sequence::new(vec![words.into(), bytes_only.into()]).into())
        }
        _ => Err(TokenizerError::PreTokenizer { pre: pre.to_owned() }),
    }
}

/// The merges are checked here: the `tokenizers` crate panics at one that makes a longer text than any token.
fn bpe(tokens: &[String], merges: &[&str]) -> Result<BPE, TokenizerError> {
    let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
    let merges = merges.iter().map(|merge| {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            [*left, *right, &format!("{left}{right}")].iter().all(|token| vocabulary.contains_key(*token))
        });
        match pair {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(TokenizerError::Merge { merge: (*merge).to_owned() }),
        }
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(TokenizerError::Library)
}

/// Control tokens that end an answer whatever the metadata says: those of the supported models among the ones that
/// llama.cpp knows by name (`llama_vocab::impl::load`, src/llama-vocab.cpp).
fn named_ends(tokens: &[String], types: &[TokenType]) -> Vec<u32> {
    const NAMES: [&str; 5] = ["<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"];
    let named = (0u32..).zip(tokens).zip(types);
    named
        .filter(|((_, token), token_type)| **token_type == TokenType::Control && NAMES.contains(&token.as_str()))
        .map(|((id, _), _)| id)
        .collect()
}

/// The byte that a character of the byte-level alphabet stands for; other characters stand for themselves.
fn bytes_of_char(character: char) -> Vec<u8> {
    match BYTE_LEVEL_ALPHABET.get(&character) {
        Some(&byte) => vec![byte],
        None => character.to_string().into_bytes(),
    }
}

/// GPT-2's alphabet: printable bytes stand for themselves, the 68 others for the characters from U+0100 on, in order
/// (`bytes_to_unicode` in openai/gpt-2, src/encoder.py).
static BYTE_LEVEL_ALPHABET: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let printable = (0..=u8::MAX).filter(is_printable).map(|byte| (char::from(byte), byte));
    let others = ('\u{100}'..).zip((0..=u8::MAX).filter(|byte| !is_printable(byte)));
    printable.chain(others).collect()
});
