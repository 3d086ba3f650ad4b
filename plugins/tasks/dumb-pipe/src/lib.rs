//! `dumb-pipe`: anything in, anything out, unchanged both ways.
//!
//! No schema and no hook: nothing of it is called for a request. The server is asked at the endpoint's own
//! URL.

use infergate_sdk::standard::{self, DUMB_PIPE};
use infergate_sdk::{
    Description, Plugin, Prepared, Request, Settings, Task, TaskError, export_task,
};

struct DumbPipe;

impl Plugin for DumbPipe {
    fn configure(_: &mut Settings) -> DumbPipe {
        DumbPipe
    }
}

impl Task for DumbPipe {
    fn describe(&self) -> Description {
        standard::describe(&DUMB_PIPE, DUMB_PIPE.hooks())
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        standard::prepare(&DUMB_PIPE, request)
    }
}

export_task!(DumbPipe);
