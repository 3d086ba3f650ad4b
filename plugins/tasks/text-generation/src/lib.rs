//! `text-generation`: a prompt or a conversation in, `{response, tool_calls?, usage?}` out.
//!
//! The input goes to the server as it is; the schema says what it may be. Answers and events of OpenAI,
//! of Text Generation Inference and plain `response` or `text` are brought to the documented shape.

use infergate_sdk::standard::{self, TEXT_GENERATION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Event, Finished, Plugin, Prepared, Request, Response, Settings, Step, Task,
    TaskError, TaskStream, export_task_stream,
};

struct TextGeneration {
    hooks: TaskHooks,
}

impl Plugin for TextGeneration {
    fn configure(settings: &mut Settings) -> TextGeneration {
        TextGeneration {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for TextGeneration {
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

impl TaskStream for TextGeneration {
    fn push(&self, state: Vec<u8>, events: Vec<Event>) -> Result<Step, String> {
        standard::push(&TASK, &state, events)
    }

    fn close(&self, state: Vec<u8>, cut: bool) -> Result<Step, String> {
        standard::close(&TASK, &state, cut)
    }
}

export_task_stream!(TextGeneration);
