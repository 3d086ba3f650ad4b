//! A client's input on its way to a plain HTTP server: one JSON object, files in base64, other
//! names of a member brought back to the documented one, defaults filled in.
//!
//! Bounds and types are the schema's business, which was checked before; what is wrong here all the
//! same is left as it is, but for files, which no schema can check.

use infergate_sdk::{Edit, Prepared, Quantity, Request, TaskError, View};

use std::borrow::Cow;

use crate::METRIC_MAX;
use crate::base64;
use crate::json::{Byte, Members, first_of_list, list, member, number, quoted_plain, text};

/// Members that are for the gateway: they are not passed on.
const FOR_THE_GATEWAY: [&str; 3] = ["model", "options", "stream_options"];
const FOR_THE_GATEWAY_ALSO: [&str; 2] = ["x_client_id", "x_priority"];

/// Images of one request.
const IMAGES_MAX: usize = 100;

/// The payload being made.
#[derive(Debug, Default)]
pub struct Input<'a> {
    members: Members<'a>,
    metrics: Vec<Quantity>,
}

impl<'a> Input<'a> {
    /// Reads the body. One that is not JSON is a file, to stand under `file`.
    pub fn read(request: &'a Request, file: Option<&str>) -> Result<Input<'a>, TaskError> {
        let View::Whole(body) = &request.body else {
            return Err(TaskError::Broken("the whole body is needed".to_owned()));
        };
        let mut input = Input::default();
        if is_json(&request.content_type) {
            input.members = Members::parse(body)
                .ok_or_else(|| rejected("invalid_input", "", "expected a JSON object"))?;
            input.members.drop_nulls();
            input.members.retain(|name| !is_for_the_gateway(name));
        } else if let Some(file) = file {
            if body.is_empty() {
                return Err(rejected("invalid_input", "", "the body is empty"));
            }
            input.members.set(file, quoted_plain(&base64::encode(body)));
        } else {
            let message = "expected a body of the type application/json";
            return Err(rejected("invalid_input", "", message));
        }
        Ok(input)
    }

    /// Brings another name of a member back to the documented one, which wins when both are there.
    pub fn alias(&mut self, alias: &str, name: &str) {
        self.members.rename(alias, name);
    }

    /// Adds what the client left out.
    pub fn fill(&mut self, defaults: &[(&str, &'static str)]) {
        for (name, json) in defaults {
            if self.members.get(name).is_none() {
                self.members.set(name, *json);
            }
        }
    }

    /// Brings a file to base64; how many bytes it has, when there is one.
    pub fn file(&mut self, name: &str) -> Result<Option<usize>, TaskError> {
        let Some(json) = self.members.get(name) else {
            return Ok(None);
        };
        let (base64, bytes) = file(json, &format!("/{name}"))?;
        // Mostly it is clean base64 already: megabytes that need no copy.
        let is_clean = json.len() == base64.len() + 2 && json[1..].starts_with(&*base64);
        if !is_clean {
            let json = quoted_plain(&base64);
            self.members.set(name, json);
        }
        Ok(Some(bytes))
    }

    /// As [`Input::file`], where it may be a list of files too; how many there are.
    pub fn files(&mut self, name: &str) -> Result<usize, TaskError> {
        let all = self
            .members
            .get(name)
            .and_then(|json| first_of_list(json, IMAGES_MAX));
        let is_text = |json: &&str| json.starts_with('"');
        let Some((all, count)) = all.filter(|(all, _)| all.first().is_some_and(is_text)) else {
            return Ok(usize::from(self.file(name)?.is_some()));
        };
        if count > IMAGES_MAX {
            let message = format!("expected at most {IMAGES_MAX} files, found {count}");
            return Err(rejected("invalid_input", &format!("/{name}"), &message));
        }
        let mut files = Vec::with_capacity(all.len());
        for (at, one) in all.iter().enumerate() {
            files.push(quoted_plain(&file(one, &format!("/{name}/{at}"))?.0));
        }
        let count = files.len();
        self.members.set(name, format!("[{}]", files.join(",")));
        Ok(count)
    }

    /// Counts the characters of a member as `input_characters`.
    pub fn report_characters(&mut self, name: &str) {
        self.report("input_characters", self.characters(name) as f64);
    }

    /// Brings an image that may be there to base64, and counts it and the `prompt`.
    pub fn image(&mut self) -> Result<(), TaskError> {
        let bytes = self.file("image")?;
        self.report("input_images", f64::from(bytes.map_or(0, |_| 1)));
        self.report("image_bytes", bytes.unwrap_or(0) as f64);
        self.report_characters("prompt");
        Ok(())
    }

    /// It must be there, or one of its other names.
    pub fn require(&self, name: &str) -> Result<(), TaskError> {
        match self.members.get(name) {
            Some(_) => Ok(()),
            None => {
                let message = format!("`{name}` is required");
                Err(rejected("invalid_input", "", &message))
            }
        }
    }

    /// It has this member.
    pub fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some()
    }

    /// A member that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.members.get(name).and_then(number)
    }

    /// Characters of a member that is a text, or a list of texts.
    pub fn characters(&self, name: &str) -> u64 {
        let json = self.members.get(name).unwrap_or("");
        let length = |json: &str| text(json).map_or(0, |text| text.chars().count() as u64);
        match list(json) {
            Some(all) => all.into_iter().map(length).sum(),
            None => length(json),
        }
    }

    /// Reports a metric known before the run; nothing is not reported, nor what is beyond 2^53.
    pub fn report(&mut self, name: &str, value: f64) {
        if value > 0.0 && value <= METRIC_MAX {
            self.metrics.push((name.to_owned(), value));
        }
    }

    /// The payload with its metrics, for the path that plain HTTP servers have.
    pub fn prepared(self) -> Prepared {
        Prepared {
            edit: Edit::Replace(self.members.write()),
            metrics: self.metrics,
            ..untouched()
        }
    }
}

/// The body as it is, for the path that plain HTTP servers have.
pub fn untouched() -> Prepared {
    Prepared {
        backend_path: Some("/run".to_owned()),
        ..Prepared::default()
    }
}

/// Whether a body of this type is JSON; one of no type is.
pub fn is_json(content_type: &str) -> bool {
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
    if let Some(text) = text(json) {
        let file = match &text {
            Cow::Borrowed(text) => base64::read(text).map(|file| (file.base64, file.bytes)),
            Cow::Owned(text) => {
                base64::read(text).map(|file| (Cow::Owned(file.base64.into_owned()), file.bytes))
            }
        };
        return file.ok_or_else(|| rejected("bad_base64", pointer, "this is not base64"));
    }
    let bytes = listed(json).unwrap_or_default();
    if bytes.is_empty() {
        let message = "expected base64, or a list of whole numbers from 0 to 255";
        return Err(rejected("invalid_input", pointer, message));
    }
    Ok((Cow::Owned(base64::encode(&bytes)), bytes.len()))
}

/// Bytes as a list of numbers.
fn listed(json: &str) -> Option<Vec<u8>> {
    let bytes: Vec<Byte> = serde_json::from_str(json).ok()?;
    Some(bytes.into_iter().map(|Byte(byte)| byte).collect())
}

/// The caller's fault, and where it is.
pub fn rejected(code: &str, pointer: &str, message: &str) -> TaskError {
    TaskError::rejected(code, message, Some(pointer))
}
