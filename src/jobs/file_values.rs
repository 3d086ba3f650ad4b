//! Values of inputs and outputs that stand in files: put into files at the submit, put back at the run, kept at the end.
//!
//! Not the files themselves. Stored documents stay small by it; a value that is no large data URI
//! (<https://www.rfc-editor.org/rfc/rfc2397>) and no URL of ours is never touched.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use infergate_core::{AccountId, ModelId, Refusal};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::output::data_uri;
use crate::files::{FileId, FileOrigin, FileRecord, Files, NewFile, Upload, file_in_url, file_url};
use crate::state::Shared;

/// Longest data URI that stays where it is.
const DATA_URI_BYTES_MAX: usize = 64 << 10;
/// Largest uploaded file that becomes a data URI of a run where the model takes URLs.
const INLINE_BYTES_MAX: u64 = 1 << 20;
/// Refusal of an input whose file cannot be had any more.
const FILE_GONE: &str = "names a file that is not there: its time is over, or it never was";
/// Attempts to store a part of an output.
const STORE_ATTEMPTS: usize = 3;
/// Bytes of an upload's piece.
const PIECE_BYTES: usize = 256 << 10;

/// Rules for the files in the inputs of a model.
#[derive(Clone, Debug, Default)]
pub struct InputFileRules {
    /// Members of the input that the model reads as base64: a URL in their place is none, whatever the size.
    encoded: Arc<[Box<str>]>,
    /// Longest input with the files in it, bytes: as a request with them would have.
    pub(super) bytes_max: u64,
}

impl InputFileRules {
    /// Returns the rules in force for a model.
    pub fn of(shared: &Shared, model: &ModelId) -> InputFileRules {
        let snapshot = shared.snapshot.load();
        let found = snapshot.catalog.model(model.as_str());
        let encoded = found.map(|(at, _)| snapshot.models.get(at).task.encoded_members());
        InputFileRules {
            encoded: encoded.unwrap_or_default(),
            bytes_max: snapshot.body_limits().one_body_bytes,
        }
    }

    /// Returns whether the value of a place is read as base64: a member, an item or the body of one.
    fn is_encoded(&self, pointer: &str) -> bool {
        let member = pointer.split('/').nth(2).unwrap_or_default();
        self.encoded.iter().any(|name| **name == *member)
    }
}

/// Form in which the model gets a file of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileForm<'a> {
    DataUri,
    /// URL of the callback listener, whose beginning this is.
    Url(&'a str),
}

/// Account and store of the files of one job.
#[derive(Clone, Copy)]
pub struct JobFiles<'a> {
    /// Store.
    pub files: &'a Arc<Files>,
    /// Owner.
    pub account: &'a AccountId,
    /// URL under which model servers reach the callback listener.
    pub callbacks: Option<&'a str>,
    /// Rules of the model.
    pub rules: &'a InputFileRules,
    /// URL under which clients reach the gateway.
    pub base_url: &'a str,
}

/// Data URI with its parts.
struct DataUri<'a> {
    kind: &'a str,
    bytes: Bytes,
}

impl<'a> DataUri<'a> {
    /// Reads a data URI in base64.
    fn read(text: &'a str) -> Option<DataUri<'a>> {
        let (kind, encoded) = text.strip_prefix("data:")?.split_once(";base64,")?;
        let bytes = STANDARD.decode(encoded).ok()?;
        Some(DataUri {
            kind,
            bytes: bytes.into(),
        })
    }

    /// Returns whether it is an image, a sound or a film.
    fn is_medium(text: &str) -> bool {
        let kinds = ["data:image/", "data:audio/", "data:video/"];
        kinds.iter().any(|kind| text.starts_with(kind))
    }
}

/// The output could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputNotStored;

impl<'a> JobFiles<'a> {
    /// Keeps bytes as a file.
    pub(super) async fn keep(
        self,
        (content_type, bytes): (&str, &Bytes),
        origin: FileOrigin,
        expires_secs: u64,
    ) -> Result<Arc<FileRecord>, Refusal> {
        let mut upload = Upload::begin(self.files, self.account).await?;
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            upload.push(piece).await?;
        }
        let facts = NewFile {
            name: String::new(),
            content_type: content_type.to_owned(),
            metadata: Map::new(),
            origin,
            expires_secs,
        };
        Ok(upload.finish(facts).await?)
    }

