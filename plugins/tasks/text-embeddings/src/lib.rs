//! `text-embeddings`: one text or many in, `{shape, data}` out.
//!
//! The input goes to the server as it is. OpenAI's `data`, `embeddings`, one vector alone and plain lists
//! of vectors are taken; vectors that differ in length are an error.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{Schemas, describe, embeddings, finish, hooks, untouched};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct TextEmbeddings {
    hooks: Hooks,
}

impl Plugin for TextEmbeddings {
    fn configure(settings: &mut Settings) -> TextEmbeddings {
        TextEmbeddings {
            hooks: hooks(settings, Hooks::FINISH),
        }
    }
}

impl Task for TextEmbeddings {
    fn describe(&self) -> Description {
        describe("text-embeddings", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, _request: Request) -> Result<Prepared, TaskError> {
        Ok(untouched())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, embeddings::finish)
    }
}

export_task!(TextEmbeddings);
