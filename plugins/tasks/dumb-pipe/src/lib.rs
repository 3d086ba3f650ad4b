//! `dumb-pipe`: anything in, anything out, unchanged both ways.
//!
//! No schema and no hook: nothing of it is called for a request. The server is asked at the endpoint's own
//! URL.

use infergate_sdk::{
    Description, Hooks, Plugin, Prepared, Request, Settings, Task, TaskError, export_task,
};

struct DumbPipe;

impl Plugin for DumbPipe {
    fn configure(_: &mut Settings) -> DumbPipe {
        DumbPipe
    }
}

impl Task for DumbPipe {
    fn describe(&self) -> Description {
        Description {
            slug: "dumb-pipe".into(),
            input_schema: None,
            output_schema: None,
            wants: Vec::new(),
            active: Hooks::empty(),
        }
    }

    fn prepare(&self, _: Request) -> Result<Prepared, TaskError> {
        Ok(Prepared {
            backend_path: Some(String::new()),
            ..Prepared::default()
        })
    }
}

export_task!(DumbPipe);
