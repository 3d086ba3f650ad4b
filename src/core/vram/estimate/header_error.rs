//! Reasons why a model file gives no figure, each a sentence for an operator.
//!
//! Names no file: the caller knows which one it read.

use std::io::ErrorKind;

use super::header_reader::HEADER_BYTES_MAX;

/// Fault of a model file, or of the way it was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The system could not read it.
    #[error("reading failed: {0}")]
    Unreadable(ErrorKind),
    /// The magic of a GGUF file is not there.
    #[error("this is no GGUF file: it does not begin with the letters GGUF")]
    NotGguf,
    /// A version whose layout is another one.
    #[error("GGUF version {0} is not supported, only 2 and 3: convert the file again")]
    UnsupportedVersion(u32),
    /// The file ends inside of its header.
    #[error("the file ends inside of its header, near byte {0}: it is not complete")]
    HeaderCut(u64),
    /// The header is longer than any known model has.
    #[error("the header is longer than {} MiB", HEADER_BYTES_MAX >> 20)]
    HeaderTooLong,
    /// A count beyond its bound.
    #[error("the header announces {count} {what}, over {max}")]
    TooMany {
        /// Things that are counted, in the plural.
        what: &'static str,
        /// Announced count.
        count: u64,
        /// Bound.
        max: u64,
    },
    /// A key appears twice.
    #[error("the key {0} appears twice in the header")]
    RepeatedKey(&'static str),
    /// A type of metadata that the format does not have.
    #[error("the header has a value of the unknown type {0}")]
    UnknownValueType(u32),
    /// An array of arrays, which no reader of the format takes.
    #[error("the header has an array of arrays")]
    NestedArray,
    /// A tensor type whose size is not known.
    #[error("the header has a tensor of the unknown type {0}")]
    UnknownTensorType(u32),
    /// A shape with an impossible size.
    #[error("the header has a tensor of an impossible shape")]
    ImpossibleShape,
    /// A figure that no model has.
    #[error("the figure {what} is {value}, over {max}")]
    ImpossibleFigure {
        /// Name of the figure.
        what: &'static str,
        /// Value in the header.
        value: u64,
        /// Bound.
        max: u64,
    },
    /// An alignment that is no power of two.
    #[error("the alignment {0} of the tensors is no power of two")]
    BadAlignment(u64),
    /// Ends of a tensor in the wrong order.
    #[error("a tensor ends before it begins")]
    ReversedTensor,
    /// Two tensors share bytes.
    #[error("two tensors overlap")]
    OverlappingTensors,
    /// Tensors reach beyond the end of the file.
    #[error("the tensors need {needed} bytes and the file has {present}: it is not complete")]
    TensorsCut {
        /// Bytes up to the end of the last tensor.
        needed: u64,
        /// Length of the file.
        present: u64,
    },
    /// Files of a split that do not belong together.
    #[error(
        "file {position} of {files} does not belong to this split: it calls itself {index} of {count}"
    )]
    ForeignShard {
        /// Position of the file, from 1.
        position: u64,
        /// Files of the split.
        files: u64,
        /// Position that its header names, from 1.
        index: u64,
        /// Count that its header names.
        count: u64,
    },
    /// Tensors of a split that are in no file of it.
    #[error("the files of this split have {present} tensors of {announced}")]
    MissingTensors {
        /// Tensors that the first file announces.
        announced: u64,
        /// Tensors in all files.
        present: u64,
    },
    /// JSON that cannot be read.
    #[error("the JSON of {what} is not valid at line {line}, column {column}")]
    InvalidJson {
        /// Part of the model.
        what: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// No file at all.
    #[error("there is no file")]
    NoFile,
}

impl HeaderError {
    /// Returns the fault for an error of JSON that is read from `what`.
    pub(super) fn of_json(what: &'static str, error: &serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => HeaderError::Unreadable(kind),
            None => HeaderError::InvalidJson {
                what,
                line: error.line(),
                column: error.column(),
            },
        }
    }
}

/// Reason why a source has no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFigure {
    /// No figure is configured.
    #[error("`vram.mib` is not configured")]
    NotConfigured,
    /// No load was measured.
    #[error("no load has been measured")]
    NotMeasured,
    /// No file is known.
    #[error("no file is known")]
    NoFile,
    /// The header cannot be read.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// The format has no header that is read.
    #[error("neither GGUF nor safetensors")]
    OtherFormat,
    /// The header lacks a figure.
    #[error("the file does not name {0}")]
    Missing(&'static str),
    /// The architecture is not one whose memory is known.
    #[error("the memory of the architecture {0:?} is not known")]
    UnknownArchitecture(String),
    /// Neither the caller nor the model names a context.
    #[error("the context is not known")]
    NoContext,
    /// The name has no size.
    #[error("the name has no size such as 7b")]
    NoSizeInName,
}
