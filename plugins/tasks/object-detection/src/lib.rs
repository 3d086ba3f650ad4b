//! `object-detection`: an image in, `[{label, score, box: {xmin, ymin, xmax, ymax}}]` out.
//!
//! The image is a list of bytes, base64, a data URI or the body itself; the server gets base64. Boxes may
//! be corners by several names, a corner with a size, or four numbers.

use infergate_sdk::{
    Description, Finished, Hooks, Plugin, Prepared, Request, Response, Settings, Task, TaskError,
    export_task,
};
use infergate_task_kit::{
    Input, Schemas, describe, finish, hooks,
    json::{list, member, number, object},
    labels::{label, of_rows},
};

const SCHEMAS: Schemas = Schemas {
    input: include_str!("../input.schema.json"),
    output: include_str!("../output.schema.json"),
};

struct ObjectDetection {
    hooks: Hooks,
}

impl Plugin for ObjectDetection {
    fn configure(settings: &mut Settings) -> ObjectDetection {
        ObjectDetection {
            hooks: hooks(settings, Hooks::PREPARE | Hooks::FINISH),
        }
    }
}

impl Task for ObjectDetection {
    fn describe(&self) -> Description {
        describe("object-detection", Some(SCHEMAS), self.hooks)
    }

    fn prepare(&self, request: Request) -> Result<Prepared, TaskError> {
        let mut input = Input::read(&request, Some("image"))?;
        input.require("image")?;
        input.image()?;
        Ok(input.prepared())
    }

    fn finish(&self, response: Response) -> Result<Finished, TaskError> {
        finish(&response, |json| {
            let names = ["boxes", "detections", "objects", "predictions"];
            of_rows(json, &names, |row| {
                let (label, score) = label(row)?;
                let place = ["box", "bbox", "bounding_box"];
                let place = corners(place.iter().find_map(|name| member(row, name))?)?;
                Some(format!(
                    r#"{{"label":{label},"score":{score},"box":{place}}}"#
                ))
            })
        })
    }
}

/// `{xmin, ymin, xmax, ymax}` from that, from other names of the corners, from corner and size, or
/// from a list of four.
fn corners(json: &str) -> Option<String> {
    let of = |[xmin, ymin, xmax, ymax]: [f64; 4]| {
        format!(r#"{{"xmin":{xmin},"ymin":{ymin},"xmax":{xmax},"ymax":{ymax}}}"#)
    };
    if let Some(all) = list(json) {
        let numbers: Option<Vec<f64>> = all.into_iter().map(number).collect();
        return <[f64; 4]>::try_from(numbers?).ok().map(of);
    }
    let members = object(json)?;
    let side = |names: &[&str]| members.first(names).and_then(number);
    let (x, y) = (
        side(&["xmin", "x1", "left", "x"])?,
        side(&["ymin", "y1", "top", "y"])?,
    );
    let right = side(&["xmax", "x2", "right"]).or_else(|| Some(x + side(&["width", "w"])?));
    let bottom = side(&["ymax", "y2", "bottom"]).or_else(|| Some(y + side(&["height", "h"])?));
    let all = [x, y, right?, bottom?];
    all.iter().all(|side| side.is_finite()).then(|| of(all))
}

export_task!(ObjectDetection);
