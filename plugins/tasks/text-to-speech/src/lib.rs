//! `text-to-speech`: a text in, sound out.
//!
//! An answer that is the sound itself passes untouched; base64 in JSON becomes `{audio}`.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{
    Input, Schemas, Shaped,
    answer::{files_under, seconds},
    describe, finish, hooks,
    json::{member, object},
};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

/// What the schema says a client may leave out, with its JSON.
const DEFAULTS: [(&str, &str); 1] = [("lang", r#""en""#)];

struct TextToSpeech {
    hooks: Hooks,
}

impl Plugin for TextToSpeech {
    fn configure(settings: &mut Settings) -> TextToSpeech {
        TextToSpeech {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for TextToSpeech {
    fn describe(&self) -> Description {
        describe("text-to-speech", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.alias("prompt", "text");
        input.alias("voice", "speaker");
        input.fill(&DEFAULTS);
        input.require("text")?;
        input.report_characters("text");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            let sounds = files_under(json, &["audio", "audio_base64", "data", "output"]);
            let first = sounds.and_then(|sounds| sounds.into_iter().next());
            let first = first.ok_or("there is no sound in base64 in the answer")?;
            let length = object(json).map_or(0.0, |members| seconds(&members));
            Ok(Shaped::new(format!(r#"{{"audio":{first}}}"#))
                .with("audio_seconds", length)
                .with_usage(member(json, "usage")))
        })
    }
}

export_task!(TextToSpeech);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
