//! Header of a safetensors file: the sum of its tensors.
//!
//! Names, types and shapes of tensors are passed over, and their ranges are checked. Layout:
//! <https://github.com/huggingface/safetensors#format>. The shape of the model comes from `config.json`. Called with
//! each file of a model.

use std::fmt;
use std::io::{BufReader, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};

use super::data_ranges::{DataRanges, TENSORS_MAX};
use super::header_error::{HeaderError, UnknownFigure};
use super::hf_config::HfConfig;
use super::shape::ModelHeader;

/// Bytes of the JSON header: ten times as many as the largest models have in one file.
const JSON_BYTES_MAX: u64 = 16 << 20;
/// Bytes of the length before it.
const LENGTH_BYTES: u64 = 8;
/// Member that is no tensor.
const METADATA: &str = "__metadata__";

/// Reads the header of a file of `file_bytes`, and returns the sum of its tensors, bytes.
///
/// # Errors
/// The file cannot be read, or its header is damaged or hostile.
pub fn read_safetensors(mut file: impl Read, file_bytes: u64) -> Result<u64, HeaderError> {
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => HeaderError::HeaderCut(file_bytes),
            kind => HeaderError::Unreadable(kind),
        })?;
    let length = u64::from_le_bytes(length);
    if length > JSON_BYTES_MAX {
        return Err(HeaderError::TooMany {
            what: "bytes of JSON",
            count: length,
            max: JSON_BYTES_MAX,
        });
    }
    let data_begin = LENGTH_BYTES + length;
    if data_begin > file_bytes {
        return Err(HeaderError::HeaderCut(file_bytes));
    }
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(file.take(length)));
    let mut tensors = TensorTable::default();
    let read = tensors.deserialize(&mut json).and_then(|()| json.end());
    match (tensors.fault, read) {
        (Some(fault), _) => Err(fault),
        (None, Err(error)) => Err(HeaderError::of_json("the header", &error)),
        (None, Ok(())) => tensors.ranges.sum(data_begin, file_bytes),
    }
}

/// Joins the sums of a model's files with its `config.json`; without one its shape is unknown.
///
/// # Errors
/// The configuration cannot be read or is not JSON.
pub fn join_safetensors(
    weights_bytes: &[u64],
    config: Option<impl Read>,
) -> Result<ModelHeader, HeaderError> {
    let weights = weights_bytes.iter().copied();
    let config = config.map(HfConfig::read).transpose()?;
    let missing = || Err(UnknownFigure::Missing("config.json"));
    Ok(ModelHeader {
        architecture: config
            .as_ref()
            .map_or_else(String::new, HfConfig::architecture),
        weights_bytes: weights.fold(0, u64::saturating_add),
        shape: config.map_or_else(missing, |config| config.shape()),
    })
}

/// Ranges of the tensors, and the fault that ended the reading.
#[derive(Default)]
struct TensorTable {
    ranges: DataRanges,
    fault: Option<HeaderError>,
}

/// Members of a tensor that are read.
#[derive(Deserialize)]
struct TensorEntry {
    data_offsets: (u64, u64),
}

impl<'de> DeserializeSeed<'de> for &mut TensorTable {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut TensorTable {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(is_metadata) = members.next_key_seed(MetadataKey)? {
            if is_metadata {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let (begin, end) = members.next_value::<TensorEntry>()?.data_offsets;
            if let Err(fault) = self.ranges.add(begin, end) {
                self.fault = Some(fault);
                return Err(A::Error::custom("the ranges end the reading"));
            }
        }
        Ok(())
    }
}

/// Reader of a member's name: whether it is that of the metadata.
struct MetadataKey;

impl<'de> DeserializeSeed<'de> for MetadataKey {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for MetadataKey {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a name, one of {TENSORS_MAX} at most")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == METADATA)
    }
}
