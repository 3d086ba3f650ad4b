//! `text-embeddings`: one text or many in, `{shape, data}` out.
//!
//! The input goes to the server as it is. OpenAI's `data`, `embeddings`, one vector alone and plain lists
//! of vectors are taken; vectors that differ in length are an error.

use infergate_sdk::standard::{self, TEXT_EMBEDDINGS as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct TextEmbeddings {
    hooks: TaskHooks,
}

impl Plugin for TextEmbeddings {
    fn configure(settings: &mut Settings) -> TextEmbeddings {
        TextEmbeddings {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for TextEmbeddings {
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

export_task!(TextEmbeddings);
