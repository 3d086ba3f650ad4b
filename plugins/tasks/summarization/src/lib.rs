//! `summarization`: a text in, `{summary}` out.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{Input, Schemas, answer::single_text, describe, finish, hooks};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

/// What the schema says a client may leave out, with its JSON.
const DEFAULTS: [(&str, &str); 1] = [("max_length", "1024")];

struct Summarization {
    hooks: Hooks,
}

impl Plugin for Summarization {
    fn configure(settings: &mut Settings) -> Summarization {
        Summarization {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for Summarization {
    fn describe(&self) -> Description {
        describe("summarization", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.fill(&DEFAULTS);
        input.require("input_text")?;
        input.report_characters("input_text");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            single_text(json, &["summary", "summary_text", "abstract"])
        })
    }
}

export_task!(Summarization);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
