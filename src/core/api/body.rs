//! Body bytes → [`Call`]: one validating pass over the JSON that keeps only positions.
//!
//! Not a tree: top-level members are found as raw slices, so the cost is that of skipping over the
//! text (about 0.3 µs per KiB), however large the messages are.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use infergate_tasks::json::{parse_string, scan_members};
use serde_json::Value;

use super::outputs;
use super::prompt::is_file_member;
use super::scan::text_end;
use super::{ApiDialect, Call, Operation, RangeEdit};
use crate::Refusal;
use crate::model::Parameters;

/// Top-level members a body may have. Real ones have fewer than 40; each costs a slot in a list.
const MEMBERS_MAX: usize = 512;
/// Objects and lists within each other: real bodies have fewer than 20, and servers' readers end at 100 to
/// 1,000.
const DEPTH_MAX: usize = 128;
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
    // A body that is no JSON has no members.
    if parameters.is_empty() || call.content_type.is_some() {
        return Ok(call);
    }
    let members = BodyMembers::read(&call.body)?;
    let text = |value: &Value| serde_json::to_vec(value).unwrap_or_default();
    let sent_of = |member: &BodyMember<'_>| &call.body[member.value.clone()];
    let is_set = |name: &str| {
        let mut list = members.list.iter();
        list.any(|member| member.key == name && sent_of(member) != b"null")
    };
    let replaced = members.list.iter().filter_map(|member| {
        let sent = sent_of(member);
        let value = parameters.replacement(&member.key, sent, is_set)?;
        Some(RangeEdit {
            range: member.value.clone(),
            text: text(value),
        })
    });
    let mut edits: Vec<RangeEdit> = replaced.collect();
    let has = |name: &str| members.list.iter().any(|member| member.key == name);
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
    if edits.is_empty() {
        return Ok(call);
    }
    let body = call.edited(edits);
    reparse(call, body)
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
        m.key.starts_with("x_priority")
            || m.key.starts_with("x_client_id")
            || (m.key == "options" && options.ours)
    });
    let stream_options = known.stream_options.map(|m| m.value.clone());
    let first_member = members.first_member;
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

fn bad_request(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: message.into(),
    }
}

/// Returns whether a reader that matches names without case takes `name` for `known`, which is ASCII. Some of
/// them fold the long s and the Kelvin sign too (Go's `encoding/json`).
fn equals_ignoring_case(name: &str, known: &str) -> bool {
    if name.is_ascii() {
        return name.eq_ignore_ascii_case(known);
    }
    let folded = name.chars().map(|c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    });
    folded.eq(known.chars())
}

/// Refuses a body whose objects and lists are nested deeper than [`DEPTH_MAX`].
///
/// # Errors
/// 413.
pub(super) fn check_depth(body: &[u8]) -> Result<(), Refusal> {
    if !is_too_deep(body) {
        return Ok(());
    }
    Err(Refusal::Rejected {
        status: 413,
        pointer: String::new(),
        message: format!("the body is nested deeper than {DEPTH_MAX} levels"),
    })
}

