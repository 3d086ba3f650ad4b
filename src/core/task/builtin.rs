//! The 14 tasks as they come with the gateway.
//!
//! A built-in task has no settings and keeps no state: every hook is a function of its arguments, total
//! on any bytes. Schemas are the files under `plugins/tasks`, which the Wasm tasks contain too. Called by
//! the plugin module, for models without a task plugin and where one has failed.

use std::sync::LazyLock;

use super::input::TaskInput;
use super::json::Members;
use super::result::{TaskResult, response_json};
use super::values::{
    BodyEdit, EventEdit, FinishResult, PrepareResult, StreamEvent, StreamResult, TaskDescription,
    TaskError, TaskHooks, TaskRequest, TaskResponse,
};
use super::{embeddings, generation, image, labels, single_text, speech, stream};
use crate::model::{BackendKind, Task};

/// Path under a plain HTTP server's base URL, where `prepare` names none.
pub const BACKEND_PATH: &str = "/run";

/// Path of this task at a plain HTTP server: [`BACKEND_PATH`], or the base URL itself for
/// [`Task::DumbPipe`].
pub const fn backend_path(task: Task) -> &'static str {
    match task {
        Task::DumbPipe => "",
        _ => BACKEND_PATH,
    }
}

/// A task without a plugin.
#[derive(Clone, Debug)]
pub struct BuiltinTask {
    task: Task,
    description: TaskDescription,
    /// Defaults from the schema: name and JSON.
    defaults: Vec<(String, String)>,
    logic: TaskLogic,
}

