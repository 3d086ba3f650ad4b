//! Messages and their content blocks, translated to OpenAI chat messages.
//!
//! Not the other members of a body, which are `request`'s. A message of the user becomes one message for
//! each `tool_result`, as OpenAI-style servers expect them right behind the call, then one with its texts
//! and images. A message of the assistant becomes one with its text and its tool calls; its `thinking`
//! is left out.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Refusal;
use crate::api::json::{self, List, Object, bad, is_list, is_string, push_text, unquoted, within};

/// Text between two blocks that become one text, as it stands in a JSON string.
const BETWEEN_TEXTS: &str = r"\n\n";

/// Begin of a line that Claude Code puts in front of the system prompt, for its provider's accounts. The
/// line changes with every request, so that no prefix of the prompt would be found in a server's cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// Bytes of a block's type that an error repeats.
const KIND_BYTES_SHOWN: usize = 64;

#[derive(Deserialize)]
struct InputMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct ContentBlock<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ImageSource<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    media_type: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
}

/// Writes the system prompt, without the line of [`BILLING_HEADER`]: a text, or text blocks that become one
/// text. Writes no message where nothing is left.
pub(super) fn system_prompt(system: &RawValue, list: &mut List<'_>) -> Result<(), Refusal> {
    let mut texts = JoinedTexts::default();
    match is_string(system) {
        true => texts.0.push(unquoted(system)),
        false => each_block(system, |block| texts.add(block))?,
    }
    texts.0.retain_mut(|text| match after_billing_header(text) {
        Some(rest) => {
            *text = rest;
            !rest.is_empty()
        }
        None => true,
    });
    if !texts.is_empty() {
        system_message(&texts, list);
    }
    Ok(())
}

/// Returns what follows the first line of a text that begins with [`BILLING_HEADER`]; both are as they stand in
/// a JSON string.
fn after_billing_header(text: &str) -> Option<&str> {
    let value = text.strip_prefix(BILLING_HEADER)?;
    let mut escapes = value.bytes().enumerate();
    while let Some((_, byte)) = escapes.next() {
        // A backslash and the byte behind it are one character.
        if byte == b'\\'
            && let Some((at, b'n')) = escapes.next()
        {
            return Some(&value[at + 1..]);
        }
    }
    Some("")
}

fn system_message(texts: &JoinedTexts<'_>, list: &mut List<'_>) {
    let mut message = list.object();
    message.member("role", r#""system""#);
    texts.write(&mut message);
}

/// Writes a message of the system within the conversation.
fn system(content: &RawValue, list: &mut List<'_>) -> Result<(), Refusal> {
    let mut texts = JoinedTexts::default();
    each_block(content, |block| texts.add(block))?;
    system_message(&texts, list);
    Ok(())
}

/// Writes a message of the conversation.
///
/// # Errors
/// The pointer is below the message.
pub(super) fn message(message: &RawValue, list: &mut List<'_>) -> Result<(), Refusal> {
    let InputMessage { role, content } = json::read(message)?;
    match &*role {
        "user" | "system" | "assistant" if is_string(content) => {
            let mut written = list.object();
            written.text("role", &role);
            written.member("content", content.get());
            Ok(())
        }
        _ if !is_list(content) => Err(bad("/content", "expected a string or a list of blocks")),
        "user" => user(content, list).map_err(|refusal| within("/content", refusal)),
        "assistant" => assistant(content, list).map_err(|refusal| within("/content", refusal)),
        "system" => system(content, list).map_err(|refusal| within("/content", refusal)),
        _ => Err(bad("/role", "expected `user` or `assistant`")),
    }
}

/// Calls `each` for each block of a list.
fn each_block<'a>(
    blocks: &'a RawValue,
    mut each: impl FnMut(&ContentBlock<'a>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    json::each_item(blocks, |at, block| {
        let read = json::read(block).and_then(|block| each(&block));
        read.map_err(|refusal| within(&format!("/{at}"), refusal))
    })
}

