//! `text-classification`: a text in, `[{label, score}]` out.
//!
//! Lists, lists of lists, columns and a single label are taken; a list with one bad row is an error.

use infergate_sdk::standard::{self, TEXT_CLASSIFICATION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct TextClassification {
    hooks: TaskHooks,
}

impl Plugin for TextClassification {
    fn configure(settings: &mut Settings) -> TextClassification {
        TextClassification {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for TextClassification {
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

export_task!(TextClassification);
