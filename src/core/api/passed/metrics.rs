//! Figures that a request of these APIs may be billed by, known before its response: steps and tiles of images,
//! characters to speak, seconds of sound.
//!
//! Not what the server reports, which goes before. A figure that is read in the request is exact; one that is
//! guessed at is marked.

use serde::Deserialize;

use super::{PassedApi, string};
use crate::api::body::BodyMembers;
use crate::api::{Call, Operation, wav};

/// Bytes of a second of sound in a file without a header that is known: MP3 and Opus as they are used for speech,
/// 64 kbit a second.
pub const SOUND_BYTES_PER_SEC: f64 = 8_000.0;

/// Pixels along the side of a tile, as image models are priced.
const TILE: u32 = 512;
/// Members for the steps of an image, by the names that servers have for them.
const STEPS: [&str; 3] = ["num_inference_steps", "num_steps", "steps"];
/// Steps of an image whose request does not name them: the default of the task `text-to-image`.
const STEPS_DEFAULT: f64 = 20.0;
/// No image has a longer side, in pixels.
const SIDE_MAX: u32 = 65_536;

/// Figures of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct PassedMetrics {
    /// The API.
    pub api: PassedApi,
    /// Figures that stand in the request.
    pub known: Vec<(&'static str, f64)>,
    /// Figures that are estimated from its size.
    pub estimated: Vec<(&'static str, f64)>,
    /// Images that were asked for, where the response does not tell how many there are.
    pub images: u32,
}

impl PassedMetrics {
    /// Counts what `call` asks for; none where it is of another API. Costs a comparison there.
    pub fn of(call: &Call) -> Option<Box<PassedMetrics>> {
        let Operation::Passed(api) = call.operation else {
            return None;
        };
        let mut metrics = PassedMetrics {
            api,
            known: Vec::new(),
            estimated: Vec::new(),
            images: 0,
        };
        match api {
            PassedApi::Images => metrics.count_images(call),
            PassedApi::Speech => metrics.count_characters(call, "input"),
            PassedApi::Transcriptions | PassedApi::Translations => metrics.count_sound(call),
            PassedApi::Responses | PassedApi::Rerank => {}
        }
        Some(Box::new(metrics))
    }

    fn count_images(&mut self, call: &Call) {
        self.images = call.choices;
        self.count_characters(call, "prompt");
        let Ok(members) = BodyMembers::read(&call.body) else {
            return;
        };
        let value = |name: &str| members.last(name).map(|range| &call.body[range]);
        let images = f64::from(call.choices);
        // Which of several a server takes is its own to know: none of them makes the others cheaper.
        let named = STEPS.into_iter().filter_map(value).filter_map(steps);
        match named.reduce(f64::max) {
            Some(steps) => self.known.push(("image_steps", steps * images)),
            None => self.estimated.push(("image_steps", STEPS_DEFAULT * images)),
        }
        let size = value("size").and_then(string).and_then(|size| tiles(&size));
        if let Some(tiles) = size {
            self.known.push(("image_tiles", tiles * images));
        }
    }

    fn count_characters(&mut self, call: &Call, name: &str) {
        let Ok(members) = BodyMembers::read(&call.body) else {
            return;
        };
        let text = members
            .last(name)
            .and_then(|range| string(&call.body[range]));
        if let Some(text) = text {
            let characters = text.chars().count() as f64;
            self.known.push(("input_characters", characters));
        }
    }

    fn count_sound(&mut self, call: &Call) {
        let Some(file) = call.files.first() else {
            return;
        };
        // Of a file that is still coming the beginning is here, and the length is that of the whole.
        let (come, bytes) = (file.end.min(call.body.len()), file.len());
        self.known.push(("audio_bytes", bytes as f64));
        match wav::seconds(&call.body[file.start..come], bytes) {
            Some(seconds) => self.known.push(("audio_seconds", seconds)),
            None => {
                let seconds = bytes as f64 / SOUND_BYTES_PER_SEC;
                self.estimated.push(("audio_seconds", seconds));
            }
        }
    }
}

/// Returns the generated texts of a whole answer of `/v1/responses`, as a JSON list; none where it is of another form.
pub fn response_texts(answer: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Answer {
        output: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        content: Option<Vec<TextPart>>,
        arguments: Option<String>,
    }
    #[derive(Deserialize)]
    struct TextPart {
        text: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let mut texts: Vec<String> = Vec::new();
    for item in answer.output {
        let parts = item.content.into_iter().flatten();
        texts.extend(parts.filter_map(|part| part.text).chain(item.arguments));
    }
    serde_json::to_vec(&texts).ok()
}

/// Steps by the value of a member: servers take `50`, `50.0` and `"50"`. None where it names no step.
fn steps(json: &[u8]) -> Option<f64> {
    let text = string(json);
    let text = match &text {
        Some(text) => text.trim(),
        None => std::str::from_utf8(json).ok()?,
    };
    let steps = text.parse::<f64>().ok()?;
    (steps > 0.0).then(|| steps.ceil().min(f64::from(u32::MAX)))
}

/// Tiles of an image whose size is given as `1024x768`; begun ones count.
fn tiles(size: &str) -> Option<f64> {
    let (width, height) = size.split_once('x')?;
    let along = |side: &str| Some(side.parse::<u32>().ok()?.clamp(1, SIDE_MAX).div_ceil(TILE));
    Some(f64::from(along(width)?) * f64::from(along(height)?))
}
