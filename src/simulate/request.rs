//! The bodies the simulator understands, read into what it needs to know. Reading is lenient, as in
//! real servers: unused fields are ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::dialect::Operation;
use super::passed::PassedRequest;
use super::task::TaskRequest;
use super::tensor::InferRequest;

/// Inputs in one embeddings request: OpenAI's own limit.
const MAX_INPUTS: usize = 2_048;

/// A request for text.
#[derive(Debug, Default)]
pub(super) struct TextRequest {
    pub(super) model: Option<String>,
    /// The last user message, or the prompt: the input that decides the response.
    pub(super) prompt: String,
    /// All messages together.
    pub(super) prompt_bytes: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) max_tokens: Option<u32>,
    pub(super) ignore_end: bool,
    /// TGI's `details`.
    pub(super) details: bool,
}

/// A request for embeddings.
#[derive(Debug, Default)]
pub(super) struct EmbeddingRequest {
    pub(super) model: Option<String>,
    pub(super) inputs: Vec<String>,
    pub(super) base64: bool,
    pub(super) dimensions: Option<usize>,
}

/// Work that a body asks for.
#[derive(Debug)]
pub(super) enum SimulatorRequest {
    Text(TextRequest),
    Embedding(EmbeddingRequest),
    Task(TaskRequest),
    Tensors(InferRequest),
    Passed(PassedRequest),
}

impl SimulatorRequest {
    pub(super) fn model(&self) -> Option<&str> {
        match self {
            SimulatorRequest::Text(ask) => ask.model.as_deref(),
            SimulatorRequest::Embedding(ask) => ask.model.as_deref(),
            SimulatorRequest::Task(ask) => ask.weights(),
            SimulatorRequest::Tensors(_) => None,
            SimulatorRequest::Passed(ask) => ask.model(),
        }
    }
}

/// Every field any operation reads; text is borrowed and large values stay unparsed.
#[derive(Deserialize)]
struct SimulatorRequestBody<'a> {
    model: Option<String>,
    #[serde(borrow)]
    messages: Option<Vec<SimulatorMessage<'a>>>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow)]
    text_input: Option<&'a RawValue>,
    parameters: Option<Parameters>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    ignore_eos: bool,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
    #[serde(alias = "x-sim-fault")]
    x_sim_fault: Option<String>,
    replicate_weights: Option<String>,
}

#[derive(Deserialize)]
struct SimulatorMessage<'a> {
    #[serde(default)]
    role: String,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Parameters {
    max_new_tokens: Option<u32>,
    #[serde(default)]
    details: bool,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
struct TextPart {
    text: Option<String>,
}

/// Reads the work a body asks for and the fault it carries; the error says what is wrong with it.
pub(super) fn read(
    operation: Operation,
    body: &[u8],
) -> Result<(SimulatorRequest, Option<String>), String> {
    let mut wire: SimulatorRequestBody<'_> =
        serde_json::from_slice(body).map_err(|error| format!("invalid body: {error}"))?;
    let fault = wire.x_sim_fault.take();
    wire.model = wire.model.take().or(wire.replicate_weights.take());
    let ask = match operation {
        Operation::Chat => SimulatorRequest::Text(chat(wire)?),
        Operation::Completion | Operation::Run => {
            let prompt = wire.prompt;
            SimulatorRequest::Text(text(wire, prompt, "prompt")?)
        }
        Operation::Generate { stream, .. } => {
            let prompt = wire.inputs;
            let mut ask = text(wire, prompt, "inputs")?;
            ask.stream = stream.unwrap_or(ask.stream);
            SimulatorRequest::Text(ask)
        }
        Operation::Embeddings => {
            let input = wire.input;
            SimulatorRequest::Embedding(embedding(wire, input, "input")?)
        }
        Operation::Embed => {
            let input = wire.inputs;
            SimulatorRequest::Embedding(embedding(wire, input, "inputs")?)
        }
        Operation::GenerateText { stream } => {
            let prompt = wire.text_input;
            let mut ask = text(wire, prompt, "text_input")?;
            ask.stream = stream;
            SimulatorRequest::Text(ask)
        }
        Operation::Infer => return Err("tensors are read by their dialect".into()),
        Operation::Passed(_) => return Err("read by the API itself".into()),
    };
    Ok((ask, fault))
}

fn chat(wire: SimulatorRequestBody<'_>) -> Result<TextRequest, String> {
    let messages = wire.messages.as_deref().unwrap_or_default();
    let Some(last) = messages.last() else {
        return Err("messages: at least one message is needed".into());
    };
    let asking = messages
        .iter()
        .rev()
        .find(|message| message.role == "user")
        .unwrap_or(last);
    let prompt = match asking.content {
        Some(content) => message_text(content)?,
        None => String::new(),
    };
    let lengths = messages.iter().filter_map(|message| message.content);
    let prompt_bytes = lengths
        .map(|content| content.get().len().saturating_sub(2))
        .sum();
    limits(wire, prompt, prompt_bytes)
}

fn text(
    wire: SimulatorRequestBody<'_>,
    prompt: Option<&RawValue>,
    key: &str,
) -> Result<TextRequest, String> {
    let prompt = prompt.ok_or_else(|| format!("{key}: missing"))?;
    let texts = strings(prompt, key)?;
    let bytes = texts.iter().map(String::len).sum();
    limits(wire, texts.join("\n"), bytes)
}

fn limits(
    wire: SimulatorRequestBody<'_>,
    prompt: String,
    prompt_bytes: usize,
) -> Result<TextRequest, String> {
    let parameters = wire.parameters.as_ref();
    let max_tokens = wire
        .max_completion_tokens
        .or(wire.max_tokens)
        .or(parameters.and_then(|parameters| parameters.max_new_tokens));
    if max_tokens == Some(0) {
        return Err("max_tokens: must be at least 1".into());
    }
    Ok(TextRequest {
        details: parameters.is_some_and(|parameters| parameters.details),
        model: wire.model,
        prompt,
        prompt_bytes,
        stream: wire.stream,
        include_usage: wire
            .stream_options
            .is_some_and(|options| options.include_usage),
        max_tokens,
        ignore_end: wire.ignore_eos,
    })
}

fn embedding(
    wire: SimulatorRequestBody<'_>,
    input: Option<&RawValue>,
    key: &str,
) -> Result<EmbeddingRequest, String> {
    let input = input.ok_or_else(|| format!("{key}: missing"))?;
    let inputs = strings(input, key)?;
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        return Err(format!("{key}: from 1 to {MAX_INPUTS} inputs are taken"));
    }
    let base64 = match wire.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(format!("encoding_format: {other:?} is not float or base64")),
    };
    if wire.dimensions == Some(0) {
        return Err("dimensions: must be at least 1".into());
    }
    Ok(EmbeddingRequest {
        model: wire.model,
        inputs,
        base64,
        dimensions: wire.dimensions,
    })
}

