//! `object-detection`: an image in, `[{label, score, box: {xmin, ymin, xmax, ymax}}]` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64. Boxes may
//! be corners by several names, a corner with a size, or four numbers.

use infergate_sdk::standard::{self, OBJECT_DETECTION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct ObjectDetection {
    hooks: TaskHooks,
}

impl Plugin for ObjectDetection {
    fn configure(settings: &mut Settings) -> ObjectDetection {
        ObjectDetection {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for ObjectDetection {
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

export_task!(ObjectDetection);
