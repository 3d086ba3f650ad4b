//! `image-classification`: an image in, `[{label, score}]` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64.

use infergate_sdk::standard::{self, IMAGE_CLASSIFICATION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct ImageClassification {
    hooks: TaskHooks,
}

impl Plugin for ImageClassification {
    fn configure(settings: &mut Settings) -> ImageClassification {
        ImageClassification {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for ImageClassification {
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

export_task!(ImageClassification);
