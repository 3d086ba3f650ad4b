//! Body bytes → [`Call`]: one validating pass over the JSON that keeps only positions.
//!
//! Not a tree: top-level members are found as raw slices, so the cost is that of skipping over the
//! text (about 0.3 µs per KiB), however large the messages are.

mod members;
mod reader;
mod specials;
mod strings;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use bytes::Bytes;
use infergate_tasks::json::parse_string;
use serde_json::Value;

use super::outputs;
use super::{ApiDialect, Call, Operation, RangeEdit};
use crate::Refusal;
use crate::model::Parameters;

pub(super) use members::BodyMembers;
pub(super) use members::check_depth;
use members::{BodyMember, bad_request};
pub use strings::string_end;

/// Longest `x_client_id`, bytes: it is copied into the event.
const CLIENT_ID_MAX_BYTES: usize = 64;
/// Up to here every whole number is an `f64`.
const TOKENS_EXACT_MAX: f64 = 9_007_199_254_740_992.0;
/// The least urgent `x_priority`.
const PRIORITY_MAX: u64 = 9;

/// Parses `body`, a changed body of `call`, again. Extension fields that were stripped before keep the
/// values of the first parse.
///
/// # Errors
/// As [`parse`].
pub fn reparse(call: Call, body: Bytes) -> Result<Call, Refusal> {
    let again = parse(call.dialect, call.operation, Some(call.model), body)?;
    Ok(Call {
        priority: call.priority.or(again.priority),
        client_id: call.client_id.or(again.client_id),
        reject_if_busy: call.reject_if_busy || again.reject_if_busy,
        ..again
    })
}

/// Fills in, sets and caps the parameters of `call` as the operator configured them for the model.
/// Costs a comparison where there are none.
///
/// # Errors
/// As [`parse`]: a parameter does not fit the request.
pub fn with_parameters(call: Call, parameters: &Parameters) -> Result<Call, Refusal> {
    // Tensors are no members, and a WebSocket has none; both pass by what is about the input of a task.
    let has_members = call.tensors.is_none() && call.operation != Operation::WebSocket;
    if parameters.is_empty() || !has_members {
        return Ok(call);
    }
    if call.content_type.is_some() {
        // A task that passes bytes on may pass a JSON object on; anything else has no members.
        let Some(members) = BodyMembers::read_once(&call.body) else {
            return Ok(call);
        };
        let body = call.edited(parameter_edits(&call, &members, parameters));
        return Ok(Call { body, ..call });
    }
    let members = BodyMembers::read(&call.body)?;
    let edits = parameter_edits(&call, &members, parameters);
    if edits.is_empty() {
        return Ok(call);
    }
    let body = call.edited(edits);
    reparse(call, body)
}

/// Returns the request without its members of the name `gone` and with `added` before the others: members in JSON with
/// commas between them. A body that is no JSON object stays as it is.
///
/// # Errors
/// As [`parse`].
pub fn exchange_member(call: Call, gone: &str, added: &str) -> Result<Call, Refusal> {
    if call.content_type.is_some() {
        return Ok(call);
    }
    let Some(members) = BodyMembers::read_once(&call.body) else {
        return Ok(call);
    };
    let (mut edits, kept) = members.strip_edits(|member| *member.key == *gone.as_bytes());
    if !added.is_empty() {
        let comma = if kept == 0 { "" } else { "," };
        let at = members.first_member;
        edits.push(RangeEdit {
            range: at..at,
            text: [added, comma].concat().into_bytes(),
        });
    }
    if edits.is_empty() {
        return Ok(call);
    }
    let body = call.edited(edits);
    // The payload of a task has no ranges that could be wrong now.
    match call.first_member {
        0 => Ok(Call { body, ..call }),
        _ => reparse(call, body),
    }
}

/// Returns the edits that give a body the parameters of the operator.
fn parameter_edits(
    call: &Call,
    members: &BodyMembers<'_>,
    parameters: &Parameters,
) -> Vec<RangeEdit> {
    let text = |value: &Value| serde_json::to_vec(value).unwrap_or_default();
    let sent_of = |member: &BodyMember<'_>| &call.body[member.value.clone()];
    let is_set = |name: &str| {
        let mut list = members.list.iter();
        list.any(|member| *member.key == *name.as_bytes() && sent_of(member) != b"null")
    };
    let replaced = members.list.iter().filter_map(|member| {
        let sent = sent_of(member);
        let name = std::str::from_utf8(&member.key).ok()?;
        let value = parameters.replacement(name, sent, is_set)?;
        Some(RangeEdit {
            range: member.value.clone(),
            text: text(value),
        })
    });
    let mut edits: Vec<RangeEdit> = replaced.collect();
    let has = |name: &str| members.last(name).is_some();
    let mut added = Vec::new();
    for (name, value) in parameters.missing(has) {
        if !added.is_empty() {
            added.push(b',');
        }
        added.extend(text(&Value::from(name)));
        added.push(b':');
        added.extend(text(value));
    }
    if !added.is_empty() {
        if !members.list.is_empty() {
            added.push(b',');
        }
        let at = members.first_member;
        edits.push(RangeEdit {
            range: at..at,
            text: added,
        });
    }
    edits
}

