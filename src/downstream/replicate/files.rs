//! Routes of files: upload, list, show, delete, download.
//!
//! Not their store: a file of another account is as unknown as one that is not there; no route leaves an event.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::api::replicate::{FileView, PageView, ReplicateRoute};
use infergate_core::job::StoreTime;
use infergate_core::model::AccountSpec;
use infergate_core::{AccountId, Refusal};
use serde_json::{Map, Value};

use super::answer::RouteAnswer;
use super::{dispatch, objects};
use crate::downstream::body_pieces::BodyPieces;
use crate::downstream::multipart::{BrokenForm, FormReader, PartEvent, PartHead};
use crate::downstream::session::Session;
use crate::files::{FileId, FileOrigin, FilePlace, FileRecord, Files, NewFile, Upload, file_url};
use crate::jobs::{Jobs, rfc3339_micros};
use crate::pipeline::{
    AuthenticatedRequest, Downstream, RequestContext, RequestError, ResponseHead,
};
use crate::state::Shared;

/// Bytes of a form besides its file.
const FORM_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a field that is no file.
const FIELD_BYTES_MAX: usize = 64 << 10;
/// Objects of a list's part.
const PAGE_OBJECTS: usize = 100;

fn unknown() -> Refusal {
    Refusal::Rejected {
        status: 404,
        pointer: String::new(),
        message: "no such file: it is another account's, its time is over, or it never was"
            .to_owned(),
    }
}

fn unprocessable(message: impl Into<String>) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: String::new(),
        message: message.into(),
    }
}

impl From<BrokenForm> for RequestError {
    fn from(error: BrokenForm) -> RequestError {
        unprocessable(error.to_string()).into()
    }
}

/// Answers a route of files.
pub(super) async fn answer(
    shared: &Shared,
    jobs: &Jobs,
    session: &mut Session,
    ctx: &mut RequestContext,
    (head, route): (&AuthenticatedRequest, ReplicateRoute),
) -> Result<(), RequestError> {
    let files = &jobs.files;
    let account = &head.account.spec;
    let base_url = objects::base_url(session, jobs);
    let answer = match route {
        ReplicateRoute::CreateFile => {
            head.account.take_unit(ctx.arrival)?;
            let record = upload(shared, files, session, ctx, account).await?;
            RouteAnswer {
                status: 201,
                ..RouteAnswer::ok(object(files, &record, &base_url))
            }
        }
        ReplicateRoute::ListFiles(query) => list(files, account, &query, &base_url)?,
        ReplicateRoute::GetFile(id) => {
            let record = find(files, &account.id, &id).await?;
            RouteAnswer::ok(object(files, &record, &base_url))
        }
        ReplicateRoute::DeleteFile(id) => {
            let record = find(files, &account.id, &id).await?;
            files.remove(record.id).await.map_err(|error| {
                tracing::warn!(%error, "a file cannot be deleted");
                Refusal::JobsUnavailable
            })?;
            let mut head = ResponseHead::new(204);
            head.append("x-request-id", ctx.request_id().as_bytes());
            head.extend(ctx.page_origin.lines());
            let sent = session.respond(head, Bytes::new()).await;
            return sent.map_err(|_| RequestError::Aborted);
        }
        ReplicateRoute::DownloadFile(id, query) => {
            return download_signed(files, session, ctx, (&id, &query)).await;
        }
        _ => return Err(Refusal::NoSuchRoute.into()),
    };
    dispatch::send(session, ctx, answer).await
}

async fn find(files: &Files, account: &AccountId, id: &str) -> Result<Arc<FileRecord>, Refusal> {
    let id: FileId = id.parse().map_err(|_| unknown())?;
    files.find(account, id).await?.ok_or_else(unknown)
}

/// Writes the object of a file.
fn object(files: &Files, record: &FileRecord, base_url: &str) -> Vec<u8> {
    let view = FileView {
        id: record.id.to_string(),
        name: &record.name,
        content_type: &record.content_type,
        size: record.size,
        sha256: &record.sha256,
        md5: &record.md5,
        metadata: &record.metadata,
        created_at: rfc3339_micros(StoreTime(record.created_ms)),
        expires_at: rfc3339_micros(StoreTime(record.expires_ms)),
        get: file_url(base_url, record.id),
        download: files.download_url(base_url, record),
    };
    view.to_bytes()
}