    /// Puts large data URIs of an input into files, which `kept` names, and checks the files that it names.
    ///
    /// # Errors
    /// 422: a file is unknown or too large for a run; 413 or 422: a file cannot be kept.
    pub async fn store_values(
        self,
        input: &RawValue,
        expires_secs: u64,
        kept: &mut Vec<FileId>,
    ) -> Result<Option<Box<RawValue>>, Refusal> {
        if !may_have_files(input.get()) {
            return Ok(None);
        }
        let mut length = input.get().len() as u64;
        let mut input = parsed(input)?;
        let mut is_changed = false;
        for (pointer, text) in strings(&mut input) {
            if text.len() > DATA_URI_BYTES_MAX
                && let Some(uri) = DataUri::read(text)
            {
                let file = (uri.kind, &uri.bytes);
                let record = self.keep(file, FileOrigin::Input, expires_secs).await?;
                kept.push(record.id);
                *text = file_url(self.base_url, record.id);
                is_changed = true;
            } else if let Some(id) = file_in_url(text) {
                self.form(id, (text, &mut length), pointer).await?;
            }
        }
        Ok(is_changed.then(|| raw(&input)).flatten())
    }

    /// Returns a file that an input names, with its form at a run; none where it is another gateway's. `length` is
    /// that of the input with the files so far, bytes.
    async fn form(
        self,
        id: FileId,
        (url, length): (&str, &mut u64),
        pointer: String,
    ) -> Result<Option<(Arc<FileRecord>, FileForm<'a>)>, Refusal> {
        let rejected = |message: &str| rejected(&pointer, message);
        let Some(record) = self.files.find(self.account, id).await? else {
            return match url.starts_with(self.base_url) {
                true => Err(rejected(FILE_GONE)),
                false => Ok(None),
            };
        };
        if is_too_large(&record) && !self.rules.is_encoded(&pointer) {
            let callbacks = self.callbacks.ok_or_else(|| {
                rejected(
                    "is a file of more than 1 MiB, which models can read only from a listener of their own: the \
                     operator can set `listen.callbacks`",
                )
            })?;
            return Ok(Some((record, FileForm::Url(callbacks))));
        }
        *length = length.saturating_add(base64_len(record.size));
        if *length > self.rules.bytes_max {
            let max_mib = self.rules.bytes_max >> 20;
            return Err(rejected(&format!(
                "is a file with which the request to the model is longer than {max_mib} MiB, and the model reads no \
                 URLs here: send a smaller one, or have the operator raise `limits.request_body_mib`"
            )));
        }
        Ok(Some((record, FileForm::DataUri)))
    }

    /// Puts files that an input names back as data URIs, and large ones as URLs of the callback listener where the
    /// model takes URLs. These end at `until_ms`, milliseconds since 1970.
    ///
    /// # Errors
    /// A file is gone or too large, or the store cannot be read.
    pub async fn restore_values(
        self,
        input: &RawValue,
        until_ms: u64,
    ) -> Result<Option<Box<RawValue>>, Refusal> {
        if !may_have_files(input.get()) {
            return Ok(None);
        }
        let mut length = input.get().len() as u64;
        let mut input = parsed(input)?;
        let mut is_changed = false;
        for (pointer, text) in strings(&mut input) {
            let Some(id) = file_in_url(text) else {
                continue;
            };
            let place = pointer.clone();
            let form = self.form(id, (text, &mut length), pointer).await?;
            let Some((record, form)) = form else {
                continue;
            };
            is_changed = true;
            if let FileForm::Url(callbacks) = form {
                *text = self.files.download_url_until(callbacks, &record, until_ms);
                continue;
            }
            let read = self.files.read_whole(&record).await;
            let bytes = read.map_err(|error| {
                tracing::warn!(%id, %error, "an input file cannot be read");
                match error.kind() {
                    io::ErrorKind::NotFound => rejected(&place, FILE_GONE),
                    _ => Refusal::JobsUnavailable,
                }
            })?;
            *text = data_uri(&record.content_type, &bytes);
        }
        Ok(is_changed.then(|| raw(&input)).flatten())
    }

