//! `multimodal-embeddings`: texts or images in, `{shape, data}` out.
//!
//! Images are lists of bytes, base64 or data URIs, at most 100; the server gets base64.

use infergate_sdk::standard::{self, MULTIMODAL_EMBEDDINGS as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct MultimodalEmbeddings {
    hooks: TaskHooks,
}

impl Plugin for MultimodalEmbeddings {
    fn configure(settings: &mut Settings) -> MultimodalEmbeddings {
        MultimodalEmbeddings {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for MultimodalEmbeddings {
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

export_task!(MultimodalEmbeddings);