/// Reads the body of a call. `path_model` is the model of a Workers AI path.
///
/// # Errors
/// [`Refusal::BadRequest`] with the JSON pointer of what is wrong.
pub fn parse(
    dialect: ApiDialect,
    operation: Operation,
    path_model: Option<String>,
    body: Bytes,
) -> Result<Call, Refusal> {
    let members = BodyMembers::read(&body)?;
    let known = KnownMembers::find(&members)?;
    let (model, model_value) = match path_model {
        // The model of the path decides; one in the body would only confuse the backend's copy.
        Some(model) => (model, known.model.map(|m| m.value.clone())),
        None => {
            let member = known
                .model
                .ok_or_else(|| bad_request("/model", "`model` is missing"))?;
            let name: Cow<'_, str> = borrowed(member, &body)
                .ok_or_else(|| bad_request("/model", "`model` must be a string"))?;
            (name.into_owned(), Some(member.value.clone()))
        }
    };
    let stream = flag(known.stream, &body, "/stream")?;
    let usage_asked = match known.stream_options {
        Some(member) => StreamOptions::read(member, &body)?,
        None => false,
    };
    let options = RunOptions::read(known.options, &body)?;
    let priority = priority(known.x_priority, &body)?;
    let client_id = match known.x_client_id {
        Some(member) => Some(client_id(member, &body)?),
        None => None,
    };
    let max_tokens = match tokens(known.max_completion_tokens, &body, "/max_completion_tokens")? {
        Some(tokens) => Some(tokens),
        None => tokens(known.max_tokens, &body, "/max_tokens")?,
    };
    let value = |key: &str| Some(&body[members.last(key)?]);
    let (outputs, choices) = outputs::count(operation, value);
    let (strips, kept) = members.strip_edits(|m| {
        m.key.starts_with(b"x_priority")
            || m.key.starts_with(b"x_client_id")
            || (*m.key == *b"options" && options.ours)
    });
    let stream_options = known.stream_options.map(|m| m.value.clone());
    // No body has 4 GiB: its bound is 1 GiB at most.
    let first_member = u32::try_from(members.first_member).unwrap_or(u32::MAX);
    Ok(Call {
        dialect,
        operation,
        model,
        stream,
        usage_requested: usage_asked,
        max_tokens,
        outputs,
        choices,
        continuous_usage: false,
        priority,
        client_id,
        reject_if_busy: options.reject_if_busy,
        content_type: None,
        tensors: None,
        files: members.files(),
        lora: members.last("lora"),
        model_value,
        stream_options,
        first_member,
        is_empty: kept == 0,
        strip_edits: strips,
        body,
    })
}

/// Names of the members the gateway acts on.
const KNOWN: [&str; 8] = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "options",
    "x_priority",
    "x_client_id",
];

/// The members the gateway acts on; each may occur once.
struct KnownMembers<'m, 'a> {
    model: Option<&'m BodyMember<'a>>,
    stream: Option<&'m BodyMember<'a>>,
    stream_options: Option<&'m BodyMember<'a>>,
    max_tokens: Option<&'m BodyMember<'a>>,
    max_completion_tokens: Option<&'m BodyMember<'a>>,
    options: Option<&'m BodyMember<'a>>,
    x_priority: Option<&'m BodyMember<'a>>,
    x_client_id: Option<&'m BodyMember<'a>>,
}

impl<'m, 'a> KnownMembers<'m, 'a> {
    fn find(members: &'m BodyMembers<'a>) -> Result<KnownMembers<'m, 'a>, Refusal> {
        let [
            model,
            stream,
            stream_options,
            max_tokens,
            max_completion_tokens,
            options,
            x_priority,
            x_client_id,
        ] = members.unique(KNOWN)?;
        Ok(KnownMembers {
            model,
            stream,
            stream_options,
            max_tokens,
            max_completion_tokens,
            options,
            x_priority,
            x_client_id,
        })
    }
}

fn borrowed<'a>(member: &BodyMember<'_>, body: &'a [u8]) -> Option<Cow<'a, str>> {
    parse_string(std::str::from_utf8(&body[member.value.clone()]).ok()?)
}

fn read<'a, T: serde::Deserialize<'a>>(
    member: Option<&BodyMember<'_>>,
    body: &'a [u8],
    pointer: &str,
    expected: &str,
) -> Result<Option<T>, Refusal> {
    let Some(member) = member else {
        return Ok(None);
    };
    serde_json::from_slice::<Option<T>>(&body[member.value.clone()])
        .map_err(|_| bad_request(pointer, format!("`{}` must be {expected}", &pointer[1..])))
}

