//! Input tokens of a request, estimated before the server has counted: the text of a body, and the
//! images and sounds in it.
//!
//! Not a tokenizer and not a parser. Text is [`BYTES_PER_TOKEN`] bytes a token; a file is
//! [`FILE_TOKENS`] whatever its size, since its base64 would count for hundreds of times too much.
//! Files are the members that [`parse`](super::body::parse) found by name, base64 data URLs, and the
//! values of `image_url` and `input_audio`. The search for these three short texts costs a tenth of
//! reading the body. At most [`MARKS_MAX`] matches are examined; the rest is text. Called by the
//! pipeline, for token-fair queues and token quotas.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

use super::Call;
use super::scan::{nested_end, text_end};

/// Bytes of a token of English text, about.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of an image or a sound. A LLaVA 1.5 image has 576 (24 × 24 patches), a Llama 3.2 one
/// 1,601; 40 seconds of sound have 1,000 at 25 tokens a second.
pub const FILE_TOKENS: u64 = 1024;

/// Marks examined in one body: OpenAI takes 500 images. The bound is on the work that a body made
/// of nothing but marks can cause.
pub const MARKS_MAX: usize = 1024;

/// Images and sounds that are charged for at most: OpenAI takes 500. More are a list of something
/// else, and so large a charge would block the account's other requests for too long.
pub const FILES_MAX: u64 = 500;

/// Bytes of a data URL that hold its media type and encoding.
const DATA_HEAD_BYTES: usize = 128;

/// Least size of an object that is a file; a smaller one describes the wanted output, such as a voice.
const FILE_OBJECT_MIN_BYTES: usize = 256;

/// Texts that may start a file.
const MARKS: [&[u8]; 3] = [b"\"data:", b"\"image_url\"", b"\"input_audio\""];
const DATA_URL: usize = 0;

