//! Words and lines with their times, and the WebVTT subtitles made of them.
//!
//! It does not guess: a list with one time missing is no list of times.

use infergate_task_kit::json::{list, member, number, object, quoted, text};

/// Words of one subtitle: what is read at a glance.
const CUE_WORDS_MAX: usize = 10;

/// Milliseconds that one subtitle lasts at most, unless one word lasts longer.
const CUE_MS_MAX: u64 = 5_000;

/// A pause that ends a subtitle.
const CUE_PAUSE_MS: u64 = 1_000;

/// No sound is longer: a hundred hours.
const SOUND_MS_MAX: f64 = 360_000_000.0;

/// A text and when it is said.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    text: String,
    start: f64,
    end: f64,
}

impl Span {
    /// As it stands among the words of a result.
    pub fn write(&self) -> String {
        let Span { text, start, end } = self;
        format!(r#"{{"word":{},"start":{start},"end":{end}}}"#, quoted(text))
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
pub struct Segments {
    /// The texts.
    pub lines: Vec<Span>,
    /// Their words.
    pub words: Vec<Span>,
}

/// Reads a list of segments.
pub fn spans_of_segments(json: Option<&str>) -> Segments {
    let words = |segment: &&str| spans(member(segment, "words"), &["word", "text"]);
    let segments = json.and_then(list).unwrap_or_default();
    Segments {
        lines: spans(json, &["text"]).unwrap_or_default(),
        words: segments.iter().filter_map(words).flatten().collect(),
    }
}

/// Spans of a list of objects. None when one of them is not whole: times with gaps are worse than
/// none.
pub fn spans(json: Option<&str>, names: &[&str]) -> Option<Vec<Span>> {
    let span = |json: &str| {
        let members = object(json)?;
        let stamp = members.get("timestamp").and_then(list);
        let time = |name: &str, at: usize| {
            let own = members.get(name);
            own.or_else(|| stamp.as_ref()?.get(at).copied())
                .and_then(number)
        };
        let start = time("start", 0)?;
        Some(Span {
            text: text(members.first(names)?)?.trim().to_owned(),
            start,
            // The last span of a Whisper pipeline has no end.
            end: time("end", 1).unwrap_or(start),
        })
    };
    list(json?)?.into_iter().map(span).collect()
}

/// Words gathered into subtitles.
pub fn cues(words: &[Span]) -> Vec<Span> {
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
pub fn vtt(cues: &[Span]) -> String {
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

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round().clamp(0.0, SOUND_MS_MAX) as u64
}
