//! `summarization`: a text in, `{summary}` out.

use infergate_sdk::standard::{self, SUMMARIZATION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct Summarization {
    hooks: TaskHooks,
}

impl Plugin for Summarization {
    fn configure(settings: &mut Settings) -> Summarization {
        Summarization {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for Summarization {
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

export_task!(Summarization);
