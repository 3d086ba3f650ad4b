//! Tasks around sound: text to speech, and automatic speech recognition.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::input::TaskInput;
use super::result::{TaskResult, files_under, seconds, text_under};
use super::values::TaskError;
use crate::json::{member, parse_list, parse_number, parse_object, parse_string, to_json_string};

/// Words of one subtitle: as many as are read at a glance.
const CUE_WORDS_MAX: usize = 10;

/// Milliseconds that one subtitle lasts at most, unless one word lasts longer.
const CUE_MS_MAX: u64 = 5_000;

/// A pause that ends a subtitle.
const CUE_PAUSE_MS: u64 = 1_000;

/// No sound is longer: a hundred hours.
const SOUND_MS_MAX: f64 = 360_000_000.0;

/// Names of texts in responses.
const TEXTS: [&str; 5] = [
    "text",
    "transcription",
    "transcript",
    "generated_text",
    "output",
];

/// Text to speech.
pub(super) fn prepare_text_to_speech(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("text")?;
    input.report("input_characters", input.characters("text") as f64);
    Ok(())
}

/// Text to speech, where the server responds with JSON.
pub(super) fn finish_text_to_speech(json: &str) -> Result<TaskResult, String> {
    let sounds = files_under(json, &["audio", "audio_base64", "data", "output"]);
    let first = sounds.and_then(|sounds| sounds.into_iter().next());
    let first = first.ok_or("there is no sound in base64 in the answer")?;
    let length = parse_object(json).map_or(0.0, |members| seconds(&members));
    Ok(TaskResult::new(format!(r#"{{"audio":{first}}}"#))
        .with("audio_seconds", length)
        .with_usage(member(json, "usage")))
}

/// Automatic speech recognition.
pub(super) fn prepare_recognition(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("audio")?;
    let bytes = input.convert_file("audio")?.unwrap_or(0);
    input.report("audio_bytes", bytes as f64);
    Ok(())
}

/// Automatic speech recognition: the text, its words with their times, and subtitles.
pub(super) fn finish_recognition(json: &str) -> Result<TaskResult, String> {
    let text = text_under(json, &TEXTS).ok_or("there is no text in the answer")?;
    let members = parse_object(json).unwrap_or_default();
    let spans = spans(members.get("words"), &["word", "text"])
        .or_else(|| spans(members.get("chunks"), &["text"]))
        .unwrap_or_default();
    let segments = spans_of_segments(members.get("segments"));
    let words = if spans.is_empty() {
        &segments.words
    } else {
        &spans
    };
    let count = members.get("word_count").and_then(parse_number);
    let count = count
        .filter(|count| *count >= 0.0)
        .map(|count| count as u64);
    let count = count.unwrap_or_else(|| text.split_whitespace().count() as u64);
    let mut body = format!(r#"{{"text":{},"word_count":{count}"#, to_json_string(&text));
    if !words.is_empty() {
        let words: Vec<String> = words.iter().map(Span::write).collect();
        body += &format!(r#","words":[{}]"#, words.join(","));
    }
    let own = members.get("vtt").and_then(crate::json::parse_string);
    let cues = if words.is_empty() {
        segments.lines
    } else {
        cues(words)
    };
    let vtt = match own {
        Some(vtt) => Some(vtt.into_owned()),
        None => (!cues.is_empty()).then(|| vtt(&cues)),
    };
    if let Some(vtt) = vtt {
        body += &format!(r#","vtt":{}"#, to_json_string(&vtt));
    }
    for kept in ["transcription_info", "segments"] {
        if let Some(json) = members.get(kept) {
            body += &format!(r#","{kept}":{json}"#);
        }
    }
    body.push('}');
    Ok(TaskResult::new(body)
        .with("audio_seconds", seconds(&members))
        .with("output_characters", text.chars().count() as f64)
        .with_usage(members.get("usage")))
}

/// A text with the times at which it is spoken, in seconds.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    text: String,
    start: f64,
    end: f64,
}

impl Span {
    fn write(&self) -> String {
        let Span { text, start, end } = self;
        format!(
            r#"{{"word":{},"start":{start},"end":{end}}}"#,
            to_json_string(text)
        )
    }

    fn start_ms(&self) -> u64 {
        milliseconds(self.start)
    }

    fn end_ms(&self) -> u64 {
        milliseconds(self.end).max(self.start_ms())
    }
}

/// Segments with their texts and, where they have some, their words.
#[derive(Default)]
struct Segments {
    lines: Vec<Span>,
    words: Vec<Span>,
}

fn spans_of_segments(json: Option<&str>) -> Segments {
    let words = |segment: &&str| spans(member(segment, "words"), &["word", "text"]);
    let segments = json.and_then(parse_list).unwrap_or_default();
    Segments {
        lines: spans(json, &["text"]).unwrap_or_default(),
        words: segments.iter().filter_map(words).flatten().collect(),
    }
}

/// Spans of a list of objects. None when one of them is not whole: times with gaps are worse than
/// none.
fn spans(json: Option<&str>, names: &[&str]) -> Option<Vec<Span>> {
    let span = |json: &str| {
        let members = parse_object(json)?;
        let stamp = members.get("timestamp").and_then(parse_list);
        let time = |name: &str, at: usize| {
            let own = members.get(name);
            own.or_else(|| stamp.as_ref()?.get(at).copied())
                .and_then(parse_number)
        };
        let start = time("start", 0)?;
        Some(Span {
            text: parse_string(members.first_of(names)?)?.trim().to_owned(),
            start,
            // The last span of a Whisper pipeline has no end.
            end: time("end", 1).unwrap_or(start),
        })
    };
    parse_list(json?)?.into_iter().map(span).collect()
}

/// Words gathered into subtitles.
fn cues(words: &[Span]) -> Vec<Span> {
    let mut cues: Vec<(Span, usize)> = Vec::new();
    for word in words {
        if let Some((cue, count)) = cues.last_mut()
            && *count < CUE_WORDS_MAX
            && word.end_ms().saturating_sub(cue.start_ms()) <= CUE_MS_MAX
            && word.start_ms().saturating_sub(cue.end_ms()) < CUE_PAUSE_MS
        {
            cue.text = format!("{} {}", cue.text, word.text);
            cue.end = cue.end.max(word.end);
            *count += 1;
        } else {
            cues.push((word.clone(), 1));
        }
    }
    cues.into_iter().map(|(cue, _)| cue).collect()
}

/// WebVTT, <https://www.w3.org/TR/webvtt1/>.
fn vtt(cues: &[Span]) -> String {
    let mut vtt = "WEBVTT\n".to_owned();
    for cue in cues {
        // A line of its own ends a cue, and an arrow would begin its times.
        let text = cue.text.replace(['\n', '\r'], " ").replace("-->", "->");
        let (start, end) = (cue.start_ms(), cue.end_ms());
        vtt += &format!("\n{} --> {}\n{text}\n", clock(start), clock(end));
    }
    vtt
}

/// `12:03.456`, with hours where there are some.
fn clock(ms: u64) -> String {
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let (seconds, ms) = (ms / 1000 % 60, ms % 1000);
    let hours = match hours {
        0 => String::new(),
        hours => format!("{hours:02}:"),
    };
    format!("{hours}{minutes:02}:{seconds:02}.{ms:03}")
}

/// To the nearest millisecond, halves up; 0 for a negative time.
fn milliseconds(seconds: f64) -> u64 {
    let ms = (seconds * 1000.0).clamp(0.0, SOUND_MS_MAX);
    let whole = ms as u64;
    whole + u64::from(ms - whole as f64 >= 0.5)
}