/// Built once: building a finder costs more than a search of a small body.
static FINDERS: LazyLock<[Finder<'static>; 3]> = LazyLock::new(|| MARKS.map(Finder::new));

/// Returns whether a top-level member of this name is an image or a sound.
pub(super) fn is_file_member(key: &[u8], value: &[u8]) -> bool {
    let is_named = matches!(key, b"image" | b"image_b64" | b"mask" | b"audio");
    is_named
        && match value.first() {
            Some(b'"' | b'[') => true,
            Some(b'{') => value.len() >= FILE_OBJECT_MIN_BYTES,
            _ => false,
        }
}

impl Call {
    /// Returns the estimated input tokens; at least 1. Files without a mark count as text in a body
    /// whose member ranges are no longer known ([`Call::with_payload`]).
    pub fn prompt_tokens(&self) -> u64 {
        let is_file = |kind: &str| {
            // Without its parameters: a boundary is any text.
            let kind = kind.split(';').next().unwrap_or(kind);
            !kind.starts_with("text/") && !kind.contains("json")
        };
        if self.content_type.as_deref().is_some_and(is_file) {
            return FILE_TOKENS;
        }
        let mut prompt = PromptSize {
            text_bytes: self.body.len() as u64,
            files: 0,
        };
        for place in &self.files {
            let come = self.body.get(place.clone()).unwrap_or_default();
            prompt.add_files(files_in(come), place);
        }
        prompt.search(&self.body, &self.files);
        prompt.tokens()
    }
}

struct PromptSize {
    text_bytes: u64,
    files: u64,
}

impl PromptSize {
    fn tokens(&self) -> u64 {
        let text = self.text_bytes / BYTES_PER_TOKEN;
        text.saturating_add(self.files.min(FILES_MAX) * FILE_TOKENS)
            .max(1)
    }

    fn add_files(&mut self, files: u64, place: &Range<usize>) {
        self.files += files;
        self.text_bytes = self.text_bytes.saturating_sub(place.len() as u64);
    }

    /// Takes out every file that has a mark and is not in one of the `known` places.
    fn search(&mut self, body: &[u8], known: &[Range<usize>]) {
        let mut next: [Option<usize>; MARKS.len()] =
            std::array::from_fn(|mark| find(body, 0, mark));
        for _ in 0..MARKS_MAX {
            let hits = (0..MARKS.len()).filter_map(|mark| Some((next[mark]?, mark)));
            let Some((at, mark)) = hits.min() else { return };
            let end = match known.iter().find(|place| place.contains(&at)) {
                Some(place) => place.end,
                None => match file_at(body, at, mark) {
                    Some(place) => {
                        self.add_files(1, &place);
                        place.end
                    }
                    None => at + 1,
                },
            };
            for (mark, hit) in next.iter_mut().enumerate() {
                if hit.is_some_and(|hit| hit < end) {
                    *hit = find(body, end, mark);
                }
            }
        }
    }
}

fn find(body: &[u8], from: usize, mark: usize) -> Option<usize> {
    let at = FINDERS[mark].find(body.get(from..)?)?;
    Some(from + at)
}

/// Files of a value under a file's name: a list of texts is one each, a list of bytes is one.
fn files_in(value: &[u8]) -> u64 {
    let inner = value.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    match inner {
        Some([b'"', ..]) => (memchr::memchr_iter(b'"', value).count() / 2).max(1) as u64,
        Some([b']', ..]) => 0,
        _ => 1,
    }
}

/// Returns the range of the file whose mark is `at`; none where the mark is only a text.
fn file_at(body: &[u8], at: usize, mark: usize) -> Option<Range<usize>> {
    match mark {
        DATA_URL => data_url(body, at),
        _ => member_value(body, at + MARKS[mark].len()),
    }
}

/// A whole string that is a data URL in base64; `at` is its opening quote.
fn data_url(body: &[u8], at: usize) -> Option<Range<usize>> {
    let is_quoted = at.checked_sub(1).is_some_and(|at| body[at] == b'\\');
    let text = &body[at + 1..];
    // Base64 has no escapes: the first quote is the end.
    let end = memchr::memchr(b'"', text)?;
    memmem::find(&text[..end.min(DATA_HEAD_BYTES)], b";base64,")?;
    (!is_quoted && text[end - 1] != b'\\').then(|| at + 1..at + 1 + end)
}

/// The string or object that stands under a key; `from` is just behind it.
fn member_value(body: &[u8], from: usize) -> Option<Range<usize>> {
    let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
    let skip = |from: usize| {
        let blanks = body[from..].iter().take_while(|byte| is_blank(byte));
        from + blanks.count()
    };
    let colon = skip(from);
    (body.get(colon) == Some(&b':')).then_some(())?;
    let start = skip(colon + 1);
    let inner = body.get(start + 1..)?;
    let taken = match body[start] {
        b'"' => text_end(inner)?,
        b'{' => nested_end(inner, b'{', b'}')?,
        _ => return None,
    };
    Some(start..start + 1 + taken)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{ApiDialect, Operation, body};

    fn call(value: &Value) -> Call {
        let body = Bytes::from(value.to_string());
        body::parse(ApiDialect::OpenAi, Operation::Chat, Some("m".into()), body).unwrap()
    }

    fn tokens(value: &Value) -> u64 {
        call(value).prompt_tokens()
    }

    fn base64(bytes: usize) -> String {
        "iVBOR/+0".repeat(bytes / 8)
    }

    fn chat_with(part: Value) -> Value {
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "what is it?" }, part] }] })
    }

    #[test]
    fn a_list_without_end_is_charged_as_the_most_files_a_model_takes() {
        let body = json!({ "image": vec![""; 100_000] });
        assert!(tokens(&body) < (FILES_MAX + 1) * FILE_TOKENS);
    }

    #[test]
    fn a_text_counts_by_its_bytes() {
        let body = json!({ "prompt": "x".repeat(4000) });
        assert_eq!(tokens(&body), body.to_string().len() as u64 / 4);
        let nothing = Call::opaque("m".into(), "text/plain".into(), Bytes::new());
        assert_eq!(nothing.prompt_tokens(), 1);
    }

    #[test]
    fn an_image_or_a_sound_counts_the_same_whatever_its_size() {
        let url = |bytes| format!("data:image/png;base64,{}", base64(bytes));
        type Make<'a> = &'a dyn Fn(usize) -> Value;
        let kinds: [(&str, Make<'_>); 8] = [
            ("an image_url object", &|n| {
                chat_with(
                    json!({ "type": "image_url", "image_url": { "url": url(n), "detail": "low" } }),
                )
            }),
            ("an image_url text", &|n| {
                chat_with(json!({ "type": "input_image", "image_url": url(n) }))
            }),
            ("an input_audio", &|n| {
                chat_with(
                    json!({ "type": "input_audio", "input_audio": { "data": base64(n), "format": "wav" } }),
                )
            }),
            (
                "a data URL elsewhere",
                &|n| json!({ "input": [{ "image": url(n) }] }),
            ),
            (
                "an image in base64",
                &|n| json!({ "prompt": "what?", "image": base64(n) }),
            ),
            (
                "an image as data URL",
                &|n| json!({ "prompt": "what?", "image": url(n) }),
            ),
            (
                "an image in bytes",
                &|n| json!({ "prompt": "what?", "image": vec![200; n / 4] }),
            ),
            (
                "a sound as an object",
                &|n| json!({ "audio": { "body": base64(n), "contentType": "audio/wav" } }),
            ),
        ];
        for (what, make) in kinds {
            let small = tokens(&make(1024));
            assert_eq!(tokens(&make(4 << 20)), small, "{what}");
            let around = FILE_TOKENS..FILE_TOKENS + 60;
            assert!(around.contains(&small), "{what}: {small}");
        }
        let bytes = Bytes::from(vec![0; 1 << 20]);
        let opaque = Call::opaque("m".into(), "image/png".into(), bytes);
        assert_eq!(opaque.prompt_tokens(), FILE_TOKENS);
    }

    #[test]
    fn each_file_counts_once_and_an_address_of_one_as_one() {
        let url = format!("data:image/png;base64,{}", base64(800));
        let part = json!({ "type": "image_url", "image_url": { "url": url } });
        let far =
            json!({ "type": "image_url", "image_url": { "url": "https://example.org/a.png" } });
        let both = json!({ "messages": [{ "role": "user", "content": [part, far, part] }] });
        let counted = tokens(&both);
        assert!(
            (3 * FILE_TOKENS..3 * FILE_TOKENS + 60).contains(&counted),
            "{counted}"
        );
        let listed = tokens(&json!({ "image": [url, url], "text": "x" }));
        assert!(
            (2 * FILE_TOKENS..2 * FILE_TOKENS + 20).contains(&listed),
            "{listed}"
        );
    }

    #[test]
    fn what_only_speaks_of_files_is_text() {
        let text = |text: &str| json!({ "prompt": text, "audio": { "voice": "a", "format": "wav" }, "image": null });
        for said in [
            r#"{"image_url": {"url": "x"}} "input_audio": "data:image/png;base64,AAAA""#,
            "see data:image/png;base64,AAAA",
            "\\\"data:image/png;base64,AAAA\\",
            "data:no base64 in here",
        ] {
            let body = text(said);
            assert_eq!(tokens(&body), body.to_string().len() as u64 / 4, "{said}");
        }
        let listed = json!({ "stop": ["image_url", "input_audio", "data:"], "image": [] });
        assert_eq!(tokens(&listed), (listed.to_string().len() as u64 - 2) / 4);
    }

    #[test]
    fn a_body_of_nothing_but_marks_is_looked_at_up_to_a_bound() {
        let part = json!({ "image_url": "" });
        let body = json!({ "x": vec![part; 4 * MARKS_MAX] });
        let counted = tokens(&body);
        let most = MARKS_MAX as u64 * FILE_TOKENS + body.to_string().len() as u64 / 4;
        assert!((FILES_MAX * FILE_TOKENS..=most).contains(&counted));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_without_a_panic(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "\"data:", ";base64,", "\"image_url\"", "\"input_audio\"", ":", "\"", "\\", "{", "}", "[", " ", "AAAA",
        ]), 0..60)) {
            let text = pieces.concat();
            let mut prompt = PromptSize { text_bytes: text.len() as u64, files: 0 };
            prompt.search(text.as_bytes(), &[]);
            prop_assert!(prompt.text_bytes <= text.len() as u64);
            prop_assert!(prompt.files <= pieces.len() as u64);
        }
    }
}
