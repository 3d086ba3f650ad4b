//! `text-to-speech`: a text in, sound out.
//!
//! An answer that is the sound itself passes untouched; base64 in JSON becomes `{audio}`.

use infergate_sdk::standard::{self, TEXT_TO_SPEECH as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct TextToSpeech {
    hooks: TaskHooks,
}

impl Plugin for TextToSpeech {
    fn configure(settings: &mut Settings) -> TextToSpeech {
        TextToSpeech {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for TextToSpeech {
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

export_task!(TextToSpeech);
