//! Conversion of a client's input into the payload of a plain HTTP server.
//!
//! The payload is one JSON object: files in base64, aliases of members replaced by the documented names,
//! defaults filled in. Bounds and types were checked against the schema before and are not checked here;
//! only files are, because no schema can.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::values::{METRIC_MAX, Rejection, TaskBody, TaskError, TaskRequest};
use crate::base64;
use crate::json::{
    Byte, Members, first_of_list, member, parse_list, parse_number, parse_string,
    to_plain_json_string,
};

/// Members for the gateway, which are not passed on.
const FOR_THE_GATEWAY: [&str; 3] = ["model", "options", "stream_options"];
const FOR_THE_GATEWAY_ALSO: [&str; 2] = ["x_client_id", "x_priority"];

/// Images of one request.
const IMAGES_MAX: usize = 100;

/// The payload being made.
#[derive(Debug, Default)]
pub(super) struct TaskInput<'a> {
    members: Members<'a>,
    metrics: Vec<(String, f64)>,
}

impl<'a> TaskInput<'a> {
    /// Reads the body. A body that is not JSON is a file and is put under `file`.
    pub(super) fn read(
        request: &'a TaskRequest,
        file: Option<&str>,
    ) -> Result<TaskInput<'a>, TaskError> {
        let TaskBody::Whole(body) = &request.body else {
            return Err(TaskError::Broken("the whole body is needed".to_owned()));
        };
        let mut input = TaskInput::default();
        if is_json(&request.content_type) {
            input.members = Members::parse(body)
                .ok_or_else(|| rejection("invalid_input", "", "expected a JSON object"))?;
            input.members.drop_nulls();
            input.members.retain(|name| !is_for_the_gateway(name));
        } else if let Some(file) = file {
            if body.is_empty() {
                return Err(rejection("invalid_input", "", "the body is empty"));
            }
            input
                .members
                .set(file, to_plain_json_string(&base64::encode(body)));
        } else {
            let message = "expected a body of the type application/json";
            return Err(rejection("invalid_input", "", message));
        }
        Ok(input)
    }

    /// Moves the value of an alias to the documented name, which wins when both are present.
    pub(super) fn resolve_alias(&mut self, alias: &str, name: &str) {
        self.members.rename(alias, name);
    }

    /// Adds defaults of absent members.
    pub(super) fn fill_defaults(&mut self, defaults: &[(&'static str, &'static str)]) {
        for (name, json) in defaults {
            if self.members.get(name).is_none() {
                self.members.set(name, *json);
            }
        }
    }

    /// Converts a file to base64; returns its size in bytes, if present.
    pub(super) fn convert_file(&mut self, name: &str) -> Result<Option<usize>, TaskError> {
        let Some(json) = self.members.get(name) else {
            return Ok(None);
        };
        let (base64, bytes) = file(json, &format!("/{name}"))?;
        // Mostly it is clean base64 already: megabytes that need no copy.
        let is_clean = json.len() == base64.len() + 2 && json[1..].starts_with(&*base64);
        if !is_clean {
            let json = to_plain_json_string(&base64);
            self.members.set(name, json);
        }
        Ok(Some(bytes))
    }

    /// As [`TaskInput::convert_file`], for a file or a list of files; returns their number.
    pub(super) fn convert_files(&mut self, name: &str) -> Result<usize, TaskError> {
        let all = self.members.get(name);
        let all = all.and_then(|json| first_of_list(json, IMAGES_MAX));
        let is_text = |json: &&str| json.starts_with('"');
        let Some((all, count)) = all.filter(|(all, _)| all.first().is_some_and(is_text)) else {
            return Ok(usize::from(self.convert_file(name)?.is_some()));
        };
        if count > IMAGES_MAX {
            let message = format!("expected at most {IMAGES_MAX} files, found {count}");
            return Err(rejection("invalid_input", &format!("/{name}"), &message));
        }
        let mut files = Vec::with_capacity(all.len());
        for (at, one) in all.iter().enumerate() {
            files.push(to_plain_json_string(
                &file(one, &format!("/{name}/{at}"))?.0,
            ));
        }
        let count = files.len();
        self.members.set(name, format!("[{}]", files.join(",")));
        Ok(count)
    }

    /// Refuses input without this member. Aliases must have been replaced before.
    pub(super) fn require(&self, name: &str) -> Result<(), TaskError> {
        match self.members.get(name) {
            Some(_) => Ok(()),
            None => {
                let message = format!("`{name}` is required");
                Err(rejection("invalid_input", "", &message))
            }
        }
    }

    /// Returns whether this member is present.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some()
    }

    /// A member that is a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.members.get(name).and_then(parse_number)
    }

    /// Characters of a member that is a text, or a list of texts.
    pub(super) fn characters(&self, name: &str) -> u64 {
        let json = self.members.get(name).unwrap_or("");
        let length = |json: &str| parse_string(json).map_or(0, |text| text.chars().count() as u64);
        match parse_list(json) {
            Some(all) => all.into_iter().map(length).sum(),
            None => length(json),
        }
    }

    /// Records a metric known before the run, unless it is 0 or beyond [`METRIC_MAX`].
    pub(super) fn report(&mut self, name: &str, value: f64) {
        if value > 0.0 && value <= METRIC_MAX {
            self.metrics.push((name.to_owned(), value));
        }
    }

    /// The payload, and its metrics.
    pub(super) fn into_payload(self) -> (Vec<u8>, Vec<(String, f64)>) {
        (self.members.to_json(), self.metrics)
    }
}

