//! `image-to-text`: an image in, `{description}` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64.

use infergate_sdk::standard::{self, IMAGE_TO_TEXT as TASK, TaskHooks};
use infergate_sdk::{
    Description, Event, Finished, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};

struct ImageToText {
    hooks: TaskHooks,
}

impl Plugin for ImageToText {
    fn configure(settings: &mut Settings) -> ImageToText {
        ImageToText {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for ImageToText {
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

impl TaskStream for ImageToText {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        standard::push(&TASK, &state, events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        standard::close(&TASK, &state, cut)
    }
}

export_task_stream!(ImageToText);
