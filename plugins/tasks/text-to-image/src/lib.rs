//! `text-to-image`: a description in, an image out.
//!
//! An answer that is the image itself passes untouched; base64 in JSON becomes `{image}`. Metrics for the
//! price: `image_steps`, and `image_tiles` of 512 × 512 pixels.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{
    Input, Schemas, Shaped, answer::files_under, describe, finish, hooks, json::member,
};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

/// What the schema says a client may leave out, with its JSON.
const DEFAULTS: [(&str, &str); 4] = [
    ("width", "1024"),
    ("height", "1024"),
    ("num_steps", "20"),
    ("guidance", "7.5"),
];

/// Pixels along the side of a tile, as image models are priced.
const TILE: f64 = 512.0;
/// No image has a longer side, in pixels.
const SIDE_MAX: f64 = 1e6;

struct TextToImage {
    hooks: Hooks,
}

impl Plugin for TextToImage {
    fn configure(settings: &mut Settings) -> TextToImage {
        TextToImage {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for TextToImage {
    fn describe(&self) -> Description {
        describe("text-to-image", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, None)?;
        input.alias("steps", "num_steps");
        input.alias("image_b64", "image");
        input.fill(&DEFAULTS);
        input.require("prompt")?;
        let images = input.file("image")?.iter().count() + input.file("mask")?.iter().count();
        let tiles = |side: Option<f64>| (side.unwrap_or(0.0).clamp(0.0, SIDE_MAX) / TILE).ceil();
        let tiles = tiles(input.number("width")) * tiles(input.number("height"));
        input.report("image_steps", input.number("num_steps").unwrap_or(0.0));
        input.report("image_tiles", tiles);
        input.report("input_images", images as f64);
        input.report_characters("prompt");
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            let names = ["images", "image", "image_b64", "data", "output"];
            let images = files_under(json, &names).unwrap_or_default();
            let body = match images.as_slice() {
                [] => return Err("there is no image in base64 in the answer".to_owned()),
                [image] => format!(r#"{{"image":{image}}}"#),
                all => format!(r#"{{"image":{},"images":[{}]}}"#, all[0], all.join(",")),
            };
            Ok(Shaped::new(body)
                .with("output_images", images.len() as f64)
                .with_usage(member(json, "usage")))
        })
    }
}

export_task!(TextToImage);

#[cfg(test)]
mod tests {
    #[test]
    fn the_defaults_are_those_of_the_schema() {
        let schema = infergate_task_kit::defaults(super::SCHEMAS.input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(schema.eq(super::DEFAULTS));
    }
}