    /// Puts media and large data URIs of an output into files, and their signed URLs in their place.
    ///
    /// # Errors
    /// [`OutputNotStored`] after three attempts.
    pub async fn keep_output(
        self,
        output: &RawValue,
    ) -> Result<Option<Box<RawValue>>, OutputNotStored> {
        let text = output.get();
        let is_medium = text.get(1..).is_some_and(DataUri::is_medium);
        let is_large = text.len() > DATA_URI_BYTES_MAX && text.contains("data:");
        if !is_medium && !is_large {
            return Ok(None);
        }
        let Ok(mut output) = serde_json::from_str::<Value>(text) else {
            return Ok(None);
        };
        let mut is_changed = false;
        for (_, text) in strings(&mut output) {
            if !is_medium && text.len() <= DATA_URI_BYTES_MAX {
                continue;
            }
            if let Some(uri) = DataUri::read(text) {
                let record = self.keep_patiently(&uri).await?;
                *text = self.files.download_url(self.base_url, &record);
                is_changed = true;
            }
        }
        Ok(is_changed.then(|| raw(&output)).flatten())
    }

    async fn keep_patiently(self, uri: &DataUri<'_>) -> Result<Arc<FileRecord>, OutputNotStored> {
        let expires_secs = self.files.config().expires_secs;
        for _ in 0..STORE_ATTEMPTS {
            let file = (uri.kind, &uri.bytes);
            match self.keep(file, FileOrigin::Output, expires_secs).await {
                Ok(record) => return Ok(record),
                Err(refusal) => tracing::warn!(?refusal, "a part of an output cannot be stored"),
            }
        }
        Err(OutputNotStored)
    }
}

pub(super) fn rejected(pointer: &str, message: &str) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: pointer.to_owned(),
        message: message.to_owned(),
    }
}

/// Returns whether a file is too large to become part of a request. What came with the request is not.
fn is_too_large(record: &FileRecord) -> bool {
    record.origin != FileOrigin::Input && record.size > INLINE_BYTES_MAX
}

/// Returns whether it is worth it to look at the strings of an input.
fn may_have_files(input: &str) -> bool {
    // A slash may be escaped, where the name of the folder is not.
    let has_data = input.len() > DATA_URI_BYTES_MAX && input.contains("data:");
    has_data || input.contains("files")
}

/// Length of so many bytes in base64 (RFC 4648).
fn base64_len(bytes: u64) -> u64 {
    bytes.div_ceil(3).saturating_mul(4)
}

