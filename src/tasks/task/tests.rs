//! The constants of the tasks against their schemas. Hooks are tested in the gateway's core.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::json::{Members, member, parse_object};

const ALL: [&StandardTask; 14] = [
    &TEXT_GENERATION,
    &TEXT_CLASSIFICATION,
    &TEXT_EMBEDDINGS,
    &TEXT_TO_IMAGE,
    &TEXT_TO_SPEECH,
    &AUTOMATIC_SPEECH_RECOGNITION,
    &IMAGE_CLASSIFICATION,
    &IMAGE_TO_TEXT,
    &IMAGE_TEXT_TO_TEXT,
    &OBJECT_DETECTION,
    &TRANSLATION,
    &SUMMARIZATION,
    &MULTIMODAL_EMBEDDINGS,
    &DUMB_PIPE,
];

/// Members of an input that have a `default` in its schema.
fn defaults(schema: &str) -> Vec<(String, String)> {
    let schema = Members::parse(schema.as_bytes()).unwrap();
    let properties = schema.get("properties").unwrap_or("{}");
    let properties = parse_object(properties).unwrap();
    properties
        .iter()
        .filter_map(|(name, property)| {
            let default = member(property, "default")?;
            Some((name.to_owned(), default.to_owned()))
        })
        .collect()
}

#[test]
fn the_defaults_are_those_of_the_schema() {
    for task in ALL.into_iter().filter(|task| task.hooks().prepare) {
        let schema = defaults(task.schemas().unwrap().input);
        let schema = schema.iter().map(|(name, json)| (&**name, &**json));
        assert!(
            schema.eq(task.defaults().iter().copied()),
            "{}",
            task.slug()
        );
    }
}

#[test]
fn every_name_of_a_task_is_its_own() {
    let mut slugs = ALL.map(StandardTask::slug);
    slugs.sort_unstable();
    assert!(slugs.windows(2).all(|pair| pair[0] != pair[1]));
}
