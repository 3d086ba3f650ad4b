//! `text-classification`: a text in, `[{label, score}]` out.
//!
//! Lists, lists of lists, columns and a single label are taken; a list with one bad row is an error.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{Input, Schemas, describe, finish, hooks, labels};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct TextClassification {
    hooks: Hooks,
}

impl Plugin for TextClassification {
    fn configure(settings: &mut Settings) -> TextClassification {
        TextClassification {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for TextClassification {
    fn describe(&self) -> Description {
        describe("text-classification", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.require("text")?;
        input.report_characters("text");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, labels::classification)
    }
}

export_task!(TextClassification);
