//! Everything that can be wrong with a state file.

use std::io;

use super::{Half, MAGIC, MAX_ROW_BYTES, VERSION};
use crate::layout::TensorType;

/// Why a state file was refused, or could not be read or written.
///
/// The first group is the file system, the second the file's form ([`walk`](super::StateFile::walk)), the third
/// what it promises to restore ([`validate`](super::StateFile::validate)), the fourth what is asked to be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// The system refused to read, seek or write.
    #[error("cannot {action} the state file: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The name is more than a name, or one that a server refuses.
    #[error("{name:?} cannot name a state file: {reason}; use a bare name such as \"prompt-7.bin\"")]
    Name {
        /// The name, or how it begins.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The file ends inside a field.
    #[error(
        "the state file ends inside {field}: {needed} bytes from offset {offset} are needed, {left} are left; \
         it was cut, save it again"
    )]
    Truncated {
        /// The field.
        field: &'static str,
        /// Where the field starts.
        offset: u64,
        /// Its length in bytes.
        needed: u64,
        /// The bytes from there to the end.
        left: u64,
    },
    /// The file ends inside the rows of a layer.
    #[error(
        "the state file ends inside the {half} rows of layer {layer} of stream {stream}: {needed} bytes are needed, \
         {left} are left; it was cut, save it again (the stock server would abort on it)"
    )]
    TruncatedRows {
        /// The stream.
        stream: usize,
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The bytes that the rows take.
        needed: u64,
        /// The bytes from the first row to the end.
        left: u64,
    },
    /// Bytes follow what the file says it holds.
    #[error("the state file should end at byte {end}, but {extra} more follow; it is not one state, save it again")]
    TrailingBytes {
        /// Where the file should end.
        end: u64,
        /// The bytes behind.
        extra: u64,
    },
    /// The file is of another kind.
    #[error("the file starts with {found:#010x}, a sequence-state file with {MAGIC:#010x}; pass a slot's saved file")]
    Magic {
        /// The number found.
        found: u32,
    },
    /// The file is of a version that is not known here.
    #[error("the state file has version {found}, only {VERSION} is known; save it with a matching llama.cpp")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The token section is of a version that is not known here.
    #[error("the token section has version {found}, only 1 is known; save the file with a matching llama.cpp")]
    PackVersion {
        /// The version found.
        found: u32,
    },
    /// A count is outside what can be.
    #[error("{field} is {count}, which is not from {least} to {most}; the file is damaged or not llama.cpp's")]
    Count {
        /// The field.
        field: &'static str,
        /// The count.
        count: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// The parts of the token section take more or less than `n_words` says.
    #[error(
        "{field} would end at word {end} of a token section of {n_words} words; n_tokens, n_media and n_words \
         must agree"
    )]
    SectionLength {
        /// The part that goes too far, or the last one.
        field: &'static str,
        /// The word that it ends at.
        end: u64,
        /// The words announced.
        n_words: u32,
    },
    /// The token section is not filled up with zeros.
    #[error("the token section ends in bytes that are not 0; its media lengths and n_words must agree")]
    Padding,
    /// A cell belongs to no sequence or to several.
    #[error(
        "cell {cell} of stream {stream} belongs to {count} sequences, a saved slot's to 1; \
         if the model uses M-RoPE, say so when reading"
    )]
    CellSequences {
        /// The stream.
        stream: usize,
        /// The cell's index.
        cell: u32,
        /// Its `n_seq_id`.
        count: u32,
    },
    /// `v_trans` is neither 0 nor 1.
    #[error("v_trans of stream {stream} is {found}, which is neither 0 nor 1; the file is damaged, save it again")]
    ValueLayout {
        /// The stream.
        stream: usize,
        /// The value found.
        found: u32,
    },
    /// A type that no cache can have.
    #[error("{half} of layer {layer} has ggml type {number}, which no KV cache can have; the file is damaged")]
    UnknownType {
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The number found.
        number: i32,
    },
    /// A row of no bytes, of no whole number of blocks, or too long.
    #[error(
        "a {half} row of layer {layer} has {found} bytes; {tensor_type} needs a multiple of {}, and no more than \
         {MAX_ROW_BYTES}; the file is damaged",
        tensor_type.block_bytes()
    )]
    RowSize {
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The row's type.
        tensor_type: TensorType,
        /// The bytes found.
        found: u64,
    },
    /// A transposed V with elements of another size than its type's.
    #[error(
        "V of layer {layer} has elements of {found} bytes, but {tensor_type} takes {}; the file is damaged",
        tensor_type.block_bytes()
    )]
    ElementSize {
        /// The layer.
        layer: usize,
        /// The type.
        tensor_type: TensorType,
        /// The bytes found.
        found: u32,
    },
    /// A transposed V whose elements share blocks.
    #[error(
        "V of layer {layer} is {tensor_type} and transposed, which llama.cpp cannot store; turn flash attention on"
    )]
    QuantizedTransposed {
        /// The layer.
        layer: usize,
        /// The type.
        tensor_type: TensorType,
    },

    /// No stream has a cell.
    #[error("the state file has no cells; restoring it would leave the slot empty, so prefill the prompt first")]
    NoCells,
    /// More than one stream has cells.
    #[error("{count} streams of the state file have cells, a slot's file has one; save a single slot")]
    SeveralStreams {
        /// The streams with cells.
        count: usize,
    },
    /// The prompt has images or sounds.
    #[error(
        "the prompt in the state file has {count} images or sounds; only text can be handed over \
         (send it to the decoder as it is)"
    )]
    Media {
        /// How many.
        count: usize,
    },
    /// Another number of tokens than was asked for.
    #[error("the state file holds {found} tokens, the prompt has {expected}; prefill exactly the prompt")]
    TokenCount {
        /// The tokens in the file.
        found: usize,
        /// The tokens asked for.
        expected: usize,
    },
    /// Another token than was asked for.
    #[error("token {index} in the state file is {found}, in the prompt {expected}; prefill exactly the prompt")]
    Token {
        /// The token's index.
        index: usize,
        /// The id in the file.
        found: i32,
        /// The id asked for.
        expected: i32,
    },
    /// A token that the model does not have.
    #[error("token {index} in the state file is {id}, outside the model's vocabulary of {n_vocab}; use the same model")]
    Vocabulary {
        /// The token's index.
        index: usize,
        /// Its id.
        id: i32,
        /// How many ids the model has.
        n_vocab: u32,
    },
    /// Another number of cells than of tokens.
    #[error(
        "the state file has {cells} cells for {tokens} tokens; there must be one for each \
         (the stock server would restore it and answer wrongly)"
    )]
    CellCount {
        /// The cells.
        cells: usize,
        /// The tokens.
        tokens: usize,
    },
    /// More cells than the cache has.
    #[error("the state file has {cells} cells, the cache {n_ctx}; raise the context size or shorten the prompt")]
    Context {
        /// The cells in the file.
        cells: usize,
        /// The cells of the cache.
        n_ctx: u64,
    },
    /// Positions that are not 0, 1, 2 and so on.
    #[error(
        "cell {cell} of the state file has position {found}; cells must have their index as position \
         (the stock server would restore it and answer wrongly)"
    )]
    Position {
        /// The cell's index.
        cell: usize,
        /// Its position.
        found: i32,
    },
    /// Cells of more than one sequence.
    #[error("cell {cell} of the state file belongs to sequence {found}, the first to {first}; save a single slot")]
    MixedSequences {
        /// The cell's index.
        cell: usize,
        /// Its sequence.
        found: i32,
        /// The first cell's sequence.
        first: i32,
    },
    /// Another number of streams than the decoder's.
    #[error("the state file has {found} streams, the decoder {expected}; use one with as many slots (--parallel)")]
    StreamCount {
        /// The streams in the file.
        found: usize,
        /// The decoder's.
        expected: usize,
    },
    /// Another number of layers than the decoder's.
    #[error("the state file has {found} layers, the decoder's cache {expected}; use the same model on both sides")]
    LayerCount {
        /// The layers in the file.
        found: usize,
        /// The decoder's.
        expected: usize,
    },
    /// V is transposed on one side only.
    #[error("v_trans of the state file is {found}, of the decoder {expected}; use the same --flash-attn on both sides")]
    Transposition {
        /// Whether the file's V is transposed.
        found: u32,
        /// Whether the decoder's is.
        expected: u32,
    },
    /// Rows are rotated by another size.
    #[error(
        "{half} rows of the state file are rotated by {found}, the decoder's by {expected}; \
         rotate them as the decoder does"
    )]
    Rotation {
        /// K or V.
        half: Half,
        /// `n_rot_k` or `n_rot_v` of the file.
        found: u32,
        /// The decoder's.
        expected: u32,
    },
    /// Rows are of another type.
    #[error(
        "{half} of layer {layer} is {found} in the state file, {expected} in the decoder; \
         use the same --cache-type-k and --cache-type-v"
    )]
    Type {
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The file's type.
        found: TensorType,
        /// The decoder's.
        expected: TensorType,
    },
    /// Rows have another number of elements.
    #[error(
        "a {half} row of layer {layer} has {found} elements in the state file, {expected} in the decoder; \
         use the same model on both sides"
    )]
    RowWidth {
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The file's elements.
        found: u32,
        /// The decoder's.
        expected: u32,
    },

    /// A row that no file can hold.
    #[error(
        "a {half} row of layer {layer} cannot have {width} elements of {tensor_type}; use a multiple of {} \
         of at most {MAX_ROW_BYTES} bytes",
        tensor_type.block_elements()
    )]
    Width {
        /// The layer.
        layer: usize,
        /// K or V.
        half: Half,
        /// The row's type.
        tensor_type: TensorType,
        /// Its elements.
        width: u32,
    },
    /// A slot that the server does not have.
    #[error("slot {id} has no stream among {n_stream}; number slots from 0")]
    Slot {
        /// The slot's number.
        id: u32,
        /// The streams.
        n_stream: u32,
    },
    /// Bare token ids that a reader would take for packed ones.
    #[error("bare token ids cannot begin with -1, which announces packed ones; pack them")]
    PlainMarker,
    /// Cells of which only some have an M-RoPE extension.
    #[error("only some cells of stream {stream} have an M-RoPE extension; give it to all or to none")]
    MixedExtensions {
        /// The stream.
        stream: usize,
    },
    /// The file's length does not fit in 64 bits.
    #[error("a state file of so many rows is longer than 2^64 bytes; check the cells and widths")]
    TooLong,
}
