//! `multimodal-embeddings`: texts or images in, `{shape, data}` out.
//!
//! Images are lists of bytes, base64 or data URIs, at most 100; the server gets base64.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{Input, Schemas, describe, embeddings, finish, hooks, input::rejected};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct MultimodalEmbeddings {
    hooks: Hooks,
}

impl Plugin for MultimodalEmbeddings {
    fn configure(settings: &mut Settings) -> MultimodalEmbeddings {
        MultimodalEmbeddings {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for MultimodalEmbeddings {
    fn describe(&self) -> Description {
        describe("multimodal-embeddings", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        if !input.has("text") && !input.has("image") {
            let message = "`text` or `image` is required";
            return Err(rejected("invalid_input", "", message));
        }
        let images = input.files("image")?;
        input.report("input_images", images as f64);
        input.report_characters("text");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, embeddings::finish)
    }
}

export_task!(MultimodalEmbeddings);
