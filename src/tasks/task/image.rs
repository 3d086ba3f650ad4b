//! Tasks around an image: one made from a text, and several that look at one.

use alloc::format;
use alloc::string::String;

use super::input::TaskInput;
use super::result::{TaskResult, files_under};
use super::values::TaskError;
use crate::json::member;

/// Pixels along the side of a tile, as image models are priced.
const TILE: f64 = 512.0;

/// No image has a longer side, in pixels.
const SIDE_MAX: f64 = 1e6;

/// Names of images in responses: a list goes before a single image beside it.
const IMAGES: [&str; 5] = ["images", "image", "image_b64", "data", "output"];

/// Text to image.
pub(super) fn prepare_text_to_image(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("prompt")?;
    let images = input.convert_file("image")?.map_or(0, |_| 1)
        + input.convert_file("mask")?.map_or(0, |_| 1);
    let tiles = tiles(input.number("width")) * tiles(input.number("height"));
    input.report("image_steps", input.number("num_steps").unwrap_or(0.0));
    input.report("image_tiles", tiles);
    input.report("input_images", f64::from(images));
    input.report("input_characters", input.characters("prompt") as f64);
    Ok(())
}

/// Tiles along a side of so many pixels, begun ones included.
fn tiles(side: Option<f64>) -> f64 {
    let tiles = side.unwrap_or(0.0).clamp(0.0, SIDE_MAX) / TILE;
    let whole = f64::from(tiles as u32);
    if whole < tiles { whole + 1.0 } else { whole }
}

/// Image classification, object detection and image to text.
pub(super) fn prepare_image(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("image")?;
    prepare_image_or_messages(input)
}

/// Image and text to text: in a conversation, images stand in the messages.
pub(super) fn prepare_image_or_messages(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    let bytes = input.convert_file("image")?;
    input.report("input_images", f64::from(bytes.map_or(0, |_| 1)));
    input.report("image_bytes", bytes.unwrap_or(0) as f64);
    input.report("input_characters", input.characters("prompt") as f64);
    Ok(())
}

/// Text to image, where the server responds with JSON.
pub(super) fn finish_text_to_image(json: &str) -> Result<TaskResult, String> {
    let images = files_under(json, &IMAGES).filter(|images| !images.is_empty());
    let images = images.ok_or("there is no image in base64 in the answer")?;
    let body = match images.as_slice() {
        [image] => format!(r#"{{"image":{image}}}"#),
        all => format!(r#"{{"image":{},"images":[{}]}}"#, all[0], all.join(",")),
    };
    Ok(TaskResult::new(body)
        .with("output_images", images.len() as f64)
        .with_usage(member(json, "usage")))
}