/// A chat message's content: a string, a list of parts of which the texts count, or null.
fn message_text(content: &RawValue) -> Result<String, String> {
    let json = content.get();
    let wrong = |error| format!("messages: invalid content: {error}");
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).map_err(wrong),
        Some(b'[') => {
            let parts: Vec<TextPart> = serde_json::from_str(json).map_err(wrong)?;
            Ok(parts.into_iter().filter_map(|part| part.text).collect())
        }
        Some(b'n') => Ok(String::new()),
        _ => Err("messages: content must be a string or a list of parts".into()),
    }
}

/// Reads one text, several texts, or texts as token numbers, in each of OpenAI's spellings. A list
/// of token numbers stands for itself: its JSON is the text.
fn strings(value: &RawValue, key: &str) -> Result<Vec<String>, String> {
    let json = value.get();
    let read = match json.as_bytes().first() {
        Some(b'"') => string(json).map(|text| vec![text]),
        Some(b'[') => list(json),
        _ => None,
    };
    read.ok_or_else(|| format!("{key}: must be a string, a list of strings, or token numbers"))
}

fn list(json: &str) -> Option<Vec<String>> {
    let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    let numbers = items.iter().all(|item| item.get().parse::<u32>().is_ok());
    if numbers && !items.is_empty() {
        return Some(vec![json.to_owned()]);
    }
    items
        .into_iter()
        .map(|item| string(item.get()).or_else(|| token_numbers(item.get())))
        .collect()
}

fn string(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

fn token_numbers(json: &str) -> Option<String> {
    let numbers: Vec<u32> = serde_json::from_str(json).ok()?;
    (!numbers.is_empty()).then(|| json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_ask(operation: Operation, body: &str) -> TextRequest {
        match read(operation, body.as_bytes()).unwrap().0 {
            SimulatorRequest::Text(ask) => ask,
            _ => panic!("asked for text"),
        }
    }

    fn inputs(body: &str) -> Result<Vec<String>, String> {
        match read(Operation::Embeddings, body.as_bytes())?.0 {
            SimulatorRequest::Embedding(ask) => Ok(ask.inputs),
            _ => panic!("asked for embeddings"),
        }
    }

    #[test]
    fn the_last_user_message_is_the_prompt_whatever_follows_it() {
        let ask = text_ask(
            Operation::Chat,
            r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b\n"},
                {"type":"image_url","image_url":{}},{"type":"text","text":"c"}]},{"role":"assistant","content":null}],
                "max_completion_tokens":3,"stream":true,"stream_options":{"include_usage":true}}"#,
        );
        assert_eq!(ask.prompt, "b\nc");
        assert_eq!(ask.max_tokens, Some(3));
        assert!(ask.stream && ask.include_usage);
    }

    #[test]
    fn embedding_inputs_come_in_four_spellings() {
        assert_eq!(inputs(r#"{"input":"a"}"#).unwrap(), ["a"]);
        assert_eq!(inputs(r#"{"input":["a","b"]}"#).unwrap(), ["a", "b"]);
        assert_eq!(inputs(r#"{"input":[1,2]}"#).unwrap(), ["[1,2]"]);
        assert_eq!(inputs(r#"{"input":[[1],[2]]}"#).unwrap(), ["[1]", "[2]"]);
        assert!(inputs(r#"{"input":[]}"#).is_err());
        assert!(inputs(r#"{"input":{"a":1}}"#).is_err());
        assert!(inputs(r#"{}"#).is_err());
    }

    #[test]
    fn a_generate_route_decides_on_streaming_when_it_says_so() {
        let body =
            r#"{"inputs":"a","stream":true,"parameters":{"max_new_tokens":4,"details":true}}"#;
        let fixed = Operation::Generate {
            stream: Some(false),
            list: false,
        };
        let open = Operation::Generate {
            stream: None,
            list: true,
        };
        assert!(!text_ask(fixed, body).stream);
        assert!(text_ask(open, body).stream);
        assert_eq!(text_ask(open, body).max_tokens, Some(4));
    }
}
