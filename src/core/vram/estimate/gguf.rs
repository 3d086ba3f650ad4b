//! Header of a GGUF file: figures of the model, and the sum of its tensors. Versions 2 and 3, either byte order.
//!
//! Keeps the figures of [`FIGURES`] and nothing else: vocabularies are passed over, and only their bytes are counted.
//! Layout: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Called with each file of a split.

use std::collections::BTreeMap;
use std::io::Read;

use super::data_ranges::{DataRanges, TENSORS_MAX, too_many_tensors};
use super::ggml_type::BlockSize;
use super::header_error::HeaderError;
use super::header_reader::{ByteOrder, HeaderReader};
use super::llama_shape::{FIGURES, LAYERS_MAX, LlamaFigures, MetadataFigure};
use super::shape::ModelHeader;

const MAGIC: &[u8; 4] = b"GGUF";
/// Pairs of key and value: a hundred times as many as files have.
const ENTRIES_MAX: u64 = 65_536;
/// Bytes of a key that is looked at; longer ones are passed over.
const KEY_BYTES_MAX: usize = 256;
/// Bytes of a text that is kept; longer ones are passed over.
const TEXT_BYTES_MAX: usize = 64;
/// Figures that are kept: several times [`FIGURES`], for keys of other architectures in one file.
const KEPT_MAX: usize = 256;
/// Dimensions of a tensor.
const DIMENSIONS_MAX: u64 = 4;
/// Alignment of the tensors where a file names none.
const ALIGNMENT_DEFAULT: u64 = 32;

const ARCHITECTURE: &str = "general.architecture";
const ALIGNMENT: &str = "general.alignment";
const SPLIT_INDEX: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";
/// Keys that are kept whatever the architecture is.
const COMMON: &[&str] = &[ALIGNMENT, SPLIT_INDEX, SPLIT_COUNT, SPLIT_TENSORS];

