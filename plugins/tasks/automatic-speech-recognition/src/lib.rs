//! `automatic-speech-recognition`: sound in, `{text, word_count?, words?, vtt?}` out.
//!
//! The sound is a list of bytes, base64, a data URI or the body itself; the server gets base64. Words with
//! times become subtitles where the server makes none.

use infergate_sdk::standard::{self, AUTOMATIC_SPEECH_RECOGNITION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct AutomaticSpeechRecognition {
    hooks: TaskHooks,
}

impl Plugin for AutomaticSpeechRecognition {
    fn configure(settings: &mut Settings) -> AutomaticSpeechRecognition {
        AutomaticSpeechRecognition {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for AutomaticSpeechRecognition {
    fn describe(&self) -> Description {
        standard::describe(&TASK, self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        standard::prepare(&TASK, request)
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        standard::finish(&TASK, response)
    }
}

export_task!(AutomaticSpeechRecognition);
