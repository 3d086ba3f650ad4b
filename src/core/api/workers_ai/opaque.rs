//! Detection of `run` bodies that are an image or a sound instead of JSON.
//!
//! Not a media parser: only the first byte is read. Clients seldom declare the right content type
//! (curl calls every body a form). A declared type is used only where it names an input of the task;
//! otherwise the first byte decides.

use std::sync::Arc;

use crate::Refusal;
use crate::model::Task;

/// Content type of bytes without a declared one.
const UNNAMED: &str = "application/octet-stream";

/// The content type of a body that is not JSON; none where it is to be read as JSON.
///
/// # Errors
/// [`Refusal::BadRequest`] for a body of parts, and for none where there must be one.
pub(super) fn content_type(
    task: Task,
    declared: Option<&str>,
    body: &[u8],
) -> Result<Option<Arc<str>>, Refusal> {
    if task == Task::DumbPipe {
        return Ok(Some(declared.unwrap_or(UNNAMED).into()));
    }
    let kind = declared
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim();
    let kind = kind.to_ascii_lowercase();
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if kind.starts_with("multipart/") && !is_object {
        return Err(bad_body(match task.takes_bytes() {
            true => "a body of parts is not taken: send the bytes themselves, or JSON",
            false => "a body of parts is not taken: send JSON",
        }));
    }
    if !task.takes_bytes() || kind == "application/json" || kind.ends_with("+json") {
        return Ok(None);
    }
    let named = ["image/", "audio/", "video/"]
        .iter()
        .any(|family| kind.starts_with(family));
    if is_object && !named && kind != UNNAMED {
        return Ok(None);
    }
    if body.is_empty() {
        return Err(bad_body(
            "the body is empty: send the bytes themselves, or JSON",
        ));
    }
    Ok(Some(match (named, declared) {
        (true, Some(declared)) => declared.into(),
        _ => UNNAMED.into(),
    }))
}

fn bad_body(message: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: String::new(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURL: Option<&str> = Some("application/x-www-form-urlencoded");
    const PNG: &[u8] = b"\x89PNG";

    fn read(task: Task, declared: Option<&str>, body: &[u8]) -> Option<String> {
        let read = content_type(task, declared, body).unwrap();
        read.map(|kind| kind.as_ref().to_owned())
    }

    #[test]
    fn the_first_byte_decides_where_the_client_does_not_say_what_it_sends() {
        let task = Task::ImageClassification;
        for declared in [None, CURL, Some("text/plain")] {
            assert_eq!(
                read(task, declared, PNG).as_deref(),
                Some(UNNAMED),
                "{declared:?}"
            );
            assert_eq!(read(task, declared, b" \n{}"), None, "{declared:?}");
        }
        assert_eq!(
            read(task, Some("image/png; x=1"), PNG).as_deref(),
            Some("image/png; x=1")
        );
        assert_eq!(
            read(task, Some("IMAGE/PNG"), b"{").as_deref(),
            Some("IMAGE/PNG")
        );
        assert_eq!(read(task, Some(UNNAMED), b"{").as_deref(), Some(UNNAMED));
        assert_eq!(
            read(task, Some("application/json; charset=utf-8"), PNG),
            None
        );
        assert_eq!(read(task, Some("application/ld+json"), PNG), None);
    }

    #[test]
    fn a_task_of_texts_takes_json_whatever_it_is_called() {
        for declared in [None, CURL, Some("image/png")] {
            assert_eq!(read(Task::Translation, declared, PNG), None, "{declared:?}");
        }
    }

    #[test]
    fn a_pipe_keeps_any_body_and_its_name() {
        for (declared, body) in [
            (CURL, &b"{}"[..]),
            (Some("multipart/form-data; boundary=x"), b"--x"),
        ] {
            assert_eq!(read(Task::DumbPipe, declared, body).as_deref(), declared);
        }
        assert_eq!(read(Task::DumbPipe, None, b"").as_deref(), Some(UNNAMED));
    }

    #[test]
    fn a_body_of_parts_and_an_empty_one_are_refused_by_name() {
        let parts = Some("multipart/form-data; boundary=x");
        for task in [Task::ImageToText, Task::Translation] {
            let refused = content_type(task, parts, b"--x\r\n");
            assert!(
                matches!(&refused, Err(Refusal::BadRequest { message, .. }) if message.contains("parts")),
                "{refused:?}"
            );
            assert_eq!(read(task, parts, b"{}"), None);
        }
        assert!(content_type(Task::ImageToText, CURL, b"").is_err());
        assert_eq!(read(Task::Translation, None, b""), None);
    }
}
