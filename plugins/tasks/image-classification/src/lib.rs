//! `image-classification`: an image in, `[{label, score}]` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{Input, Schemas, describe, finish, hooks, labels};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct ImageClassification {
    hooks: Hooks,
}

impl Plugin for ImageClassification {
    fn configure(settings: &mut Settings) -> ImageClassification {
        ImageClassification {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for ImageClassification {
    fn describe(&self) -> Description {
        describe("image-classification", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, Some("image"))?;
        input.require("image")?;
        input.image()?;
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, labels::classification)
    }
}

export_task!(ImageClassification);