/// Results of tools, each a message; then texts and images in one message, where there are any.
fn user(content: &RawValue, list: &mut List<'_>) -> Result<(), Refusal> {
    let mut parts = 0;
    let mut only_text = None;
    each_block(content, |block| {
        match &*block.kind {
            "tool_result" => parts += tool_result(block, list)?,
            "text" => {
                parts += 1;
                only_text = block.text;
            }
            _ => {
                parts += 1;
                only_text = None;
            }
        }
        Ok(())
    })?;
    if parts == 0 {
        return Ok(());
    }
    let mut message = list.object();
    message.member("role", r#""user""#);
    if let (1, Some(text)) = (parts, only_text.filter(|text| is_string(text))) {
        // Some chat templates know no lists.
        message.member("content", text.get());
        return Ok(());
    }
    let mut written = message.list("content");
    each_block(content, |block| match (&*block.kind, block.content) {
        ("tool_result", Some(inner)) if is_list(inner) => {
            each_block(inner, |block| match &*block.kind {
                "image" => image(block, &mut written),
                _ => Ok(()),
            })
            .map_err(|refusal| within("/content", refusal))
        }
        ("tool_result", _) => Ok(()),
        _ => part(block, &mut written),
    })
}

/// Writes a text or an image as a part of a message.
fn part(block: &ContentBlock<'_>, parts: &mut List<'_>) -> Result<(), Refusal> {
    match &*block.kind {
        "text" => {
            let text = text_of(block)?;
            let mut part = parts.object();
            part.member("type", r#""text""#);
            part.member("text", text.get());
            Ok(())
        }
        "image" => image(block, parts),
        _ => Err(unknown(block)),
    }
}

fn image(block: &ContentBlock<'_>, parts: &mut List<'_>) -> Result<(), Refusal> {
    let source = block.source.ok_or_else(|| bad("/source", "is missing"))?;
    let source: ImageSource<'_> =
        json::read(source).map_err(|refusal| within("/source", refusal))?;
    let mut write = |url: &[&str]| {
        let mut part = parts.object();
        part.member("type", r#""image_url""#);
        part.object("image_url").raw("url", |out| {
            out.push(b'"');
            url.iter()
                .for_each(|part| out.extend_from_slice(part.as_bytes()));
            out.push(b'"');
        });
    };
    match (
        &*source.kind,
        string_of(source.media_type),
        string_of(source.data),
        string_of(source.url),
    ) {
        ("base64", Some(kind), Some(data), _) => write(&["data:", kind, ";base64,", data]),
        ("base64", ..) => return Err(bad("/source", "expected `media_type` and `data`")),
        ("url", _, _, Some(url)) => write(&[url]),
        ("url", ..) => return Err(bad("/source/url", "expected a string")),
        _ => return Err(bad("/source/type", "expected `base64` or `url`")),
    }
    Ok(())
}

/// Returns a JSON string without its quotes.
fn string_of(value: Option<&RawValue>) -> Option<&str> {
    value.filter(|value| is_string(value)).map(unquoted)
}

/// Writes the result of a tool as a message of its own. Returns its images, which cannot stand there.
fn tool_result(block: &ContentBlock<'_>, list: &mut List<'_>) -> Result<usize, Refusal> {
    let id = block.tool_use_id.filter(|id| is_string(id));
    let id = id.ok_or_else(|| bad("/tool_use_id", "expected a string"))?;
    let mut texts = JoinedTexts::default();
    let mut images = 0;
    let mut message = list.object();
    message.member("role", r#""tool""#);
    message.member("tool_call_id", id.get());
    match block.content {
        Some(content) if is_list(content) => each_block(content, |block| {
            match &*block.kind {
                "image" => images += 1,
                _ => texts.add(block)?,
            }
            Ok(())
        })
        .map_err(|refusal| within("/content", refusal))?,
        Some(content) if is_string(content) => {
            message.member("content", content.get());
            return Ok(0);
        }
        Some(_) => return Err(bad("/content", "expected a string or a list of blocks")),
        None => {}
    }
    texts.write(&mut message);
    Ok(images)
}

/// Text and tool calls of the assistant.
fn assistant(content: &RawValue, list: &mut List<'_>) -> Result<(), Refusal> {
    let mut texts = JoinedTexts::default();
    let mut calls = 0;
    each_block(content, |block| {
        match &*block.kind {
            "tool_use" => calls += 1,
            "thinking" | "redacted_thinking" => {}
            _ => texts.add(block)?,
        }
        Ok(())
    })?;
    let mut message = list.object();
    message.member("role", r#""assistant""#);
    match (calls, texts.is_empty()) {
        (0, _) | (_, false) => texts.write(&mut message),
        (_, true) => message.member("content", "null"),
    }
    if calls == 0 {
        return Ok(());
    }
    let mut written = message.list("tool_calls");
    each_block(content, |block| match &*block.kind {
        "tool_use" => tool_use(block, &mut written),
        _ => Ok(()),
    })
}

fn tool_use(block: &ContentBlock<'_>, calls: &mut List<'_>) -> Result<(), Refusal> {
    let required = |place: &str| bad(place, "expected a string");
    let id = block.id.filter(|id| is_string(id));
    let id = id.ok_or_else(|| required("/id"))?;
    let name = block.name.filter(|name| is_string(name));
    let name = name.ok_or_else(|| required("/name"))?;
    let mut call = calls.object();
    call.member("id", id.get());
    call.member("type", r#""function""#);
    let mut function = call.object("function");
    function.member("name", name.get());
    // Arguments are JSON within a string.
    let input = block.input.map_or("{}", RawValue::get);
    function.raw("arguments", |out| push_text(out, input));
    Ok(())
}

fn text_of<'a>(block: &ContentBlock<'a>) -> Result<&'a RawValue, Refusal> {
    let text = block.text.filter(|text| is_string(text));
    text.ok_or_else(|| bad("/text", "expected a string"))
}

fn unknown(block: &ContentBlock<'_>) -> Refusal {
    bad(
        "/type",
        &format!(
            "blocks of type `{}` are not available here",
            &block.kind[..block.kind.floor_char_boundary(KIND_BYTES_SHOWN)]
        ),
    )
}

/// Text blocks that become one text, each as it stands in a JSON string.
#[derive(Default)]
struct JoinedTexts<'a>(Vec<&'a str>);

impl<'a> JoinedTexts<'a> {
    fn add(&mut self, block: &ContentBlock<'a>) -> Result<(), Refusal> {
        match &*block.kind {
            "text" => {
                self.0.push(unquoted(text_of(block)?));
                Ok(())
            }
            _ => Err(unknown(block)),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes them as the content of a message.
    fn write(&self, message: &mut Object<'_>) {
        message.raw("content", |out| {
            out.push(b'"');
            for (at, text) in self.0.iter().enumerate() {
                if at > 0 {
                    out.extend_from_slice(BETWEEN_TEXTS.as_bytes());
                }
                out.extend_from_slice(text.as_bytes());
            }
            out.push(b'"');
        });
    }
}