/// Header of one GGUF file, which may be a part of a model.
#[derive(Debug)]
pub struct GgufFile {
    architecture: Option<String>,
    weights_bytes: u64,
    tensors: u64,
    common: BTreeMap<&'static str, MetadataFigure>,
    /// Figures by the architecture in their key.
    figures: BTreeMap<(String, &'static str), MetadataFigure>,
}

/// Reads the header of a file of `file_bytes`.
///
/// # Errors
/// The file cannot be read, is no GGUF file, or its header is damaged or hostile.
pub fn read_gguf(file: impl Read, file_bytes: u64) -> Result<GgufFile, HeaderError> {
    let mut reader = HeaderReader::new(file);
    if &reader.bytes()? != MAGIC {
        return Err(HeaderError::NotGguf);
    }
    set_order(&mut reader)?;
    let tensors = reader.u64()?;
    let entries = reader.u64()?;
    if tensors > TENSORS_MAX {
        return Err(too_many_tensors(tensors));
    }
    bounded("keys", entries, ENTRIES_MAX)?;
    let mut file = GgufFile {
        architecture: None,
        weights_bytes: 0,
        tensors,
        common: BTreeMap::new(),
        figures: BTreeMap::new(),
    };
    for _ in 0..entries {
        read_entry(&mut reader, &mut file)?;
    }
    let mut ranges = DataRanges::default();
    for _ in 0..tensors {
        read_tensor(&mut reader, &mut ranges)?;
    }
    let alignment = file.common(ALIGNMENT).unwrap_or(ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() {
        return Err(HeaderError::BadAlignment(alignment));
    }
    let data_begin = reader.position().div_ceil(alignment);
    let data_begin = data_begin.saturating_mul(alignment);
    file.weights_bytes = ranges.sum(data_begin, file_bytes)?;
    Ok(file)
}

/// Joins the files of a model in their order.
///
/// # Errors
/// The files are not those of one split, or some are missing.
pub fn join_gguf(files: Vec<GgufFile>) -> Result<ModelHeader, HeaderError> {
    let count = files.len() as u64;
    for (index, file) in files.iter().enumerate() {
        let place = (
            file.common(SPLIT_INDEX).unwrap_or(0),
            file.common(SPLIT_COUNT).unwrap_or(1).max(1),
        );
        if place != (index as u64, count) {
            return Err(HeaderError::ForeignShard {
                position: index as u64 + 1,
                files: count,
                index: place.0.saturating_add(1),
                count: place.1,
            });
        }
    }
    let present = files.iter().map(|file| file.tensors).sum();
    let weights_bytes = files
        .iter()
        .fold(0_u64, |sum, file| sum.saturating_add(file.weights_bytes));
    let first = files.into_iter().next().ok_or(HeaderError::NoFile)?;
    let announced = first.common(SPLIT_TENSORS).unwrap_or(present);
    if announced != present {
        return Err(HeaderError::MissingTensors { announced, present });
    }
    let architecture = first.architecture.unwrap_or_default();
    let mut own = first.figures;
    own.retain(|(of, _), _| *of == architecture);
    let own = own.into_iter().map(|((_, key), figure)| (key, figure));
    let figures = LlamaFigures::new(architecture, own);
    let shape = figures.shape()?;
    Ok(ModelHeader {
        architecture: figures.architecture,
        weights_bytes,
        shape,
    })
}

impl GgufFile {
    /// Returns a figure that does not depend on the architecture.
    fn common(&self, key: &str) -> Option<u64> {
        match self.common.get(key)? {
            MetadataFigure::One(value) => Some(*value),
            MetadataFigure::Each(_) => None,
        }
    }
}

/// Reads the version, which tells the byte order: its lower half is empty in the other one.
fn set_order<R: Read>(reader: &mut HeaderReader<R>) -> Result<(), HeaderError> {
    let bytes = reader.bytes()?;
    let (order, version) = match u32::from_le_bytes(bytes) {
        version if version & 0xffff == 0 => (ByteOrder::Big, u32::from_be_bytes(bytes)),
        version => (ByteOrder::Little, version),
    };
    reader.set_order(order);
    match version {
        2 | 3 => Ok(()),
        other => Err(HeaderError::UnsupportedVersion(other)),
    }
}

/// Reads a pair of key and value, and keeps what is a figure of the model.
fn read_entry<R: Read>(
    reader: &mut HeaderReader<R>,
    file: &mut GgufFile,
) -> Result<(), HeaderError> {
    let key = reader.text(KEY_BYTES_MAX)?.unwrap_or_default();
    let kind = ValueKind::of_id(reader.u32()?)?;
    if key == ARCHITECTURE && kind == ValueKind::Text {
        let text = reader.text(TEXT_BYTES_MAX)?;
        let former = file.architecture.replace(text.unwrap_or_default());
        return former.map_or(Ok(()), |_| Err(HeaderError::RepeatedKey(ARCHITECTURE)));
    }
    if let Some(common) = COMMON.iter().find(|common| **common == key) {
        let value = read_figure(reader, kind)?;
        let former = value.and_then(|value| file.common.insert(common, value));
        return former.map_or(Ok(()), |_| Err(HeaderError::RepeatedKey(common)));
    }
    let parts = key.split_once('.');
    let own = parts.and_then(|(of, rest)| {
        let name = FIGURES.iter().find(|name| **name == rest)?;
        Some((of.to_owned(), *name))
    });
    let Some((of, name)) = own else {
        return skip_value(reader, kind);
    };
    let Some(value) = read_figure(reader, kind)? else {
        return Ok(());
    };
    bounded("figures", file.figures.len() as u64 + 1, KEPT_MAX as u64)?;
    let former = file.figures.insert((of, name), value);
    former.map_or(Ok(()), |_| Err(HeaderError::RepeatedKey(name)))
}

/// Kind of a value in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    /// A whole number without sign or a truth value, of so many bytes.
    Unsigned(u64),
    /// A whole number with sign, of so many bytes.
    Signed(u64),
    /// A number that is no figure here, of so many bytes.
    Float(u64),
    Text,
    Array,
}

impl ValueKind {
    fn of_id(id: u32) -> Result<Self, HeaderError> {
        Ok(match id {
            0 | 7 => ValueKind::Unsigned(1),
            1 => ValueKind::Signed(1),
            2 => ValueKind::Unsigned(2),
            3 => ValueKind::Signed(2),
            4 => ValueKind::Unsigned(4),
            5 => ValueKind::Signed(4),
            6 => ValueKind::Float(4),
            8 => ValueKind::Text,
            9 => ValueKind::Array,
            10 => ValueKind::Unsigned(8),
            11 => ValueKind::Signed(8),
            12 => ValueKind::Float(8),
            other => return Err(HeaderError::UnknownValueType(other)),
        })
    }
}

/// Reads a value that may be a figure; none for texts, fractions and negative numbers, which are passed over.
fn read_figure<R: Read>(
    reader: &mut HeaderReader<R>,
    kind: ValueKind,
) -> Result<Option<MetadataFigure>, HeaderError> {
    if kind != ValueKind::Array {
        let number = read_number(reader, kind)?;
        return Ok(number.map(MetadataFigure::One));
    }
    let (kind, count) = array_head(reader)?;
    if matches!(kind, ValueKind::Text | ValueKind::Float(_)) {
        skip_elements(reader, kind, count)?;
        return Ok(None);
    }
    bounded("layers", count, LAYERS_MAX)?;
    let mut numbers = Vec::new();
    for _ in 0..count {
        numbers.extend(read_number(reader, kind)?);
    }
    // With a negative number among them the others would be those of other layers.
    Ok((numbers.len() as u64 == count).then_some(MetadataFigure::Each(numbers)))
}

/// Reads one number; none for what is no figure.
fn read_number<R: Read>(
    reader: &mut HeaderReader<R>,
    kind: ValueKind,
) -> Result<Option<u64>, HeaderError> {
    match kind {
        ValueKind::Unsigned(width) => reader.unsigned(width).map(Some),
        ValueKind::Signed(width) => {
            let value = reader.unsigned(width)?;
            Ok((value < 1 << (8 * width - 1)).then_some(value))
        }
        kind => skip_value(reader, kind).map(|()| None),
    }
}

fn skip_value<R: Read>(reader: &mut HeaderReader<R>, kind: ValueKind) -> Result<(), HeaderError> {
    match kind {
        ValueKind::Array => {
            let (kind, count) = array_head(reader)?;
            skip_elements(reader, kind, count)
        }
        kind => skip_elements(reader, kind, 1),
    }
}

fn array_head<R: Read>(reader: &mut HeaderReader<R>) -> Result<(ValueKind, u64), HeaderError> {
    let kind = ValueKind::of_id(reader.u32()?)?;
    let count = reader.u64()?;
    match kind {
        ValueKind::Array => Err(HeaderError::NestedArray),
        kind => Ok((kind, count)),
    }
}

/// Passes over values. The count is not checked: each takes bytes, of which there is a bound.
fn skip_elements<R: Read>(
    reader: &mut HeaderReader<R>,
    kind: ValueKind,
    count: u64,
) -> Result<(), HeaderError> {
    match kind {
        ValueKind::Unsigned(width) | ValueKind::Signed(width) | ValueKind::Float(width) => {
            reader.skip(count.saturating_mul(width))
        }
        ValueKind::Array => Err(HeaderError::NestedArray),
        ValueKind::Text => {
            for _ in 0..count {
                let length = reader.u64()?;
                reader.skip(length)?;
            }
            Ok(())
        }
    }
}

/// Reads the line of a tensor: name, dimensions, type, offset.
fn read_tensor<R: Read>(
    reader: &mut HeaderReader<R>,
    ranges: &mut DataRanges,
) -> Result<(), HeaderError> {
    let name_bytes = reader.u64()?;
    reader.skip(name_bytes)?;
    let count = u64::from(reader.u32()?);
    bounded("dimensions of a tensor", count, DIMENSIONS_MAX)?;
    let mut dimensions = [1; DIMENSIONS_MAX as usize];
    for dimension in dimensions.iter_mut().take(count as usize) {
        *dimension = reader.u64()?;
    }
    let kind = reader.u32()?;
    let begin = reader.u64()?;
    let size = BlockSize::of_type(kind).ok_or(HeaderError::UnknownTensorType(kind))?;
    let bytes = size.tensor_bytes(&dimensions);
    let end = bytes.and_then(|bytes| begin.checked_add(bytes));
    ranges.add(begin, end.ok_or(HeaderError::ImpossibleShape)?)
}

fn bounded(what: &'static str, count: u64, max: u64) -> Result<(), HeaderError> {
    match count > max {
        true => Err(HeaderError::TooMany { what, count, max }),
        false => Ok(()),
    }
}
