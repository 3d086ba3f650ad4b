//! Errors of the store as the rest of the gateway knows them.
//!
//! Not the text of an answer, which may repeat the name of the key: only its code counts.

use std::io;

use object_store::Error;

/// Longest code that is shown, bytes.
const CODE_BYTES_MAX: usize = 64;

/// Makes an error without the text of the answer.
pub(super) fn fault(error: &Error) -> io::Error {
    match error {
        Error::NotFound { .. } => io::ErrorKind::NotFound.into(),
        error => io::Error::other(format!(
            "the S3 store: {}",
            code(&texts(error)).unwrap_or_else(|| plain(error))
        )),
    }
}

/// Texts of an error and its causes.
fn texts(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Code in the answer (<https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>).
fn code(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_code = code.len() <= CODE_BYTES_MAX && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

fn plain(error: &Error) -> String {
    let text = match error {
        Error::PermissionDenied { .. } => "it does not permit this key to do so",
        Error::Unauthenticated { .. } => "it does not know this key",
        _ => "no answer, or one that is not expected",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_code_of_the_answer_and_no_key() {
        let error = Error::Generic {
            store: "S3",
            source:
                "403: <Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKID</AWSAccessKeyId>"
                    .into(),
        };
        let text = fault(&error).to_string();
        assert_eq!(text, "the S3 store: InvalidAccessKeyId");
    }
}
