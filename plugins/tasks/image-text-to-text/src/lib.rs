//! `image-text-to-text`: an image and a prompt, or a conversation with images, in, `{response}` out.
//!
//! An `image` beside a prompt goes to the server as base64; those in messages stay as they are.

use infergate_sdk::standard::{self, IMAGE_TEXT_TO_TEXT as TASK, TaskHooks};
use infergate_sdk::{
    Description, Event, Finished, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};

struct ImageTextToText {
    hooks: TaskHooks,
}

impl Plugin for ImageTextToText {
    fn configure(settings: &mut Settings) -> ImageTextToText {
        ImageTextToText {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for ImageTextToText {
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

impl TaskStream for ImageTextToText {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        standard::push(&TASK, &state, events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        standard::close(&TASK, &state, cut)
    }
}

export_task_stream!(ImageTextToText);
