//! `image-text-to-text`: an image and a prompt, or a conversation with images, in, `{response}` out.
//!
//! An `image` beside a prompt goes to the server as base64; those in messages stay as they are.

use infergate_sdk::{
    Description, Event, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};
use infergate_task_kit::{Input, Schemas, describe, finish, hooks, stream, text};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct ImageTextToText {
    hooks: Hooks,
}

impl Plugin for ImageTextToText {
    fn configure(settings: &mut Settings) -> ImageTextToText {
        ImageTextToText {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH | Hooks::EVENTS),
        }
    }
}

impl Task for ImageTextToText {
    fn describe(&self) -> Description {
        describe("image-text-to-text", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.image()?;
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, text::finish)
    }
}

impl TaskStream for ImageTextToText {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        stream::push(&state, &events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        stream::close(&state, cut)
    }
}

export_task_stream!(ImageTextToText);
