//! GGUF and safetensors files as bytes, and settings of a run.
//!
//! The bytes of tensors are no part of them: readers get the length that the file would have.

use super::super::*;

pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// Type id of tensors of two bytes an element.
pub const TENSOR_F16: u32 = 1;
/// Type id of tensors of four bytes an element.
pub const TENSOR_F32: u32 = 0;

/// A GGUF file in the making.
#[derive(Clone)]
pub struct GgufBuilder {
    pub is_big_endian: bool,
    pub version: u32,
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub data_bytes: u64,
}

impl GgufBuilder {
    pub fn new() -> Self {
        GgufBuilder {
            is_big_endian: false,
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
            data_bytes: 0,
        }
    }

    pub fn big_endian() -> Self {
        GgufBuilder {
            is_big_endian: true,
            ..GgufBuilder::new()
        }
    }

    fn n32(&self, value: u32) -> Vec<u8> {
        match self.is_big_endian {
            true => value.to_be_bytes().to_vec(),
            false => value.to_le_bytes().to_vec(),
        }
    }

    pub fn n64(&self, value: u64) -> Vec<u8> {
        match self.is_big_endian {
            true => value.to_be_bytes().to_vec(),
            false => value.to_le_bytes().to_vec(),
        }
    }

    fn string(&self, text: &str) -> Vec<u8> {
        [self.n64(text.len() as u64), text.as_bytes().to_vec()].concat()
    }

    /// Adds a pair of key and value, the value as bytes.
    pub fn entry(mut self, key: &str, kind: u32, value: Vec<u8>) -> Self {
        let entry = [self.string(key), self.n32(kind), value].concat();
        self.entries.push(entry);
        self
    }

    pub fn text(self, key: &str, text: &str) -> Self {
        let value = self.string(text);
        self.entry(key, TEXT, value)
    }

    pub fn figure(self, key: &str, value: u32) -> Self {
        let value = self.n32(value);
        self.entry(key, U32, value)
    }

    pub fn figures(self, key: &str, values: &[u32]) -> Self {
        let numbers = values.iter().flat_map(|value| self.n32(*value)).collect();
        let head = [self.n32(I32), self.n64(values.len() as u64)].concat();
        self.entry(key, ARRAY, [head, numbers].concat())
    }

    pub fn flags(self, key: &str, values: &[bool]) -> Self {
        let flags = values.iter().map(|value| u8::from(*value)).collect();
        let head = [self.n32(BOOL), self.n64(values.len() as u64)].concat();
        self.entry(key, ARRAY, [head, flags].concat())
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        let texts = values.iter().flat_map(|value| self.string(value)).collect();
        let head = [self.n32(TEXT), self.n64(values.len() as u64)].concat();
        self.entry(key, ARRAY, [head, texts].concat())
    }

    /// Adds an array that announces `count` elements and has none.
    pub fn announced(self, key: &str, kind: u32, count: u64) -> Self {
        let head = [self.n32(kind), self.n64(count)].concat();
        self.entry(key, ARRAY, head)
    }

    /// Adds a tensor behind those before it.
    pub fn tensor(self, dimensions: &[u64], bytes: u64) -> Self {
        let begin = self.data_bytes;
        let mut with = self.tensor_at(dimensions, TENSOR_F32, begin);
        with.data_bytes = begin + bytes.next_multiple_of(32);
        with
    }

    pub fn tensor_at(mut self, dimensions: &[u64], kind: u32, begin: u64) -> Self {
        let name = self.string("blk.0.attn_q.weight");
        let numbers = dimensions.iter().flat_map(|value| self.n64(*value));
        let numbers = numbers.collect();
        let tensor = [
            name,
            self.n32(dimensions.len() as u32),
            numbers,
            self.n32(kind),
            self.n64(begin),
        ];
        self.tensors.push(tensor.concat());
        self
    }

    /// Header of the file, with the counts of what was added.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with(self.tensors.len() as u64, self.entries.len() as u64)
    }

    pub fn bytes_with(&self, tensors: u64, entries: u64) -> Vec<u8> {
        let head = [
            b"GGUF".to_vec(),
            self.n32(self.version),
            self.n64(tensors),
            self.n64(entries),
        ];
        [head.concat(), self.entries.concat(), self.tensors.concat()].concat()
    }

    /// Length that the file would have.
    pub fn file_bytes(&self) -> u64 {
        (self.bytes().len() as u64).next_multiple_of(32) + self.data_bytes
    }

    pub fn read(&self) -> Result<GgufFile, HeaderError> {
        read_gguf(&self.bytes()[..], self.file_bytes())
    }

    pub fn header(&self) -> Result<ModelHeader, HeaderError> {
        join_gguf(vec![self.read()?])
    }
}

/// File of the shape that `make_tiny_gguf.py OUT 12 768 4096` writes: 434.24 MiB of weights.
pub fn llama_of_434_mib(builder: GgufBuilder) -> GgufBuilder {
    let (width, layers, feed_forward, vocabulary) = (768, 12, 4 * 768, 369);
    let mut file = builder
        .text("general.architecture", "llama")
        .text("general.name", "tiny-random")
        .figure("llama.context_length", 4096)
        .figure("llama.embedding_length", width)
        .figure("llama.block_count", layers)
        .figure("llama.feed_forward_length", feed_forward)
        .figure("llama.attention.head_count", 4)
        .figure("llama.attention.head_count_kv", 4)
        .entry("llama.attention.layer_norm_rms_epsilon", F32, vec![0; 4])
        .texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>"]);
    let (width, feed_forward) = (u64::from(width), u64::from(feed_forward));
    let mut shapes = vec![
        vec![width, vocabulary],
        vec![width],
        vec![width, vocabulary],
    ];
    for _ in 0..layers {
        shapes.extend([vec![width], vec![width]]);
        shapes.extend(vec![vec![width, width]; 4]);
        shapes.extend(vec![vec![width, feed_forward]; 3]);
    }
    for shape in shapes {
        let bytes = 4 * shape.iter().product::<u64>();
        file = file.tensor(&shape, bytes);
    }
    file
}

/// A small file of an architecture, without tensors.
pub fn file_of(architecture: &str, layers: u32) -> GgufBuilder {
    GgufBuilder::new()
        .text("general.architecture", architecture)
        .figure(&format!("{architecture}.block_count"), layers)
        .figure(&format!("{architecture}.embedding_length"), 1024)
        .figure(&format!("{architecture}.feed_forward_length"), 4096)
        .figure(&format!("{architecture}.context_length"), 8192)
}

pub fn settings(context: u64, parallel: u64) -> RunSettings {
    RunSettings {
        context: Some(context),
        parallel,
        ubatch: 512,
        key_type: None,
        value_type: None,
        devices: 1,
        context_mib: 450,
    }
}

/// Keys and values of a file, MiB.
pub fn kv_mib(file: &GgufBuilder, settings: &RunSettings) -> f64 {
    in_mib(file.header().unwrap().kv_bytes(settings).unwrap())
}

pub fn in_mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A safetensors file whose header is `json`.
pub fn safetensors_file(json: &str) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}