/// Returns whether a body of this content type is JSON; an empty type counts as JSON.
pub(super) fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or("").trim();
    let kind = kind.to_ascii_lowercase();
    kind.is_empty() || kind == "application/json" || kind.ends_with("+json")
}

fn is_for_the_gateway(name: &str) -> bool {
    FOR_THE_GATEWAY.contains(&name)
        || FOR_THE_GATEWAY_ALSO
            .iter()
            .any(|start| name.starts_with(start))
}

/// A file in any of its forms: base64, a list of bytes, or an object with either as `body`.
fn file<'a>(json: &'a str, pointer: &str) -> Result<(Cow<'a, str>, usize), TaskError> {
    if json.starts_with('{') {
        let body = member(json, "body").unwrap_or("");
        return plain_file(body, &format!("{pointer}/body"));
    }
    plain_file(json, pointer)
}

fn plain_file<'a>(json: &'a str, pointer: &str) -> Result<(Cow<'a, str>, usize), TaskError> {
    if let Some(text) = parse_string(json) {
        let file = match &text {
            Cow::Borrowed(text) => base64::read(text).map(|file| (file.base64, file.bytes)),
            Cow::Owned(text) => {
                base64::read(text).map(|file| (Cow::Owned(file.base64.into_owned()), file.bytes))
            }
        };
        return file.ok_or_else(|| rejection("bad_base64", pointer, "this is not base64"));
    }
    let bytes = parse_bytes(json).unwrap_or_default();
    if bytes.is_empty() {
        let message = "expected base64, or a list of whole numbers from 0 to 255";
        return Err(rejection("invalid_input", pointer, message));
    }
    Ok((Cow::Owned(base64::encode(&bytes)), bytes.len()))
}

/// Bytes given as a list of numbers.
fn parse_bytes(json: &str) -> Option<Vec<u8>> {
    let bytes: Vec<Byte> = serde_json::from_str(json).ok()?;
    Some(bytes.into_iter().map(|Byte(byte)| byte).collect())
}

/// A client error at a place in the body.
pub(super) fn rejection(code: &str, pointer: &str, message: &str) -> TaskError {
    TaskError::Rejected(Rejection {
        status: 400,
        code: code.to_owned(),
        message: message.to_owned(),
        pointer: Some(pointer.to_owned()),
    })
}
