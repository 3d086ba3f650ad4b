//! `automatic-speech-recognition`: sound in, `{text, word_count?, words?, vtt?}` out.
//!
//! The sound is a list of bytes, base64, a data URI or the body itself; the server gets base64. Words with
//! times become subtitles where the server makes none.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{
    Input, Schemas, Shaped,
    answer::{seconds, text_under},
    describe, finish, hooks,
    json::{number, object, quoted, text as text_of},
};

mod spans;

use spans::{Span, cues, spans, spans_of_segments, vtt};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

/// What the schema says a client may leave out, with its JSON.
const DEFAULTS: [(&str, &str); 2] = [("task", r#""transcribe""#), ("vad_filter", "false")];

/// Names of texts in answers.
const TEXTS: [&str; 5] = [
    "text",
    "transcription",
    "transcript",
    "generated_text",
    "output",
];

struct SpeechRecognition {
    hooks: Hooks,
}

impl Plugin for SpeechRecognition {
    fn configure(settings: &mut Settings) -> SpeechRecognition {
        SpeechRecognition {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for SpeechRecognition {
    fn describe(&self) -> Description {
        describe("automatic-speech-recognition", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, Some("audio"))?;
        input.alias("source_lang", "language");
        input.alias("source", "language");
        input.fill(&DEFAULTS);
        input.require("audio")?;
        let bytes = input.file("audio")?.unwrap_or(0);
        input.report("audio_bytes", bytes as f64);
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, recognition)
    }
}

/// The text, its words with their times, and subtitles.
fn recognition(json: &str) -> Result<Shaped, String> {
    let text = text_under(json, &TEXTS).ok_or("there is no text in the answer")?;
    let members = object(json).unwrap_or_default();
    let spans = spans(members.get("words"), &["word", "text"])
        .or_else(|| spans(members.get("chunks"), &["text"]))
        .unwrap_or_default();
    let segments = spans_of_segments(members.get("segments"));
    let words = if spans.is_empty() {
        &segments.words
    } else {
        &spans
    };
    let count = members.get("word_count").and_then(number);
    let count = count
        .filter(|count| *count >= 0.0)
        .map(|count| count as u64);
    let count = count.unwrap_or_else(|| text.split_whitespace().count() as u64);
    let mut body = format!(r#"{{"text":{},"word_count":{count}"#, quoted(&text));
    if !words.is_empty() {
        let words: Vec<String> = words.iter().map(Span::write).collect();
        body += &format!(r#","words":[{}]"#, words.join(","));
    }
    let own = members.get("vtt").and_then(text_of);
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
        body += &format!(r#","vtt":{}"#, quoted(&vtt));
    }
    for kept in ["transcription_info", "segments"] {
        if let Some(json) = members.get(kept) {
            body += &format!(r#","{kept}":{json}"#);
        }
    }
    body.push('}');
    Ok(Shaped::new(body)
        .with("audio_seconds", seconds(&members))
        .with("output_characters", text.chars().count() as f64)
        .with_usage(members.get("usage")))
}

export_task!(SpeechRecognition);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