fn list(
    files: &Files,
    account: &AccountSpec,
    query: &str,
    base_url: &str,
) -> Result<RouteAnswer, Refusal> {
    let mut pairs = query.split('&');
    let cursor = pairs.find_map(|pair| pair.strip_prefix("cursor="));
    let place = |text| {
        FilePlace::read(text).ok_or_else(|| unprocessable("`cursor` is not one of this list"))
    };
    let after = cursor.map(place).transpose()?;
    let mut found = files.list(&account.id, after, PAGE_OBJECTS + 1);
    let has_more = found.len() > PAGE_OBJECTS;
    found.truncate(PAGE_OBJECTS);
    let last = found.last().filter(|_| has_more);
    let page = PageView {
        previous: None,
        next: last.map(|last| format!("{base_url}/v1/files?cursor={}", FilePlace::of(last))),
        results: found
            .iter()
            .map(|record| object(files, record, base_url))
            .collect(),
    };
    Ok(RouteAnswer::ok(page.to_bytes()))
}

/// Form of an upload as far as it has come.
#[derive(Default)]
struct UploadForm {
    /// Field that is read; none for those without a meaning.
    field: Option<FormField>,
    upload: Option<Upload>,
    content: PartHead,
    texts: [Vec<u8>; 3],
}

/// Field of the form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FormField {
    Content,
    Metadata,
    Name,
    Kind,
}

impl FormField {
    fn of(name: &str) -> Option<FormField> {
        match name {
            "content" => Some(FormField::Content),
            "metadata" => Some(FormField::Metadata),
            "filename" => Some(FormField::Name),
            "type" => Some(FormField::Kind),
            _ => None,
        }
    }
}

impl UploadForm {
    async fn take(
        &mut self,
        files: &Arc<Files>,
        account: &AccountId,
        event: PartEvent,
    ) -> Result<(), RequestError> {
        match event {
            PartEvent::Head(head) => {
                self.field = FormField::of(&head.name);
                if self.field == Some(FormField::Content) {
                    if self.upload.is_some() {
                        return Err(unprocessable("`content` comes twice").into());
                    }
                    let upload = Upload::begin(files, account).await;
                    self.upload = Some(upload.map_err(Refusal::from)?);
                    self.content = head;
                }
            }
            PartEvent::Data(data) => match self.field {
                None => {}
                Some(FormField::Content) => {
                    if let Some(upload) = &mut self.upload {
                        upload.push(data).await.map_err(Refusal::from)?;
                    }
                }
                Some(field) => {
                    let text = &mut self.texts[field as usize - 1];
                    text.extend_from_slice(&data);
                    if text.len() > FIELD_BYTES_MAX {
                        return Err(unprocessable("a field has more than 64 KiB").into());
                    }
                }
            },
            PartEvent::End => {}
        }
        Ok(())
    }

    async fn finish(self, expires_secs: u64) -> Result<Arc<FileRecord>, Refusal> {
        let upload = self.upload;
        let upload = upload.ok_or_else(|| unprocessable("`content` is required"))?;
        let [metadata, name, kind] = self.texts;
        let metadata = match metadata.is_empty() {
            true => Map::new(),
            false => serde_json::from_slice::<Map<String, Value>>(&metadata)
                .map_err(|_| unprocessable("`metadata` must be a JSON object"))?,
        };
        let text = |field: Vec<u8>, other: Option<String>| match field.is_empty() {
            true => other.unwrap_or_default(),
            false => String::from_utf8_lossy(&field).into_owned(),
        };
        let facts = NewFile {
            name: text(name, self.content.filename),
            content_type: text(kind, self.content.content_type),
            metadata,
            origin: FileOrigin::Upload,
            expires_secs,
        };
        Ok(upload.finish(facts).await?)
    }
}

/// Receives a file, of which a form that is cut leaves nothing.
async fn upload(
    shared: &Shared,
    files: &Arc<Files>,
    session: &mut Session,
    ctx: &mut RequestContext,
    account: &AccountSpec,
) -> Result<Arc<FileRecord>, RequestError> {
    if shared.drain.is_draining() {
        return Err(Refusal::Draining.into());
    }
    let config = files.config();
    let too_large = |error| match error {
        RequestError::Refused(Refusal::BodyTooLarge) => files.too_large().into(),
        other => other,
    };
    let kind = session.request_head().headers.text_of("content-type");
    let mut reader = FormReader::new(kind.unwrap_or_default())?;
    let limit = (config.file_max_mib << 20) + FORM_BYTES_MAX;
    let pieces = BodyPieces::begin(shared, session, ctx, limit).await;
    let mut pieces = pieces.map_err(too_large)?;
    let mut form = UploadForm::default();
    let mut is_whole = false;
    while let Some(piece) = pieces.next(shared, session, ctx).await.map_err(too_large)? {
        reader.push(&piece);
        while let Some(event) = reader.next()?.filter(|_| !is_whole) {
            is_whole = event == PartEvent::End;
            form.take(files, &account.id, event).await?;
        }
    }
    if !is_whole {
        return Err(BrokenForm("its last boundary is missing").into());
    }
    Ok(form.finish(config.expires_secs).await?)
}