fn flag(member: Option<&BodyMember<'_>>, body: &[u8], pointer: &str) -> Result<bool, Refusal> {
    match member.map(|member| &body[member.value.clone()]) {
        None | Some(b"false" | b"null") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(bad_request(
            pointer,
            format!("`{}` must be true or false", &pointer[1..]),
        )),
    }
}

fn number(
    member: Option<&BodyMember<'_>>,
    body: &[u8],
    pointer: &str,
) -> Result<Option<u64>, Refusal> {
    let plain = member.and_then(|member| plain_number(&body[member.value.clone()]));
    match plain {
        Some(number) => Ok(Some(number)),
        None => read(member, body, pointer, "an integer of 0 or more"),
    }
}

/// Returns the value of a JSON number that is digits alone, and few enough for 64 bits.
fn plain_number(json: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 19;
    if json.len() > DIGITS_MAX {
        return None;
    }
    let mut number = 0;
    for &byte in json {
        byte.is_ascii_digit().then_some(())?;
        number = number * 10 + u64::from(byte - b'0');
    }
    Some(number)
}

/// Returns a bound on tokens. -1 means none, as in llama.cpp and LM Studio; whole numbers may be spelled
/// as `100.0` or `1e2`.
fn tokens(
    member: Option<&BodyMember<'_>>,
    body: &[u8],
    pointer: &str,
) -> Result<Option<u64>, Refusal> {
    if let Ok(tokens) = number(member, body, pointer) {
        return Ok(tokens);
    }
    const EXPECTED: &str = "an integer of 0 or more, or -1 for no bound";
    match read::<f64>(member, body, pointer, EXPECTED)? {
        Some(-1.0) => Ok(None),
        Some(tokens) if tokens >= 0.0 && tokens.fract() == 0.0 && tokens <= TOKENS_EXACT_MAX => {
            Ok(Some(tokens as u64))
        }
        _ => Err(bad_request(
            pointer,
            format!("`{}` must be {EXPECTED}", &pointer[1..]),
        )),
    }
}

fn priority(member: Option<&BodyMember<'_>>, body: &[u8]) -> Result<Option<u8>, Refusal> {
    let priority = number(member, body, "/x_priority")?;
    if priority.is_some_and(|p| p > PRIORITY_MAX) {
        return Err(bad_request(
            "/x_priority",
            "`x_priority` must be an integer from 0 (first) to 9",
        ));
    }
    Ok(priority.map(|p| p as u8))
}

fn client_id(member: &BodyMember<'_>, body: &[u8]) -> Result<String, Refusal> {
    borrowed(member, body)
        .filter(|id| id.len() <= CLIENT_ID_MAX_BYTES)
        .map(Cow::into_owned)
        .ok_or_else(|| {
            bad_request(
                "/x_client_id",
                "`x_client_id` must be a string of at most 64 bytes",
            )
        })
}

#[derive(serde::Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

impl StreamOptions {
    fn read(member: &BodyMember<'_>, body: &[u8]) -> Result<bool, Refusal> {
        // A list would be read as a struct too, member by member.
        if body.get(member.value.start) == Some(&b'[') {
            return Err(bad_request(
                "/stream_options",
                "`stream_options` must be an object",
            ));
        }
        let options: Option<StreamOptions> =
            read(Some(member), body, "/stream_options", "an object")?;
        Ok(options.and_then(|o| o.include_usage).unwrap_or(false))
    }
}

/// `options` of the Workers AI API; read in both dialects.
#[derive(Default)]
struct RunOptions {
    /// The member holds gateway options, so the backend must not see it.
    ours: bool,
    reject_if_busy: bool,
}

impl RunOptions {
    fn read(member: Option<&BodyMember<'_>>, body: &[u8]) -> Result<RunOptions, Refusal> {
        #[derive(serde::Deserialize)]
        struct WireOptions {
            #[serde(rename = "rejectIfBusy")]
            reject_if_busy: Option<bool>,
            #[serde(rename = "queueRequest")]
            queue_request: Option<bool>,
        }
        let Some(member) = member else {
            return Ok(RunOptions::default());
        };
        if body.get(member.value.start) != Some(&b'{') {
            return Ok(RunOptions::default());
        }
        let wire: Option<WireOptions> = read(
            Some(member),
            body,
            "/options",
            "an object of true or false values",
        )?;
        if wire
            .as_ref()
            .is_some_and(|wire| wire.queue_request == Some(true))
        {
            return Err(bad_request(
                "/options/queueRequest",
                "queued requests are not available here",
            ));
        }
        Ok(wire.map_or_else(RunOptions::default, |wire| RunOptions {
            ours: wire.reject_if_busy.is_some() || wire.queue_request.is_some(),
            reject_if_busy: wire.reject_if_busy.unwrap_or(false),
        }))
    }
}
