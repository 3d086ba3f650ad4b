//! Tensors of the triton dialect, in JSON and in binary, and the paths of its models.
//!
//! Elements are JSON values, whatever their form on the wire. Half-precision numbers keep their bits.

use serde_json::{Value, json};

/// A named tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<u64>,
    /// In row-major order.
    pub(super) elements: Vec<Value>,
}

/// Inputs of a request, and the outputs it asks for.
#[derive(Debug)]
pub(super) struct InferRequest {
    pub(super) model: String,
    pub(super) id: Option<String>,
    pub(super) inputs: Vec<Tensor>,
    /// Names, each with whether it is wanted in binary; none for all.
    pub(super) outputs: Option<Vec<(String, bool)>>,
    pub(super) is_binary: bool,
}

/// Model and version in a path, and what follows them.
pub(super) fn named(path: &str) -> Option<(String, Option<&str>, &str)> {
    let below = path.strip_prefix("/v2/models/")?;
    let (name, rest) = below.split_once('/').unwrap_or((below, ""));
    let (version, page) = match rest.strip_prefix("versions/") {
        Some(rest) => {
            let (version, page) = rest.split_once('/').unwrap_or((rest, ""));
            (Some(version), page)
        }
        None => (None, rest),
    };
    Some((name.replace("%2F", "/").replace("%40", "@"), version, page))
}

/// Bytes of an element; none where elements differ.
fn element_bytes(datatype: &str) -> Option<usize> {
    Some(match datatype {
        "BOOL" | "INT8" | "UINT8" => 1,
        "INT16" | "UINT16" | "FP16" | "BF16" => 2,
        "INT32" | "UINT32" | "FP32" => 4,
        "INT64" | "UINT64" | "FP64" => 8,
        _ => return None,
    })
}

/// Elements of a tensor in binary; the error says what is wrong with it.
pub(super) fn read_binary(datatype: &str, bytes: &[u8]) -> Result<Vec<Value>, String> {
    if datatype == "BYTES" {
        return read_texts(bytes);
    }
    let size = element_bytes(datatype).ok_or_else(|| format!("invalid datatype '{datatype}'"))?;
    if !bytes.len().is_multiple_of(size) {
        return Err(format!("unexpected total byte size {}", bytes.len()));
    }
    Ok(bytes
        .chunks(size)
        .map(|one| number(datatype, one))
        .collect())
}

fn read_texts(mut bytes: &[u8]) -> Result<Vec<Value>, String> {
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let text = rest.get(..length).ok_or("incomplete string data")?;
        texts.push(String::from_utf8_lossy(text).into());
        bytes = &rest[length..];
    }
    match bytes.is_empty() {
        true => Ok(texts),
        false => Err("incomplete string length".into()),
    }
}

fn number(datatype: &str, bytes: &[u8]) -> Value {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    match datatype {
        "BOOL" => json!(word != 0),
        "INT8" => json!(word as u8 as i8),
        "INT16" => json!(word as u16 as i16),
        "INT32" => json!(word as u32 as i32),
        "INT64" => json!(word as i64),
        "FP32" => json!(f32::from_bits(word as u32)),
        "FP64" => json!(f64::from_bits(word)),
        _ => json!(word),
    }
}

impl Tensor {
    /// The tensor in binary.
    pub(super) fn binary(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for element in &self.elements {
            if self.datatype == "BYTES" {
                let text = element.as_str().unwrap_or_default();
                bytes.extend((text.len() as u32).to_le_bytes());
                bytes.extend(text.as_bytes());
                continue;
            }
            let word = match self.datatype.as_str() {
                "FP32" => u64::from((element.as_f64().unwrap_or(0.0) as f32).to_bits()),
                "FP64" => element.as_f64().unwrap_or(0.0).to_bits(),
                "BOOL" => u64::from(element.as_bool().unwrap_or(false)),
                _ => element
                    .as_i64()
                    .map_or_else(|| element.as_u64().unwrap_or(0), |n| n as u64),
            };
            let size = element_bytes(&self.datatype).unwrap_or(8);
            bytes.extend(&word.to_le_bytes()[..size]);
        }
        bytes
    }

    /// The tensor's description, with its data or the bytes that follow.
    pub(super) fn describe(&self, binary_bytes: Option<usize>) -> Value {
        let mut described = json!({
            "name": self.name, "datatype": self.datatype, "shape": self.shape,
        });
        match binary_bytes {
            Some(bytes) => described["parameters"] = json!({ "binary_data_size": bytes }),
            None => described["data"] = self.elements.clone().into(),
        }
        described
    }
}
