//! Bodies of `POST /v1/messages`, translated to OpenAI chat completions.
//!
//! Not a full validation: the translation checks what it reads, ranges are left to the model server.
//! Values stay raw JSON, and nothing becomes a tree. Members that this API does not know, and the
//! gateway's own, pass under their names. Called once per request, with a body already bounded by
//! `limits.request_body_mib`; the result is at most a few times as long.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::blocks;
use crate::Refusal;
use crate::api::json::{self, Object, bad, is_null, is_string, within};

/// Members that have no meaning for an OpenAI-style server. Leaves them out without an error: client
/// libraries send them to every model.
const IGNORED: [&str; 8] = [
    "cache_control",
    "container",
    "context_management",
    "inference_geo",
    "service_tier",
    "speed",
    "stream_options",
    "thinking",
];

/// Members of a chat into which members of this API are translated.
const CHAT_TWINS: [&str; 4] = ["stop", "user", "response_format", "parallel_tool_calls"];

/// Members whose translation is not just another name.
#[derive(Default)]
struct TranslatedMembers<'a> {
    /// Marks of the [`CHAT_TWINS`] that the client sent itself.
    passed: [bool; CHAT_TWINS.len()],
    messages: Option<&'a RawValue>,
    system: Option<&'a RawValue>,
    tools: Option<&'a RawValue>,
    tool_choice: Option<&'a RawValue>,
    stop_sequences: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    output_format: Option<&'a RawValue>,
    output_config: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
}

impl<'a> TranslatedMembers<'a> {
    /// Returns the place of a member of this name; none where it passes under its own name.
    fn place(&mut self, name: &str) -> Option<&mut Option<&'a RawValue>> {
        Some(match name {
            "messages" => &mut self.messages,
            "system" => &mut self.system,
            "tools" => &mut self.tools,
            "tool_choice" => &mut self.tool_choice,
            "stop_sequences" => &mut self.stop_sequences,
            "metadata" => &mut self.metadata,
            "output_format" => &mut self.output_format,
            "output_config" => &mut self.output_config,
            "stream" => &mut self.stream,
            _ => return None,
        })
    }

    /// Notes a member that passes under its own name.
    fn note_passed(&mut self, name: &str) {
        if let Some(at) = CHAT_TWINS.iter().position(|twin| *twin == name) {
            self.passed[at] = true;
        }
    }

    /// Refuses the member `twin` of a chat that the client sent beside `name`, which becomes the same.
    fn refuse_twin(&self, twin: &str, name: &str) -> Result<(), Refusal> {
        let mut sent = CHAT_TWINS.iter().zip(self.passed);
        if !sent.any(|(passed, is_sent)| is_sent && *passed == twin) {
            return Ok(());
        }
        let message = format!("means the same as `{name}`: send one of the two");
        Err(bad(&format!("/{twin}"), &message))
    }
}

/// Returns the body of the same request to `POST /v1/chat/completions`.
///
/// # Errors
/// [`Refusal::BadRequest`] with the JSON pointer into the client's body: a member of the wrong type, or a
/// feature that an OpenAI-style server does not have.
pub(super) fn to_chat(body: &[u8]) -> Result<Bytes, Refusal> {
    let mut known = TranslatedMembers::default();
    let mut chat = Object::with_capacity(body.len() + 256);
    json::each_member(body, |name, value| {
        if is_null(value) || IGNORED.contains(&name) {
            return Ok(());
        }
        if name == "mcp_servers" {
            return no_servers(value);
        }
        match known.place(name) {
            Some(place) if place.is_some() => Err(bad(&format!("/{name}"), "stands there twice")),
            Some(place) => {
                *place = Some(value);
                Ok(())
            }
            None => {
                known.note_passed(name);
                chat.member(name, value.get());
                Ok(())
            }
        }
    })?;
    write_messages(&known, &mut chat)?;
    // An empty list, which OpenAI-style servers refuse, is as none.
    let is_empty = |list: &&RawValue| list.get()[1..].trim_ascii_start() == "]";
    known.tools = known.tools.filter(|tools| !is_empty(tools));
    if let Some(tools) = known.tools {
        write_tools(tools, &mut chat).map_err(|refusal| within("/tools", refusal))?;
    }
    write_tool_choice(&known, &mut chat)?;
    if let Some(stops) = known.stop_sequences {
        known.refuse_twin("stop", "stop_sequences")?;
        chat.member("stop", stops.get());
    }
    write_user(&known, &mut chat)?;
    write_response_format(&known, &mut chat)?;
    if let Some(stream) = known.stream {
        chat.member("stream", stream.get());
        if stream.get() == "true" {
            // The usage is translated too; this API reports it on every stream.
            chat.member("stream_options", r#"{"include_usage":true}"#);
        }
    }
    Ok(chat.end().into())
}

fn no_servers(value: &RawValue) -> Result<(), Refusal> {
    let mut count = 0;
    json::each_item(value, |_, _| {
        count += 1;
        Ok(())
    })
    .map_err(|refusal| within("/mcp_servers", refusal))?;
    match count {
        0 => Ok(()),
        _ => Err(bad("/mcp_servers", "MCP servers are not available here")),
    }
}

fn write_messages(known: &TranslatedMembers<'_>, chat: &mut Object<'_>) -> Result<(), Refusal> {
    let messages = known
        .messages
        .ok_or_else(|| bad("/messages", "`messages` is missing"))?;
    let mut list = chat.list("messages");
    if let Some(system) = known.system {
        blocks::system_prompt(system, &mut list).map_err(|refusal| within("/system", refusal))?;
    }
    json::each_item(messages, |at, message| {
        blocks::message(message, &mut list).map_err(|refusal| within(&format!("/{at}"), refusal))
    })
    .map_err(|refusal| within("/messages", refusal))
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
    #[serde(borrow)]
    strict: Option<&'a RawValue>,
}

fn write_tools(tools: &RawValue, chat: &mut Object<'_>) -> Result<(), Refusal> {
    let mut list = chat.list("tools");
    json::each_item(tools, |at, tool| {
        let tool: Tool<'_> =
            json::read(tool).map_err(|refusal| within(&format!("/{at}"), refusal))?;
        if tool.kind.as_deref().is_some_and(|kind| kind != "custom") {
            return Err(bad(
                &format!("/{at}/type"),
                "tools that the API itself runs are not available here",
            ));
        }
        let name = tool.name.filter(|name| is_string(name));
        let name = name.ok_or_else(|| bad(&format!("/{at}/name"), "expected a string"))?;
        let mut item = list.object();
        item.member("type", r#""function""#);
        let mut function = item.object("function");
        function.member("name", name.get());
        let members = [
            ("description", tool.description),
            ("parameters", tool.input_schema),
            ("strict", tool.strict),
        ];
        for (name, value) in members {
            if let Some(value) = value {
                function.member(name, value.get());
            }
        }
        Ok(())
    })
}

#[derive(Deserialize)]
struct ToolChoice<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(default)]
    disable_parallel_tool_use: Option<bool>,
}

