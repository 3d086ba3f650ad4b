//! The 14 tasks as they come with the gateway, each a value of its own, so that a plugin contains only its task.
//!
//! A task has no settings and keeps no state outside of what it returns: every hook is a function of its arguments,
//! total on any bytes.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::input::TaskInput;
use super::result::{TaskResult, response_json};
use super::values::{
    BodyEdit, EventEdit, FinishResult, PrepareResult, StreamEvent, StreamResult, TaskDescription,
    TaskError, TaskHooks, TaskRequest, TaskResponse,
};
use super::{embeddings, generation, image, labels, single_text, speech, stream};

/// Path under a plain HTTP server's base URL.
pub const BACKEND_PATH: &str = "/run";

/// Checks what the schema cannot, converts files to base64, counts.
type Prepare = fn(&mut TaskInput<'_>) -> Result<(), TaskError>;

/// Converts the server's JSON into the result.
type Finish = fn(&str) -> Result<TaskResult, String>;

/// The texts of a task's schemas, JSON Schema 2020-12.
#[derive(Clone, Copy, Debug)]
pub struct Schemas {
    /// Schema of the input.
    pub input: &'static str,
    /// Schema of the result.
    pub output: &'static str,
}

/// A task for plain HTTP servers. A hook that is none does nothing.
#[derive(Clone, Copy, Debug)]
pub struct StandardTask {
    slug: &'static str,
    schemas: Option<Schemas>,
    backend_path: &'static str,
    /// Aliases of members, and the documented names.
    aliases: &'static [(&'static str, &'static str)],
    /// Defaults of the input schema: name and JSON.
    defaults: &'static [(&'static str, &'static str)],
    /// Member that holds a body which is not JSON.
    file: Option<&'static str>,
    prepare: Option<Prepare>,
    finish: Option<Finish>,
    /// Streams of this task are texts.
    streams: bool,
}

/// The schemas of a task, from its folder.
macro_rules! schemas {
    ($slug:literal) => {
        Some(Schemas {
            input: include_str!(concat!("../schemas/", $slug, "/input.schema.json")),
            output: include_str!(concat!("../schemas/", $slug, "/output.schema.json")),
        })
    };
}

/// A task without hooks.
const PLAIN: StandardTask = StandardTask {
    slug: "",
    schemas: None,
    backend_path: BACKEND_PATH,
    aliases: &[],
    defaults: &[],
    file: None,
    prepare: None,
    finish: None,
    streams: false,
};

/// A prompt or a conversation in, `{response, tool_calls?, usage?}` out. Input is passed on unchanged.
pub static TEXT_GENERATION: StandardTask = StandardTask {
    slug: "text-generation",
    schemas: schemas!("text-generation"),
    finish: Some(generation::finish),
    streams: true,
    ..PLAIN
};

/// A text in, `[{label, score}]` out.
pub static TEXT_CLASSIFICATION: StandardTask = StandardTask {
    slug: "text-classification",
    schemas: schemas!("text-classification"),
    prepare: Some(labels::prepare_text_classification),
    finish: Some(labels::finish_classification),
    ..PLAIN
};

/// Texts in, `{shape, data}` out. Input is passed on unchanged.
pub static TEXT_EMBEDDINGS: StandardTask = StandardTask {
    slug: "text-embeddings",
    schemas: schemas!("text-embeddings"),
    finish: Some(embeddings::finish),
    ..PLAIN
};

/// A text in, an image out.
pub static TEXT_TO_IMAGE: StandardTask = StandardTask {
    slug: "text-to-image",
    schemas: schemas!("text-to-image"),
    aliases: &[("steps", "num_steps"), ("image_b64", "image")],
    defaults: &[
        ("width", "1024"),
        ("height", "1024"),
        ("num_steps", "20"),
        ("guidance", "7.5"),
    ],
    prepare: Some(image::prepare_text_to_image),
    finish: Some(image::finish_text_to_image),
    ..PLAIN
};

/// A text in, a sound out.
pub static TEXT_TO_SPEECH: StandardTask = StandardTask {
    slug: "text-to-speech",
    schemas: schemas!("text-to-speech"),
    aliases: &[("prompt", "text"), ("voice", "speaker")],
    defaults: &[("lang", r#""en""#)],
    prepare: Some(speech::prepare_text_to_speech),
    finish: Some(speech::finish_text_to_speech),
    ..PLAIN
};

/// A sound in, `{text, word_count?, words?, vtt?}` out. The first alias that is present counts.
pub static AUTOMATIC_SPEECH_RECOGNITION: StandardTask = StandardTask {
    slug: "automatic-speech-recognition",
    schemas: schemas!("automatic-speech-recognition"),
    aliases: &[("source_lang", "language"), ("source", "language")],
    defaults: &[("task", r#""transcribe""#), ("vad_filter", "false")],
    file: Some("audio"),
    prepare: Some(speech::prepare_recognition),
    finish: Some(speech::finish_recognition),
    ..PLAIN
};

/// An image in, `[{label, score}]` out.
pub static IMAGE_CLASSIFICATION: StandardTask = StandardTask {
    slug: "image-classification",
    schemas: schemas!("image-classification"),
    file: Some("image"),
    prepare: Some(image::prepare_image),
    finish: Some(labels::finish_classification),
    ..PLAIN
};

/// An image in, `{description}` out.
pub static IMAGE_TO_TEXT: StandardTask = StandardTask {
    slug: "image-to-text",
    schemas: schemas!("image-to-text"),
    defaults: &[
        ("prompt", r#""Generate a caption for this image""#),
        ("max_tokens", "512"),
    ],
    file: Some("image"),
    prepare: Some(image::prepare_image),
    finish: Some(single_text::finish_image_to_text),
    streams: true,
    ..PLAIN
};

/// An image and a prompt, or a conversation with images, in, `{response}` out.
pub static IMAGE_TEXT_TO_TEXT: StandardTask = StandardTask {
    slug: "image-text-to-text",
    schemas: schemas!("image-text-to-text"),
    prepare: Some(image::prepare_image_or_messages),
    finish: Some(generation::finish),
    streams: true,
    ..PLAIN
};

/// An image in, `[{label, score, box}]` out.
pub static OBJECT_DETECTION: StandardTask = StandardTask {
    slug: "object-detection",
    schemas: schemas!("object-detection"),
    file: Some("image"),
    prepare: Some(image::prepare_image),
    finish: Some(labels::finish_detection),
    ..PLAIN
};

/// A text and a language in, `{translated_text}` out.
pub static TRANSLATION: StandardTask = StandardTask {
    slug: "translation",
    schemas: schemas!("translation"),
    defaults: &[("source_lang", r#""en""#)],
    prepare: Some(single_text::prepare_translation),
    finish: Some(single_text::finish_translation),
    ..PLAIN
};

/// A text in, `{summary}` out.
pub static SUMMARIZATION: StandardTask = StandardTask {
    slug: "summarization",
    schemas: schemas!("summarization"),
    defaults: &[("max_length", "1024")],
    prepare: Some(single_text::prepare_summarization),
    finish: Some(single_text::finish_summarization),
    ..PLAIN
};

/// Texts or images in, `{shape, data}` out.
pub static MULTIMODAL_EMBEDDINGS: StandardTask = StandardTask {
    slug: "multimodal-embeddings",
    schemas: schemas!("multimodal-embeddings"),
    prepare: Some(embeddings::prepare_multimodal),
    finish: Some(embeddings::finish),
    ..PLAIN
};

/// Any body in and out, unchanged, at the endpoint's own URL.
pub static DUMB_PIPE: StandardTask = StandardTask {
    slug: "dumb-pipe",
    backend_path: "",
    ..PLAIN
};

impl StandardTask {
    /// Name of the task, such as `text-generation`.
    pub const fn slug(&self) -> &'static str {
        self.slug
    }

    /// Schemas of the input and of the result; none for a dumb pipe.
    pub const fn schemas(&self) -> Option<Schemas> {
        self.schemas
    }

    /// Path under a plain HTTP server's base URL; empty for the base URL itself.
    pub const fn backend_path(&self) -> &'static str {
        self.backend_path
    }

    /// Members that are added to an input without them, each with its JSON: the defaults of the input schema.
    pub const fn defaults(&self) -> &'static [(&'static str, &'static str)] {
        self.defaults
    }

    /// The task as a check of the input only, for servers whose payload and response are converted elsewhere.
    pub const fn without_hooks(&self) -> StandardTask {
        StandardTask {
            prepare: None,
            finish: None,
            streams: false,
            ..*self
        }
    }

    /// The implemented hooks.
    pub const fn hooks(&self) -> TaskHooks {
        TaskHooks {
            prepare: self.prepare.is_some(),
            finish: self.finish.is_some(),
            events: self.streams,
        }
    }

    /// The description with these of the implemented hooks active. The hooks read whole bodies.
    pub fn description(&self, active: TaskHooks) -> TaskDescription {
        let schemas = self.schemas.map(|both| (both.input, both.output));
        let (input, output) = schemas.unzip();
        TaskDescription {
            slug: self.slug.to_owned(),
            input_schema: input.map(str::to_owned),
            output_schema: output.map(str::to_owned),
            wants: Vec::new(),
            active,
        }
    }

    /// The payload for the server, with metrics known before the run: `input_characters`,
    /// `input_images`, `image_bytes`, `image_steps`, `image_tiles` (of 512 × 512 pixels),
    /// `audio_bytes`.
    ///
    /// # Errors
    /// [`TaskError::Rejected`] for input that the task refuses.
    pub fn prepare(&self, request: &TaskRequest) -> Result<PrepareResult, TaskError> {
        let mut prepared = PrepareResult {
            backend_path: Some(self.backend_path.to_owned()),
            ..PrepareResult::default()
        };
        if let Some(prepare) = self.prepare {
            let mut input = TaskInput::read(request, self.file)?;
            for (alias, name) in self.aliases {
                input.resolve_alias(alias, name);
            }
            input.fill_defaults(self.defaults);
            prepare(&mut input)?;
            let (payload, metrics) = input.into_payload();
            prepared.edit = BodyEdit::Replace(payload);
            prepared.metrics = metrics;
        }
        Ok(prepared)
    }

    /// The result for the client, from a response in JSON or text. Metrics, as far as the response
    /// reports them: `input_tokens`, `output_tokens`, `output_characters`, `output_images` and
    /// `audio_seconds`. A response that is not a success is kept unchanged.
    ///
    /// # Errors
    /// [`TaskError::Broken`] for a response without the result.
    pub fn finish(&self, response: &TaskResponse) -> Result<FinishResult, TaskError> {
        let Some(finish) = self.finish else {
            return Ok(FinishResult::default());
        };
        if !(200..300).contains(&response.status) {
            return Ok(FinishResult::default());
        }
        let result = response_json(response).and_then(|json| finish(&json));
        let TaskResult { body, metrics } = result.map_err(TaskError::Broken)?;
        Ok(FinishResult {
            edit: BodyEdit::Replace(body),
            metrics,
        })
    }

    /// The events of a stream, each in the client's format. `state` is the state that the previous call
    /// has returned, empty at first.
    ///
    /// # Errors
    /// The state is not this task's, or tool calls do not fit into it.
    pub fn push(&self, state: &[u8], events: &[StreamEvent]) -> Result<StreamResult, String> {
        if self.streams {
            return stream::push(state, events);
        }
        Ok(StreamResult {
            events: vec![EventEdit::Keep; events.len()],
            ..StreamResult::default()
        })
    }

    /// The end of a stream; `cut` when the server broke off or the client left. Events returned follow
    /// the last one.
    ///
    /// # Errors
    /// The state is not this task's.
    pub fn close(&self, state: &[u8], cut: bool) -> Result<StreamResult, String> {
        if self.streams {
            return stream::close(state, cut);
        }
        Ok(StreamResult::default())
    }
}
