//! `translation`: a text and a language in, `{translated_text}` out.

use infergate_sdk::standard::{self, TRANSLATION as TASK, TaskHooks};
use infergate_sdk::{
    Description, Finished, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};

struct Translation {
    hooks: TaskHooks,
}

impl Plugin for Translation {
    fn configure(settings: &mut Settings) -> Translation {
        Translation {
            hooks: standard::hooks(&TASK, settings),
        }
    }
}

impl Task for Translation {
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

export_task!(Translation);
