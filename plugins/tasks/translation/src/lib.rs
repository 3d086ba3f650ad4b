//! `translation`: a text and a language in, `{translated_text}` out.

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
const DEFAULTS: [(&str, &str); 1] = [("source_lang", r#""en""#)];

struct Translation {
    hooks: Hooks,
}

impl Plugin for Translation {
    fn configure(settings: &mut Settings) -> Translation {
        Translation {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for Translation {
    fn describe(&self) -> Description {
        describe("translation", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.fill(&DEFAULTS);
        input.require("text")?;
        input.require("target_lang")?;
        input.report_characters("text");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            single_text(
                json,
                &["translated_text", "translation_text", "translation"],
            )
        })
    }
}

export_task!(Translation);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
