//! `image-to-text`: an image in, `{description}` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64.

use infergate_sdk::{
    Description, Event, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};
use infergate_task_kit::{Input, Schemas, answer::single_text, describe, finish, hooks, stream};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

/// What the schema says a client may leave out, with its JSON.
const DEFAULTS: [(&str, &str); 2] = [
    ("prompt", r#""Generate a caption for this image""#),
    ("max_tokens", "512"),
];

struct ImageToText {
    hooks: Hooks,
}

impl Plugin for ImageToText {
    fn configure(settings: &mut Settings) -> ImageToText {
        ImageToText {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH | Hooks::EVENTS),
        }
    }
}

impl Task for ImageToText {
    fn describe(&self) -> Description {
        describe("image-to-text", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, Some("image"))?;
        input.fill(&DEFAULTS);
        input.require("image")?;
        input.image()?;
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            single_text(json, &["description", "caption", "alt_text"])
        })
    }
}

impl TaskStream for ImageToText {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        stream::push(&state, &events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        stream::close(&state, cut)
    }
}

export_task_stream!(ImageToText);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