fn write_tool_choice(known: &TranslatedMembers<'_>, chat: &mut Object<'_>) -> Result<(), Refusal> {
    let Some(choice) = known.tool_choice else {
        return Ok(());
    };
    let choice: ToolChoice<'_> =
        json::read(choice).map_err(|refusal| within("/tool_choice", refusal))?;
    match (&*choice.kind, choice.name) {
        // Without tools there is nothing to choose, and OpenAI-style servers refuse the member.
        ("auto" | "none", _) if known.tools.is_none() => return Ok(()),
        ("auto", _) => chat.member("tool_choice", r#""auto""#),
        ("any", _) => chat.member("tool_choice", r#""required""#),
        ("none", _) => chat.member("tool_choice", r#""none""#),
        ("tool", Some(name)) if is_string(name) => {
            let mut object = chat.object("tool_choice");
            object.member("type", r#""function""#);
            object.object("function").member("name", name.get());
        }
        ("tool", _) => return Err(bad("/tool_choice/name", "expected a string")),
        _ => {
            let message = "expected `auto`, `any`, `tool` or `none`";
            return Err(bad("/tool_choice/type", message));
        }
    }
    if choice.disable_parallel_tool_use == Some(true) {
        let name = "tool_choice.disable_parallel_tool_use";
        known.refuse_twin("parallel_tool_calls", name)?;
        chat.member("parallel_tool_calls", "false");
    }
    Ok(())
}

fn write_user(known: &TranslatedMembers<'_>, chat: &mut Object<'_>) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow)]
        user_id: Option<&'a RawValue>,
    }
    let Some(metadata) = known.metadata else {
        return Ok(());
    };
    let metadata: Metadata<'_> =
        json::read(metadata).map_err(|refusal| within("/metadata", refusal))?;
    match metadata.user_id {
        Some(user) if !is_string(user) => Err(bad("/metadata/user_id", "expected a string")),
        Some(user) => {
            known.refuse_twin("user", "metadata.user_id")?;
            chat.member("user", user.get());
            Ok(())
        }
        None => Ok(()),
    }
}

/// Writes the JSON Schema that the answer has to follow, where there is one.
fn write_response_format(
    known: &TranslatedMembers<'_>,
    chat: &mut Object<'_>,
) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Format<'a> {
        #[serde(borrow)]
        schema: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Config<'a> {
        #[serde(borrow)]
        format: Option<&'a RawValue>,
    }
    let (format, place, name) = match (known.output_config, known.output_format) {
        (Some(config), _) => {
            let config: Config<'_> =
                json::read(config).map_err(|refusal| within("/output_config", refusal))?;
            let name = "output_config.format";
            (config.format, "/output_config/format", name)
        }
        (None, format) => (format, "/output_format", "output_format"),
    };
    let Some(format) = format else { return Ok(()) };
    known.refuse_twin("response_format", name)?;
    let format: Format<'_> = json::read(format).map_err(|refusal| within(place, refusal))?;
    let schema = format
        .schema
        .ok_or_else(|| bad(place, "expected a `json_schema` with its `schema`"))?;
    let mut object = chat.object("response_format");
    object.member("type", r#""json_schema""#);
    let mut inner = object.object("json_schema");
    inner.member("name", r#""output""#);
    inner.member("schema", schema.get());
    Ok(())
}