/// Checks what the schema cannot, converts files to base64, counts.
type Prepare = fn(&mut TaskInput<'_>) -> Result<(), TaskError>;

/// Converts the server's JSON into the result.
type Finish = fn(&str) -> Result<TaskResult, String>;

/// Logic of a task; a hook that is none does nothing.
#[derive(Clone, Copy, Debug, Default)]
struct TaskLogic {
    prepare: Option<Prepare>,
    /// Aliases of members, and the documented names.
    aliases: &'static [(&'static str, &'static str)],
    /// Member that holds a body which is not JSON.
    file: Option<&'static str>,
    finish: Option<Finish>,
    /// Streams of this task are texts.
    streams: bool,
}

/// For plain HTTP servers, whose payloads and responses the hooks convert.
static CONVERTING: LazyLock<Vec<BuiltinTask>> = LazyLock::new(|| Task::ALL.map(converting).into());

/// For servers whose protocol the gateway speaks: the backend converts payload and response.
static CHECKING: LazyLock<Vec<BuiltinTask>> = LazyLock::new(|| Task::ALL.map(checking).into());

impl BuiltinTask {
    /// The task for a plain HTTP server ([`BackendKind::Http`]): schemas and hooks.
    pub fn of(task: Task) -> &'static BuiltinTask {
        find(&CONVERTING, task)
    }

    /// The task for this kind of server: for any protocol but plain HTTP the schemas only, since the
    /// backend itself builds the payload and reads the response.
    pub fn for_backend(task: Task, backend: BackendKind) -> &'static BuiltinTask {
        match backend {
            BackendKind::Http => BuiltinTask::of(task),
            _ => find(&CHECKING, task),
        }
    }

    /// Schemas and hooks of the task. The hooks read whole bodies.
    pub fn description(&self) -> &TaskDescription {
        &self.description
    }

    /// The payload for the server, with metrics known before the run: `input_characters`,
    /// `input_images`, `image_bytes`, `image_steps`, `image_tiles` (of 512 × 512 pixels),
    /// `audio_bytes`.
    pub fn prepare(&self, request: &TaskRequest) -> Result<PrepareResult, TaskError> {
        let mut prepared = PrepareResult {
            backend_path: Some(backend_path(self.task).to_owned()),
            ..PrepareResult::default()
        };
        if let Some(prepare) = self.logic.prepare {
            let mut input = TaskInput::read(request, self.logic.file)?;
            for (alias, name) in self.logic.aliases {
                input.resolve_alias(alias, name);
            }
            input.fill_defaults(&self.defaults);
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
    pub fn finish(&self, response: &TaskResponse) -> Result<FinishResult, TaskError> {
        let Some(finish) = self.logic.finish else {
            return Ok(FinishResult::default());
        };
        if !(200..300).contains(&response.status) {
            return Ok(FinishResult::default());
        }
        let shaped = response_json(response).and_then(|json| finish(&json));
        let TaskResult { body, metrics } = shaped.map_err(TaskError::Broken)?;
        Ok(FinishResult {
            edit: BodyEdit::Replace(body),
            metrics,
        })
    }

    /// The events of a stream, each in the client's format. `state` is the state that the previous call
    /// has returned, empty at first.
    pub fn push(&self, state: &[u8], events: &[StreamEvent]) -> Result<StreamResult, String> {
        if self.logic.streams {
            return stream::push(state, events);
        }
        Ok(StreamResult {
            events: vec![EventEdit::Keep; events.len()],
            ..StreamResult::default()
        })
    }

    /// The end of a stream; `cut` when the server broke off or the client left. Events returned follow
    /// the last one.
    pub fn close(&self, state: &[u8], cut: bool) -> Result<StreamResult, String> {
        if self.logic.streams {
            return stream::close(state, cut);
        }
        Ok(StreamResult::default())
    }
}

fn converting(task: Task) -> BuiltinTask {
    let mut builtin = checking(task);
    builtin.logic = logic(task);
    builtin.description.active = TaskHooks {
        prepare: builtin.logic.prepare.is_some(),
        finish: builtin.logic.finish.is_some(),
        events: builtin.logic.streams,
    };
    builtin
}

fn checking(task: Task) -> BuiltinTask {
    let (input, output) = schemas(task).unzip();
    BuiltinTask {
        task,
        description: TaskDescription {
            slug: task.slug().to_owned(),
            input_schema: input.map(str::to_owned),
            output_schema: output.map(str::to_owned),
            wants: Vec::new(),
            active: TaskHooks::default(),
        },
        defaults: input.map(defaults).unwrap_or_default(),
        logic: TaskLogic::default(),
    }
}

fn logic(task: Task) -> TaskLogic {
    let shaped = |prepare, finish| TaskLogic {
        prepare: Some(prepare),
        finish: Some(finish),
        ..TaskLogic::default()
    };
    let of_image = |finish| TaskLogic {
        file: Some("image"),
        ..shaped(image::prepare_image, finish)
    };
    match task {
        Task::TextGeneration => TaskLogic {
            finish: Some(generation::finish),
            streams: true,
            ..TaskLogic::default()
        },
        Task::TextEmbeddings => TaskLogic {
            finish: Some(embeddings::finish),
            ..TaskLogic::default()
        },
        Task::TextClassification => shaped(
            labels::prepare_text_classification,
            labels::finish_classification,
        ),
        Task::TextToImage => TaskLogic {
            aliases: image::TEXT_TO_IMAGE_ALIASES,
            ..shaped(image::prepare_text_to_image, image::finish_text_to_image)
        },
        Task::TextToSpeech => TaskLogic {
            aliases: speech::TEXT_TO_SPEECH_ALIASES,
            ..shaped(
                speech::prepare_text_to_speech,
                speech::finish_text_to_speech,
            )
        },
        Task::AutomaticSpeechRecognition => TaskLogic {
            aliases: speech::RECOGNITION_ALIASES,
            file: Some("audio"),
            ..shaped(speech::prepare_recognition, speech::finish_recognition)
        },
        Task::ImageClassification => of_image(labels::finish_classification),
        Task::ObjectDetection => of_image(labels::finish_detection),
        Task::ImageToText => TaskLogic {
            streams: true,
            ..of_image(single_text::finish_image_to_text)
        },
        Task::ImageTextToText => TaskLogic {
            streams: true,
            ..shaped(image::prepare_image_or_messages, generation::finish)
        },
        Task::Translation => shaped(
            single_text::prepare_translation,
            single_text::finish_translation,
        ),
        Task::Summarization => shaped(
            single_text::prepare_summarization,
            single_text::finish_summarization,
        ),
        Task::MultimodalEmbeddings => shaped(embeddings::prepare_multimodal, embeddings::finish),
        Task::DumbPipe => TaskLogic::default(),
    }
}

/// Input and output schema; a dumb pipe has none.
fn schemas(task: Task) -> Option<(&'static str, &'static str)> {
    macro_rules! files {
        ($slug:literal) => {
            Some((
                include_str!(concat!(
                    "../../../plugins/tasks/",
                    $slug,
                    "/input.schema.json"
                )),
                include_str!(concat!(
                    "../../../plugins/tasks/",
                    $slug,
                    "/output.schema.json"
                )),
            ))
        };
    }
    match task {
        Task::TextGeneration => files!("text-generation"),
        Task::TextClassification => files!("text-classification"),
        Task::TextEmbeddings => files!("text-embeddings"),
        Task::TextToImage => files!("text-to-image"),
        Task::TextToSpeech => files!("text-to-speech"),
        Task::AutomaticSpeechRecognition => files!("automatic-speech-recognition"),
        Task::ImageClassification => files!("image-classification"),
        Task::ImageToText => files!("image-to-text"),
        Task::ImageTextToText => files!("image-text-to-text"),
        Task::ObjectDetection => files!("object-detection"),
        Task::Translation => files!("translation"),
        Task::Summarization => files!("summarization"),
        Task::MultimodalEmbeddings => files!("multimodal-embeddings"),
        Task::DumbPipe => None,
    }
}

/// Members of the input that have a `default` in its schema.
fn defaults(schema: &str) -> Vec<(String, String)> {
    let properties = Members::parse(schema.as_bytes())
        .and_then(|schema| Some(schema.get("properties")?.to_owned()))
        .unwrap_or_default();
    let properties = super::json::parse_object(&properties).unwrap_or_default();
    properties
        .iter()
        .filter_map(|(name, property)| {
            let default = super::json::member(property, "default")?;
            Some((name.to_owned(), default.to_owned()))
        })
        .collect()
}

fn find(builtins: &'static [BuiltinTask], task: Task) -> &'static BuiltinTask {
    builtins
        .iter()
        .find(|builtin| builtin.task == task)
        .expect("every task has a built-in: both tables are made from Task::ALL")
}
