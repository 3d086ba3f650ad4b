//! The built-in implementation of each task for each kind of model server; the logic is in `infergate_tasks`.
//!
//! Called by the plugin module, for models without a task plugin and where one has failed.

use std::sync::LazyLock;

use infergate_tasks::task::{
    AUTOMATIC_SPEECH_RECOGNITION, DUMB_PIPE, IMAGE_CLASSIFICATION, IMAGE_TEXT_TO_TEXT,
    IMAGE_TO_TEXT, MULTIMODAL_EMBEDDINGS, OBJECT_DETECTION, SUMMARIZATION, Schemas, StandardTask,
    TEXT_CLASSIFICATION, TEXT_EMBEDDINGS, TEXT_GENERATION, TEXT_TO_IMAGE, TEXT_TO_SPEECH,
    TRANSLATION,
};

use super::{
    FinishResult, PrepareResult, StreamEvent, StreamResult, TaskDescription, TaskError,
    TaskRequest, TaskResponse,
};
use crate::model::{Payload, Task};

/// Path of this task at a plain HTTP server, where `prepare` names none; empty for the base URL itself.
pub const fn backend_path(task: Task) -> &'static str {
    standard(task).backend_path()
}

/// A task without a plugin.
#[derive(Clone, Debug)]
pub struct BuiltinTask {
    task: Task,
    logic: StandardTask,
    description: TaskDescription,
}

/// For plain HTTP servers, whose payloads and responses the hooks convert.
static CONVERTING: LazyLock<Vec<BuiltinTask>> =
    LazyLock::new(|| Task::ALL.map(|task| built_in(task, *standard(task))).into());

/// For servers whose protocol the gateway speaks: the backend converts payload and response.
static CHECKING: LazyLock<Vec<BuiltinTask>> = LazyLock::new(|| {
    Task::ALL
        .map(|task| built_in(task, standard(task).without_hooks()))
        .into()
});

impl BuiltinTask {
    /// The task for a plain HTTP server ([`Payload::Task`]): schemas and hooks.
    pub fn of(task: Task) -> &'static BuiltinTask {
        find(&CONVERTING, task)
    }

    /// The task for servers that are posted this payload: for a protocol the schemas only, since the
    /// backend itself builds the payload and reads the response.
    pub fn for_payload(task: Task, payload: Payload) -> &'static BuiltinTask {
        match payload {
            Payload::Task => BuiltinTask::of(task),
            Payload::Protocol => find(&CHECKING, task),
        }
    }

    /// Schemas of the input and of the result; none for a dumb pipe.
    pub fn schemas(&self) -> Option<Schemas> {
        self.logic.schemas()
    }

    /// Schemas and active hooks of the task. The hooks read whole bodies.
    pub fn description(&self) -> &TaskDescription {
        &self.description
    }

    /// The payload for the server, with metrics known before the run.
    ///
    /// # Errors
    /// As [`StandardTask::prepare`].
    pub fn prepare(&self, request: &TaskRequest) -> Result<PrepareResult, TaskError> {
        self.logic.prepare(request)
    }

    /// The result for the client, with the metrics that the response reports.
    ///
    /// # Errors
    /// As [`StandardTask::finish`].
    pub fn finish(&self, response: &TaskResponse) -> Result<FinishResult, TaskError> {
        self.logic.finish(response)
    }

    /// The events of a stream, each in the client's format.
    ///
    /// # Errors
    /// As [`StandardTask::push`].
    pub fn push(&self, state: &[u8], events: &[StreamEvent]) -> Result<StreamResult, String> {
        self.logic.push(state, events)
    }

    /// The end of a stream; `cut` when the server broke off or the client left.
    ///
    /// # Errors
    /// As [`StandardTask::close`].
    pub fn close(&self, state: &[u8], cut: bool) -> Result<StreamResult, String> {
        self.logic.close(state, cut)
    }
}

fn built_in(task: Task, logic: StandardTask) -> BuiltinTask {
    BuiltinTask {
        task,
        description: logic.description(logic.hooks()),
        logic,
    }
}

const fn standard(task: Task) -> &'static StandardTask {
    match task {
        Task::TextGeneration => &TEXT_GENERATION,
        Task::TextClassification => &TEXT_CLASSIFICATION,
        Task::TextEmbeddings => &TEXT_EMBEDDINGS,
        Task::TextToImage => &TEXT_TO_IMAGE,
        Task::TextToSpeech => &TEXT_TO_SPEECH,
        Task::AutomaticSpeechRecognition => &AUTOMATIC_SPEECH_RECOGNITION,
        Task::ImageClassification => &IMAGE_CLASSIFICATION,
        Task::ImageToText => &IMAGE_TO_TEXT,
        Task::ImageTextToText => &IMAGE_TEXT_TO_TEXT,
        Task::ObjectDetection => &OBJECT_DETECTION,
        Task::Translation => &TRANSLATION,
        Task::Summarization => &SUMMARIZATION,
        Task::MultimodalEmbeddings => &MULTIMODAL_EMBEDDINGS,
        Task::DumbPipe => &DUMB_PIPE,
    }
}

fn find(builtins: &'static [BuiltinTask], task: Task) -> &'static BuiltinTask {
    builtins
        .iter()
        .find(|builtin| builtin.task == task)
        .expect("every task has a built-in: both tables are made from Task::ALL")
}
