//! `text-to-image`: a description in, an image out.
//!
//! An answer that is the image itself passes untouched; base64 in JSON becomes `{image}`. Metrics for the
//! price: `image_steps`, and `image_tiles` of 512 × 512 pixels.

use infergate_sdk::standard::{self, TEXT_TO_IMAGE as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct TextToImage {
    hooks: TaskHooks,
}

impl Plugin for TextToImage {
    fn configure(settings: &mut Settings) -> TextToImage {
        TextToImage {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for TextToImage {
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

export_task!(TextToImage);