/// Returns whether objects and lists are nested deeper than [`DEPTH_MAX`].
fn is_too_deep(body: &[u8]) -> bool {
    // Most bodies have not so many in all.
    if memchr::memchr2_iter(b'{', b'[', body)
        .nth(DEPTH_MAX)
        .is_none()
    {
        return false;
    }
    let (mut at, mut depth) = (0, 0_usize);
    while at < body.len() {
        at += 1;
        match body[at - 1] {
            // A string without an end is not JSON; the parser refuses it.
            b'"' => at += text_end(&body[at..]).unwrap_or(body.len()),
            b'{' | b'[' if depth == DEPTH_MAX => return true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A top-level member: its key and its range.
struct BodyMember<'a> {
    key: Cow<'a, str>,
    value: Range<usize>,
}

struct BodyMembers<'a> {
    list: Vec<BodyMember<'a>>,
    first_member: usize,
    body: &'a [u8],
}

impl<'a> BodyMembers<'a> {
    fn read(body: &'a [u8]) -> Result<BodyMembers<'a>, Refusal> {
        let text = simdutf8::basic::from_utf8(body)
            .map_err(|_| bad_request("", "the body is not UTF-8"))?;
        check_depth(body)?;
        if !text.trim_ascii_start().starts_with('{') {
            return Err(bad_request("", "the body is not a JSON object"));
        }
        let mut list = Vec::with_capacity(12);
        scan_members(text, |key, value| {
            if list.len() == MEMBERS_MAX {
                return Err("too many members");
            }
            let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
            let value = start..start + value.get().len();
            list.push(BodyMember { key, value });
            Ok(())
        })
        .map_err(|e| bad_request("", format!("the body is not a JSON object: {e}")))?;
        let brace = text.find('{').unwrap_or(0);
        Ok(BodyMembers {
            list,
            first_member: brace + 1,
            body,
        })
    }

    fn unique(&self, key: &str) -> Result<Option<&BodyMember<'a>>, Refusal> {
        let mut found = None;
        for member in &self.list {
            if !equals_ignoring_case(&member.key, key) {
                continue;
            }
            // Servers that match names without case would take it for the one that was looked at here.
            if member.key != key {
                return Err(bad_request(
                    &format!("/{key}"),
                    format!("a member differs from `{key}` in case only: spell it `{key}`"),
                ));
            }
            if found.replace(member).is_some() {
                return Err(bad_request(
                    &format!("/{key}"),
                    format!("`{key}` stands twice in the body"),
                ));
            }
        }
        Ok(found)
    }

    /// Returns the range of the value of `key`; of several the last, as JSON readers have it.
    fn last(&self, key: &str) -> Option<Range<usize>> {
        let found = self.list.iter().rfind(|member| member.key == key)?;
        Some(found.value.clone())
    }

    /// Returns the ranges of images and sounds.
    fn files(&self) -> Vec<Range<usize>> {
        let is_file = |m: &&BodyMember<'a>| is_file_member(&m.key, &self.body[m.value.clone()]);
        let files = self.list.iter().filter(is_file);
        files.map(|member| member.value.clone()).collect()
    }

    /// The edits that take the named members out, and how many members stay. A run of members
    /// leaves together with one neighbouring comma.
    fn strip_edits(&self, gone: impl Fn(&BodyMember<'a>) -> bool) -> (Vec<RangeEdit>, usize) {
        let mut edits = Vec::new();
        let mut kept = 0;
        let mut index = 0;
        while index < self.list.len() {
            if !gone(&self.list[index]) {
                kept += 1;
                index += 1;
                continue;
            }
            let first = index;
            while index < self.list.len() && gone(&self.list[index]) {
                index += 1;
            }
            let last_end = self.list[index - 1].value.end;
            let range = match first {
                0 if index < self.list.len() => self.first_member..self.after_comma(last_end),
                0 => self.first_member..last_end,
                _ => self.list[first - 1].value.end..last_end,
            };
            edits.push(RangeEdit {
                range,
                text: Vec::new(),
            });
        }
        (edits, kept)
    }

    fn after_comma(&self, from: usize) -> usize {
        memchr::memchr(b',', &self.body[from..]).map_or(from, |at| from + at + 1)
    }
}

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
        Ok(KnownMembers {
            model: members.unique("model")?,
            stream: members.unique("stream")?,
            stream_options: members.unique("stream_options")?,
            max_tokens: members.unique("max_tokens")?,
            max_completion_tokens: members.unique("max_completion_tokens")?,
            options: members.unique("options")?,
            x_priority: members.unique("x_priority")?,
            x_client_id: members.unique("x_client_id")?,
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
    Ok(read(member, body, pointer, "true or false")?.unwrap_or(false))
}

fn number(
    member: Option<&BodyMember<'_>>,
    body: &[u8],
    pointer: &str,
) -> Result<Option<u64>, Refusal> {
    read(member, body, pointer, "an integer of 0 or more")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> Result<Call, Refusal> {
        parse(
            ApiDialect::OpenAi,
            Operation::Chat,
            None,
            Bytes::copy_from_slice(body.as_bytes()),
        )
    }

    fn sent(body: &str, backend_model: &str) -> String {
        String::from_utf8(chat(body).unwrap().openai_body(backend_model).to_vec()).unwrap()
    }

    fn refusal_pointer(body: &str) -> String {
        match chat(body) {
            Err(Refusal::BadRequest { pointer, .. }) => pointer,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn parameters_are_filled_in_set_and_capped_where_they_stand() {
        let parameters: Parameters = serde_json::from_str(
            r#"{"default":{"temperature":0.5,"top_k":3},"force":{"user":"gw"},"max":{"max_tokens":100}}"#,
        )
        .unwrap();
        let with = |body: &str| {
            let call = with_parameters(chat(body).unwrap(), &parameters).unwrap();
            (
                call.max_tokens,
                String::from_utf8(call.body.to_vec()).unwrap(),
            )
        };
        assert_eq!(
            with(r#"{"model":"m","max_tokens":5000,"temperature":1,"top_k":null,"user":"me"}"#),
            (
                Some(100),
                r#"{"model":"m","max_tokens":100,"temperature":1,"top_k":3,"user":"gw"}"#.into()
            )
        );
        assert_eq!(
            with(r#"{"model":"m","max_tokens":7}"#),
            (
                Some(7),
                r#"{"user":"gw","temperature":0.5,"top_k":3,"model":"m","max_tokens":7}"#.into()
            )
        );
        let plain = chat(r#"{"model":"m"}"#).unwrap();
        let at = plain.body.as_ptr();
        let same = with_parameters(plain, &Parameters::default()).unwrap();
        assert_eq!(same.body.as_ptr(), at);
    }

    #[test]
    fn what_only_the_gateway_reads_is_still_known_after_parameters_were_set() {
        let parameters: Parameters = serde_json::from_str(r#"{"force":{"seed":1}}"#).unwrap();
        let call = chat(r#"{"x_priority":2,"model":"m","stream":true}"#).unwrap();
        let call = with_parameters(call, &parameters).unwrap();
        assert_eq!((call.priority, call.stream), (Some(2), true));
        let body = String::from_utf8(call.openai_body("b").to_vec()).unwrap();
        assert_eq!(
            body,
            r#"{"stream_options":{"include_usage":true},"seed":1,"model":"b","stream":true}"#
        );
    }

    #[test]
    fn the_backend_sees_its_own_model_name_and_unknown_fields_pass() {
        assert_eq!(
            sent(
                r#"{"model": "a/b" , "messages":[{"model":"x"}],"zzz":{"k":[1]}}"#,
                "llama"
            ),
            r#"{"model": "llama" , "messages":[{"model":"x"}],"zzz":{"k":[1]}}"#
        );
    }

    #[test]
    fn known_names_are_spelled_one_way() {
        for (body, pointer) in [
            (r#"{"model":"m","MODEL":"big"}"#, "/model"),
            (r#"{"model":"m","Stream":true}"#, "/stream"),
            (r#"{"model":"m","Max_Tokens":9}"#, "/max_tokens"),
            (r#"{"model":"m","\u017ftream":true}"#, "/stream"),
            (r#"{"model":"m","max_to\u212aens":9}"#, "/max_tokens"),
        ] {
            assert_eq!(refusal_pointer(body), pointer, "{body}");
        }
        // Below the top level names are the task's own.
        assert!(chat(r#"{"model":"m","x":{"MODEL":"big"}}"#).is_ok());
    }

    #[test]
    fn a_bound_on_tokens_may_be_spelled_as_clients_do() {
        let bound = |tokens: &str| {
            chat(&format!(r#"{{"model":"m","max_tokens":{tokens}}}"#)).map(|call| call.max_tokens)
        };
        assert_eq!(bound("-1"), Ok(None));
        assert_eq!(bound("100.0"), Ok(Some(100)));
        assert_eq!(bound("1e2"), Ok(Some(100)));
        assert_eq!(bound("null"), Ok(None));
        for bad in ["-2", "1.5", "1e30", "\"7\"", "true"] {
            assert!(bound(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_is_nested_128_levels_at_most() {
        let nested = |levels: usize| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            chat(&format!(r#"{{"model":"m","x":{open}{close}}}"#))
        };
        assert!(nested(127).is_ok());
        assert!(matches!(
            nested(128),
            Err(Refusal::Rejected { status: 413, .. })
        ));
        // Neither many beside each other nor any in a string.
        let flat = format!(
            r#"{{"model":"m","x":[{}0],"y":"{}"}}"#,
            "[],".repeat(500),
            "[".repeat(500)
        );
        assert!(chat(&flat).is_ok());
    }

    #[test]
    fn an_unchanged_body_is_not_copied() {
        let call = chat(r#"{"model":"m","messages":[]}"#).unwrap();
        assert_eq!(call.openai_body("m").as_ptr(), call.body.as_ptr());
    }

    #[test]
    fn extension_fields_are_stripped_wherever_they_stand() {
        for body in [
            r#"{"x_priority":3,"model":"m"}"#,
            r#"{"x_priority":3,"x_client_id":"c","model":"m"}"#,
            r#"{"model":"m","x_priority":3,"x_client_id":"c"}"#,
            r#"{"x_client_id":"c","model":"m","x_priority":3}"#,
        ] {
            assert_eq!(sent(body, "m"), r#"{"model":"m"}"#, "{body}");
        }
        let call = chat(r#"{"x_client_id":"c","model":"m","x_priority":3}"#).unwrap();
        assert_eq!(call.priority, Some(3));
        assert_eq!(call.client_id.as_deref(), Some("c"));
    }

    #[test]
    fn usage_is_asked_for_on_a_stream_whose_client_did_not() {
        let value = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        for body in [
            r#"{"model":"m","stream":true}"#,
            r#"{"x_priority":1,"model":"m","stream":true}"#,
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#,
        ] {
            let seen = value(sent(body, "m"));
            assert_eq!(seen["stream_options"]["include_usage"], true, "{body}");
            assert_eq!(seen["model"], "m");
        }
        let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        assert!(chat(asked).unwrap().usage_requested);
        assert_eq!(sent(asked, "m"), asked);
    }

    #[test]
    fn fields_we_act_on_are_checked_and_named() {
        assert_eq!(refusal_pointer("{"), "");
        assert_eq!(refusal_pointer("[]"), "");
        assert_eq!(refusal_pointer(r#"{"model":"m"} x"#), "");
        assert_eq!(refusal_pointer(r#"{"messages":[]}"#), "/model");
        assert_eq!(refusal_pointer(r#"{"model":1}"#), "/model");
        assert_eq!(refusal_pointer(r#"{"model":"a","model":"b"}"#), "/model");
        assert_eq!(
            refusal_pointer(r#"{"model":"m","stream":"yes"}"#),
            "/stream"
        );
        for options in ["[]", "[true]", "true"] {
            let body = format!(r#"{{"model":"m","stream_options":{options}}}"#);
            assert_eq!(refusal_pointer(&body), "/stream_options", "{options}");
        }
        assert_eq!(
            refusal_pointer(r#"{"model":"m","max_tokens":-2}"#),
            "/max_tokens"
        );
        assert_eq!(
            refusal_pointer(r#"{"model":"m","x_priority":10}"#),
            "/x_priority"
        );
        let long = format!(r#"{{"model":"m","x_client_id":"{}"}}"#, "c".repeat(65));
        assert_eq!(refusal_pointer(&long), "/x_client_id");
    }

    #[test]
    fn a_key_written_with_escapes_is_the_same_key() {
        assert_eq!(chat(r#"{"mod\u0065l":"m"}"#).unwrap().model, "m");
        assert_eq!(
            refusal_pointer(r#"{"mod\u0065l":"m","model":"n"}"#),
            "/model"
        );
    }

    #[test]
    fn reject_if_busy_is_read_and_stripped_but_foreign_options_pass() {
        let call = chat(r#"{"model":"m","options":{"rejectIfBusy":true}}"#).unwrap();
        assert!(call.reject_if_busy);
        assert_eq!(&call.openai_body("m")[..], br#"{"model":"m"}"#);
        let foreign = r#"{"model":"m","options":{"num_ctx":1}}"#;
        assert_eq!(sent(foreign, "m"), foreign);
    }

    #[test]
    fn a_model_in_the_path_needs_none_in_the_body() {
        let body = Bytes::from_static(br#"{"prompt":"hi"}"#);
        let call = parse(
            ApiDialect::WorkersAi,
            Operation::Run,
            Some("@cf/x".into()),
            body,
        )
        .unwrap();
        assert_eq!(call.model, "@cf/x");
        assert!(!call.stream);
    }

    #[test]
    fn the_adapter_is_read_where_the_body_names_one() {
        let lora = |body: &str| chat(body).unwrap().lora().map(|name| name.into_owned());
        assert_eq!(lora(r#"{"model":"m","lora":"a"}"#).as_deref(), Some("a"));
        assert_eq!(
            lora(r#"{"model":"m","lora":"a\"b"}"#).as_deref(),
            Some("a\"b")
        );
        assert_eq!(
            lora(r#"{"model":"m","lora":"a","lora":"b"}"#).as_deref(),
            Some("b")
        );
        assert_eq!(lora(r#"{"model":"m","lora":7}"#), None);
        assert_eq!(lora(r#"{"model":"m"}"#), None);
    }

    #[test]
    fn a_body_that_was_changed_is_read_again_and_keeps_what_was_said_before() {
        let call = chat(r#"{"model":"m","x_priority":1,"x_client_id":"c","n":1}"#).unwrap();
        assert_eq!(&call.stripped_body()[..], br#"{"model":"m","n":1}"#);
        let changed = Bytes::from_static(br#"{"model":"m","n":2,"max_tokens":5}"#);
        let again = reparse(call, changed).unwrap();
        assert_eq!(
            (again.priority, again.client_id.as_deref()),
            (Some(1), Some("c"))
        );
        assert_eq!(again.max_tokens, Some(5));
        let sent = again.openai_body("b");
        assert_eq!(&sent[..], br#"{"model":"b","n":2,"max_tokens":5}"#);
    }
}
