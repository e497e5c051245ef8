//! Why a header is refused: one variant a reason, each naming the field, the value and what would be right.

use crate::layout::{LayoutError, TensorType};

/// Why a header is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say in code what the messages say in words")]
pub enum HeaderError {
    #[error("the header is {length} bytes long; at most {limit} are accepted")]
    TooLong { length: usize, limit: usize },
    #[error("the header is not UTF-8: byte {position} breaks it")]
    NotUtf8 { position: usize },
    #[error("the header is not JSON: {problem}")]
    NotJson { problem: String },
    #[error("the key {key:?} comes twice in one object of the header; send it once")]
    RepeatedKey { key: String },
    #[error("the header nests deeper than {limit} levels")]
    TooDeep { limit: u32 },
    #[error("header field {field} is missing")]
    Missing { field: String },
    #[error("header field {field} is {value}, but must be {expected}")]
    WrongValue { field: String, value: String, expected: &'static str },
    #[error("the header has version {value}; this library reads version {known}: update the older side")]
    UnknownVersion { value: u64, known: u64 },
    #[error("the header names no regions; a decoder shares at least one")]
    NoRegions,
    #[error("the header names {count} regions; at most {limit} are accepted")]
    TooManyRegions { count: usize, limit: usize },
    #[error("header field {field} is 0; a region has at least 4096 bytes")]
    ZeroSize { field: String },
    #[error("header field {field} is {value}, which is not a multiple of 4096")]
    Unaligned { field: String, value: u64 },
    #[error("region {region} ends past 2^63 - 1 (offset {offset}, size {size})")]
    RegionTooLarge { region: usize, offset: u64, size: u64 },
    #[error(
        "header field {field} is {value:?}, which is no format of DRM; leave it out, or give a code such as \"R8\""
    )]
    UnknownFormat { field: String, value: String },
    #[error(
        "header field {field} is {modifier}, but rows are found by offset, so a region must be linear (0); export it so"
    )]
    NotLinear { field: String, modifier: String },
    #[error("regions {first} and {second} overlap in descriptor {fd}")]
    RegionsOverlap { first: usize, second: usize, fd: usize },
    #[error("header field {field} is {value}, but only {count} descriptors came with the header")]
    NoSuchDescriptor { field: String, value: usize, count: usize },
    #[error("descriptor {index} of {count} came with the header, but no region names it")]
    UnusedDescriptor { index: usize, count: usize },
    #[error(
        "region {region} ends at byte {end} of descriptor {fd}, which is only {size} bytes long; \
         export the whole buffer, or correct offset and size"
    )]
    BeyondDescriptor { region: usize, end: u64, fd: usize, size: u64 },
    #[error("header field {field} is {value:?}, which is no type of a KV cache")]
    UnknownType { field: String, value: String },
    #[error("header field {field}: {problem}")]
    Tensor { field: String, problem: LayoutError },
    #[error("header field {field} is {value}, but there are only {count} regions")]
    NoSuchRegion { field: String, value: usize, count: usize },
    #[error("tensor {name:?} ends at byte {end} of region {region}, which is only {size} bytes long")]
    TensorOutside { name: String, end: u64, region: usize, size: u64 },
    #[error("tensors {first:?} and {second:?} overlap in region {region}")]
    TensorsOverlap { first: String, second: String, region: usize },
    #[error("the tensor {name:?} comes twice; tensors are found by name, so each needs its own")]
    RepeatedTensor { name: String },
    #[error("header field {field} has {length} bytes; a tensor's name has at most {limit}, as in llama.cpp")]
    LongName { field: String, length: usize, limit: usize },
    #[error(
        "header field params.{param} is {size}, by which rows of tensor {name:?} ({width} elements) cannot be rotated; \
         it must be 0, or a power of two up to {limit} that divides the rows",
        limit = super::MAX_ROTATION
    )]
    Rotation { param: &'static str, size: u32, name: String, width: u64 },
    #[error(
        "tensor {name:?} is {tensor_type}, whose elements share blocks, but params.v_trans is true; \
         turn flash attention on, or use f16, bf16 or f32 for V"
    )]
    TransposedBlocks { name: String, tensor_type: TensorType },
    #[error("tensor {name:?} has {found} streams (its third dimension), but params.n_stream is {expected}")]
    Streams { name: String, found: u64, expected: u32 },
    #[error("tensor {name:?} is {found}, but params.{param} is {expected}")]
    ParamsDisagree { name: String, found: TensorType, param: &'static str, expected: TensorType },
    #[error(
        "region {region} announces the layout hash {announced}, but its tensors hash to {computed}: the two sides \
         differ in model, context size, cache type or flash attention"
    )]
    HashMismatch { region: usize, announced: u64, computed: u64 },
    #[error(
        "the header's digest is {announced}, but its contents give {computed}: it was changed on the way, or the \
         sender computes it differently"
    )]
    DigestMismatch { announced: String, computed: String },
    #[error("the decoder sent {found} regions, but this model's cache has {expected}: {remedy}", remedy = SAME_MODEL)]
    RegionCount { found: usize, expected: usize },
    #[error(
        "region {region} has {found} bytes, but this model's cache needs {expected} there: {remedy}",
        remedy = SAME_MODEL
    )]
    RegionSize { region: usize, found: u64, expected: u64 },
    #[error("this model cannot have a cache such as the decoder's: {problem}; {remedy}", remedy = SAME_MODEL)]
    Model { problem: LayoutError },
    #[error("the decoder's cache has {theirs}, but this model's has {ours}: {remedy}", remedy = SAME_MODEL)]
    OtherTensor { theirs: String, ours: String },
    #[error("this model's cache has {ours}, but the decoder's has no such tensor: {remedy}", remedy = SAME_MODEL)]
    MissingTensor { ours: String },
    #[error("the decoder's cache has {theirs}, but this model's has no such tensor: {remedy}", remedy = SAME_MODEL)]
    UnknownTensor { theirs: String },
}

const SAME_MODEL: &str = "run both sides with the same model, context size, cache types and flash attention";
