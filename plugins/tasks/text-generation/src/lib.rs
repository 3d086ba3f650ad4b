//! `text-generation`: a prompt or a conversation in, `{response, tool_calls?, usage?}` out.
//!
//! The input goes to the server as it is; the schema says what it may be. Answers and events of OpenAI,
//! of Text Generation Inference and plain `response` or `text` are brought to the documented shape.

use infergate_sdk::{
    Description, Event, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};
use infergate_task_kit::{Schemas, describe, finish, hooks, stream, text, untouched};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct TextGeneration {
    hooks: Hooks,
}

impl Plugin for TextGeneration {
    fn configure(settings: &mut Settings) -> TextGeneration {
        TextGeneration {
            hooks: hooks(settings, Hooks::FINISH | Hooks::EVENTS),
        }
    }
}

impl Task for TextGeneration {
    fn describe(&self) -> Description {
        describe("text-generation", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, _request: Request) -> Result<Prepared, TaskError> {
        Ok(untouched())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, text::finish)
    }
}

impl TaskStream for TextGeneration {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        stream::push(&state, &events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        stream::close(&state, cut)
    }
}

export_task_stream!(TextGeneration);