/// Sends what a signed URL names, or a range of it.
pub(in crate::downstream) async fn download_signed(
    files: &Files,
    session: &mut Session,
    ctx: &RequestContext,
    (id, query): (&str, &str),
) -> Result<(), RequestError> {
    let id = id.parse().map_err(|_| unknown())?;
    let record = files.find_signed(id, query).await?;
    let record = record.ok_or_else(unknown)?;
    download(files, session, ctx, &record).await
}

/// Sends a file, or a range of it (<https://www.rfc-editor.org/rfc/rfc9110#section-14>).
async fn download(
    files: &Files,
    session: &mut Session,
    ctx: &RequestContext,
    record: &FileRecord,
) -> Result<(), RequestError> {
    let wanted = session.request_head().headers.text_of("range");
    let range = wanted.and_then(|text| read_range(text, record.size));
    let (status, range) = match range {
        None => (200, 0..record.size),
        Some(Some(range)) => (206, range),
        Some(None) => {
            return Err(Refusal::Rejected {
                status: 416,
                pointer: String::new(),
                message: format!("the file has {} bytes", record.size),
            }
            .into());
        }
    };
    let mut head = ResponseHead::new(status);
    head.set_length(range.end - range.start);
    head.append("content-type", record.content_type.as_bytes());
    head.append("accept-ranges", b"bytes");
    head.append("etag", format!("\"{}\"", record.md5).as_bytes());
    if status == 206 {
        let place = format!("bytes {}-{}/{}", range.start, range.end - 1, record.size);
        head.append("content-range", place.as_bytes());
    }
    // A page that a user has uploaded is not one of this host's.
    head.append("content-disposition", b"attachment");
    head.append("x-content-type-options", b"nosniff");
    head.append("cache-control", b"private");
    head.append("x-request-id", ctx.request_id().as_bytes());
    head.extend(ctx.page_origin.lines());
    let opened = files.read(record, range).await;
    let mut reader = opened.map_err(|error| match error.kind() {
        // Deleted a moment ago.
        io::ErrorKind::NotFound => unknown(),
        _ => {
            tracing::warn!(id = %record.id, %error, "a file cannot be read");
            Refusal::JobsUnavailable
        }
    })?;
    let gone = |_| RequestError::Aborted;
    session.start(head).await.map_err(gone)?;
    loop {
        match reader.read().await {
            Ok(Some(piece)) => session.write(piece).await.map_err(gone)?,
            Ok(None) => return session.finish(Bytes::new()).await.map_err(gone),
            Err(error) => {
                tracing::warn!(id = %record.id, %error, "a file cannot be read");
                return Err(RequestError::Aborted);
            }
        }
    }
}

/// Reads a range of a file of `size` bytes. The whole file is meant where there is none; the inner none is a range that
/// the file has nothing of.
fn read_range(text: &str, size: u64) -> Option<Option<Range<u64>>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (from.is_empty(), to.is_empty()) {
        (true, true) => return None,
        (true, false) => size.saturating_sub(to.parse().ok()?)..size,
        (false, true) => from.parse().ok()?..size,
        (false, false) => {
            let (from, to) = (from.parse().ok()?, to.parse::<u64>().ok()?);
            if to < from {
                return None;
            }
            from..to.saturating_add(1).min(size)
        }
    };
    Some((range.start < range.end).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_the_file() {
        for (text, expected) in [
            ("bytes=0-4", Some(Some(0..5))),
            ("bytes=8-99", Some(Some(8..10))),
            ("bytes=3-", Some(Some(3..10))),
            ("bytes=-4", Some(Some(6..10))),
            ("bytes=-40", Some(Some(0..10))),
            ("bytes=10-", Some(None)),
            ("bytes=-0", Some(None)),
            ("bytes=4-3", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("lines=1-2", None),
        ] {
            assert_eq!(read_range(text, 10), expected, "{text}");
        }
    }
}