fn parsed(input: &RawValue) -> Result<Value, Refusal> {
    serde_json::from_str(input.get()).map_err(|error| Refusal::BadRequest {
        pointer: "/input".to_owned(),
        message: error.to_string(),
    })
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

/// Strings of a value with their places, as in the body of a create.
fn strings(value: &mut Value) -> Vec<(String, &mut String)> {
    let mut found = Vec::new();
    gather(value, "/input".to_owned(), &mut found);
    found
}

fn gather<'a>(value: &'a mut Value, place: String, found: &mut Vec<(String, &'a mut String)>) {
    match value {
        Value::String(text) => found.push((place, text)),
        Value::Array(list) => {
            for (at, value) in list.iter_mut().enumerate() {
                gather(value, format!("{place}/{at}"), found);
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                gather(value, format!("{place}/{name}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FilesConfig;
    use crate::telemetry::Clock;

    fn raw_of(text: String) -> Box<RawValue> {
        RawValue::from_string(text).unwrap()
    }

    fn rules(encoded: &[&str]) -> InputFileRules {
        InputFileRules {
            encoded: encoded.iter().map(|name| Box::from(*name)).collect(),
            bytes_max: 4 << 20,
        }
    }

    #[tokio::test]
    async fn a_large_data_uri_is_stored_and_put_back_and_a_small_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let account = AccountId::from("a");
        let rules = rules(&[]);
        let own = JobFiles {
            files: &files,
            account: &account,
            callbacks: None,
            rules: &rules,
            base_url: "http://h",
        };
        let large = data_uri("image/png", &vec![7; DATA_URI_BYTES_MAX]);
        let text = format!(r#"{{"n":1.5,"small":"data:a;base64,YQ==","large":["{large}"]}}"#);
        let input = raw_of(text);
        let mut kept = Vec::new();
        let stored = own.store_values(&input, 60, &mut kept).await;
        let stored = stored.unwrap().unwrap();
        assert!(stored.get().len() < 200 && stored.get().contains("data:a;base64,YQ=="));
        assert_eq!(kept.len(), 1);
        let back = own.restore_values(&stored, 0).await.unwrap().unwrap();
        assert_eq!(back.get(), input.get());
        let other = AccountId::from("b");
        let foreign = JobFiles {
            account: &other,
            ..own
        };
        assert!(foreign.restore_values(&stored, 0).await.is_err());
        let elsewhere = JobFiles {
            base_url: "http://other",
            ..foreign
        };
        let left = elsewhere.restore_values(&stored, 0).await.unwrap();
        assert!(left.is_none());
    }

    #[tokio::test]
    async fn a_large_file_is_a_url_only_where_the_model_takes_urls() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let account = AccountId::from("a");
        let rules = rules(&["image"]);
        let without_listener = JobFiles {
            files: &files,
            account: &account,
            callbacks: None,
            rules: &rules,
            base_url: "http://h",
        };
        let own = JobFiles {
            callbacks: Some("http://c"),
            ..without_listener
        };
        let large = Bytes::from(vec![7; INLINE_BYTES_MAX as usize + 1]);
        let record = own.keep(("image/png", &large), FileOrigin::Upload, 60);
        let record = record.await.unwrap();
        let url = file_url("http://h", record.id);
        let refusal = |refused: Result<_, Refusal>| match refused {
            Err(Refusal::Rejected {
                status: 422,
                pointer,
                message,
            }) => (pointer, message),
            other => panic!("{:?}", other.map(|_| ())),
        };

        // A model that takes URLs gets one, and needs the listener for it.
        let by_url = raw_of(format!(r#"{{"picture":"{url}"}}"#));
        let given = own.restore_values(&by_url, 9).await.unwrap().unwrap();
        assert!(given.get().starts_with(r#"{"picture":"http://c/"#));
        let mut kept = Vec::new();
        let refused = without_listener.store_values(&by_url, 60, &mut kept);
        let (pointer, message) = refusal(refused.await);
        assert_eq!(pointer, "/input/picture");
        assert!(message.contains("`listen.callbacks`"), "{message}");

        // What is read as base64 is the file itself, with a listener and without.
        let encoded = data_uri("image/png", &large);
        for own in [own, without_listener] {
            for (input, expected) in [
                (
                    format!(r#"{{"image":"{url}"}}"#),
                    format!(r#"{{"image":"{encoded}"}}"#),
                ),
                (
                    format!(r#"{{"image":["{url}"]}}"#),
                    format!(r#"{{"image":["{encoded}"]}}"#),
                ),
            ] {
                let input = raw_of(input);
                assert!(
                    own.store_values(&input, 60, &mut Vec::new())
                        .await
                        .unwrap()
                        .is_none()
                );
                let given = own.restore_values(&input, 9).await.unwrap().unwrap();
                assert!(given.get() == expected);
            }
        }

        // All together as long as a request may be: 2 × 1.33 MiB are within 4 MiB, 3 are not.
        let many = |count| raw_of(format!(r#"{{"image":{:?}}}"#, vec![url.as_str(); count]));
        assert!(
            own.store_values(&many(2), 60, &mut Vec::new())
                .await
                .is_ok()
        );
        let (pointer, message) = refusal(own.store_values(&many(3), 60, &mut Vec::new()).await);
        assert_eq!(pointer, "/input/image/2");
        assert!(message.contains("longer than 4 MiB") && message.contains("request_body_mib"));
        assert!(own.restore_values(&many(3), 9).await.is_err());
    }

    #[tokio::test]
    async fn media_of_an_output_become_signed_downloads() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let account = AccountId::from("a");
        let rules = rules(&[]);
        let own = JobFiles {
            files: &files,
            account: &account,
            callbacks: None,
            rules: &rules,
            base_url: "https://h",
        };
        let image = raw_of(r#""data:image/png;base64,YWJj""#.to_owned());
        let kept = own.keep_output(&image).await.unwrap().unwrap();
        let url: String = serde_json::from_str(kept.get()).unwrap();
        let (path, query) = url.split_once('?').unwrap();
        let found = files
            .find_signed(file_in_url(path).unwrap(), query)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&files.read_whole(&found).await.unwrap()[..], b"abc");
        let text = raw_of(r#"["data:image/png;base64,YWJj"]"#.to_owned());
        assert!(own.keep_output(&text).await.unwrap().is_none());
        let nowhere = FilesConfig {
            file_max_mib: 0,
            ..FilesConfig::default()
        };
        files.configure(nowhere);
        let failed = own.keep_output(&image).await;
        assert_eq!(failed.err(), Some(OutputNotStored));
    }
}
