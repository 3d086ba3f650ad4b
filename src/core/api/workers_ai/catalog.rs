//! The Workers AI catalogue: which models there are, and the schemas of one.
//!
//! Access is decided elsewhere: the caller hands in the models that an account may use. Known
//! there as models search and model schema. Bounds: [`PER_PAGE_MAX`] models a page.

use std::borrow::Cow;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::{ModelSpec, Task};
use crate::refusal::Refusal;

/// Default number of models of a page.
const PER_PAGE_DEFAULT: usize = 50;
/// Largest page; a larger request gets this many.
pub const PER_PAGE_MAX: usize = 1000;

/// Search of a caller. An official client reads page after page until one is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogQuery {
    /// From 1.
    pub page: usize,
    /// Models of a page.
    pub per_page: usize,
    /// Part of a name, in either case.
    search: Option<String>,
    /// A task, as its slug or as its title.
    task: Option<String>,
    /// Publisher: `meta` of `@cf/meta/llama`.
    author: Option<String>,
}

impl CatalogQuery {
    /// Reads a query, the part after `?`. Parameters that are not known are left alone.
    ///
    /// # Errors
    /// `page` or `per_page` is no positive whole number.
    pub fn parse(query: &str) -> Result<CatalogQuery, Refusal> {
        let mut search = CatalogQuery {
            page: 1,
            per_page: PER_PAGE_DEFAULT,
            search: None,
            task: None,
            author: None,
        };
        for (name, value) in parameters(query) {
            let text = || Some(fold(&value)).filter(|text| !text.is_empty());
            match &*name {
                "page" => search.page = positive("page", &value)?,
                "per_page" => {
                    search.per_page = positive("per_page", &value)?.min(PER_PAGE_MAX);
                }
                "search" => {
                    search.search = Some(value.to_lowercase()).filter(|text| !text.is_empty());
                }
                "task" => search.task = text(),
                "author" => search.author = text(),
                _ => {}
            }
        }
        Ok(search)
    }

    fn matches(&self, model: &ModelSpec) -> bool {
        let names = || std::iter::once(&model.id).chain(&model.aliases);
        let part_of =
            |part: &String| names().any(|name| name.as_str().to_lowercase().contains(part));
        let is_task = |task: &String| fold(model.task.slug()) == *task;
        let is_author =
            |requested: &String| author(model).is_some_and(|name| fold(name) == *requested);
        self.search.as_ref().is_none_or(part_of)
            && self.task.as_ref().is_none_or(is_task)
            && self.author.as_ref().is_none_or(is_author)
    }

    /// `GET …/ai/models/search`: the page of `models` that are looked for.
    pub fn render<'a>(&self, models: impl Iterator<Item = &'a ModelSpec>) -> Vec<u8> {
        let found: Vec<&ModelSpec> = models.filter(|model| self.matches(model)).collect();
        let skipped = (self.page - 1).saturating_mul(self.per_page);
        let page = found.iter().skip(skipped).take(self.per_page);
        let result: Vec<_> = page.map(|model| model_object(model)).collect();
        let info = ResultInfo {
            page: self.page,
            per_page: self.per_page,
            count: result.len(),
            total_count: found.len(),
        };
        envelope(result, Some(info))
    }
}

/// The parameter `model` of a query.
///
/// # Errors
/// The parameter is absent or empty.
pub fn requested_model(query: &str) -> Result<String, Refusal> {
    let found = parameters(query).find(|(name, _)| name == "model");
    match found.filter(|(_, model)| !model.is_empty()) {
        Some((_, model)) => Ok(model.into_owned()),
        None => Err(Refusal::BadRequest {
            pointer: String::new(),
            message: "the parameter `model` is required: `?model=@cf/…`".into(),
        }),
    }
}

/// `GET …/ai/models/schema`: the JSON Schemas of a model's input and output. A task without
/// them has `{}`: anything goes.
pub fn schema(input: Option<&str>, output: Option<&str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Schemas<'a> {
        input: &'a RawValue,
        output: &'a RawValue,
    }
    let anything = || serde_json::from_str::<&RawValue>("{}").expect("two braces are JSON");
    let raw = |text: Option<&'_ str>| -> Option<Box<RawValue>> {
        serde_json::from_str::<Box<RawValue>>(text?).ok()
    };
    let (input, output) = (raw(input), raw(output));
    let schemas = Schemas {
        input: input.as_deref().unwrap_or(anything()),
        output: output.as_deref().unwrap_or(anything()),
    };
    envelope(schemas, None)
}

#[derive(Serialize)]
struct Envelope<T> {
    result: T,
    success: bool,
    errors: [(); 0],
    messages: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    result_info: Option<ResultInfo>,
}

/// Place of a page in what it is a part of.
#[derive(Serialize)]
pub(super) struct ResultInfo {
    page: usize,
    per_page: usize,
    count: usize,
    total_count: usize,
}

/// Returns a result in the envelope of the API.
pub(super) fn envelope(result: impl Serialize, result_info: Option<ResultInfo>) -> Vec<u8> {
    let envelope = Envelope {
        result,
        success: true,
        errors: [],
        messages: [],
        result_info,
    };
    serde_json::to_vec(&envelope).unwrap_or_default()
}

#[derive(Serialize)]
struct CatalogModel<'a> {
    id: &'a str,
    source: u8,
    name: &'a str,
    description: String,
    task: CatalogTask,
    tags: &'a [Arc<str>],
    properties: Vec<CatalogProperty<'a>>,
}

#[derive(Serialize)]
struct CatalogProperty<'a> {
    property_id: &'a str,
    value: Cow<'a, Value>,
}

#[derive(Serialize)]
struct CatalogTask {
    id: &'static str,
    name: &'static str,
    description: &'static str,
}

fn model_object(model: &ModelSpec) -> CatalogModel<'_> {
    let aliases: Vec<_> = model.aliases.iter().map(|alias| alias.as_str()).collect();
    let entry = &model.catalog;
    let mut properties: Vec<CatalogProperty<'_>> = Vec::new();
    if entry.beta {
        properties.push(CatalogProperty {
            property_id: "beta",
            value: Cow::Owned("true".into()),
        });
    }
    let own = entry
        .properties
        .iter()
        .map(|(name, value)| CatalogProperty {
            property_id: name,
            value: Cow::Borrowed(value),
        });
    properties.extend(own);
    CatalogModel {
        id: model.id.as_str(),
        source: 1,
        name: model.id.as_str(),
        description: match aliases.is_empty() || !entry.description.is_empty() {
            true => entry.description.to_string(),
            false => format!("Also called {}.", aliases.join(", ")),
        },
        task: task_object(model.task),
        tags: &entry.tags,
        properties,
    }
}

fn task_object(task: Task) -> CatalogTask {
    let (name, description) = title(task);
    CatalogTask {
        id: task.slug(),
        name,
        description,
    }
}

/// `GET …/ai/tasks`: the tasks of `models`, each once.
pub fn tasks<'a>(models: impl Iterator<Item = &'a ModelSpec>) -> Vec<u8> {
    let served: Vec<Task> = models.map(|model| model.task).collect();
    let all = Task::ALL.into_iter().filter(|task| served.contains(task));
    let result: Vec<_> = all.map(task_object).collect();
    let info = ResultInfo {
        page: 1,
        per_page: Task::ALL.len(),
        count: result.len(),
        total_count: result.len(),
    };
    envelope(result, Some(info))
}

/// The task's title in the catalogue, and what it does.
const fn title(task: Task) -> (&'static str, &'static str) {
    match task {
        Task::TextGeneration => ("Text Generation", "Writes text that goes on from a prompt."),
        Task::TextClassification => ("Text Classification", "Sorts texts into classes."),
        Task::TextEmbeddings => ("Text Embeddings", "Turns texts into vectors."),
        Task::TextToImage => ("Text-to-Image", "Makes an image from a text."),
        Task::TextToSpeech => ("Text-to-Speech", "Speaks a text."),
        Task::AutomaticSpeechRecognition => {
            ("Automatic Speech Recognition", "Writes down what is said.")
        }
        Task::ImageClassification => ("Image Classification", "Sorts images into classes."),
        Task::ImageToText => ("Image-to-Text", "Describes an image."),
        Task::ImageTextToText => ("Image-Text-to-Text", "Answers a question about an image."),
        Task::ObjectDetection => ("Object Detection", "Finds objects in an image."),
        Task::Translation => ("Translation", "Translates a text."),
        Task::Summarization => ("Summarization", "Shortens a text."),
        Task::MultimodalEmbeddings => (
            "Multimodal Embeddings",
            "Turns texts and images into vectors.",
        ),
        Task::DumbPipe => ("Dumb Pipe", "Passes everything through unchanged."),
    }
}

/// `meta` of `@cf/meta/llama`; none where the id has no such part.
fn author(model: &ModelSpec) -> Option<&str> {
    let (path, _) = model.id.as_str().rsplit_once('/')?;
    let name = path.rsplit('/').next().unwrap_or(path);
    (!name.starts_with('@')).then_some(name)
}

/// Letters and digits alone: `Text-to-Image`, `text to image` and `text-to-image` are one task.
fn fold(text: &str) -> String {
    let kept = text.chars().filter(|c| c.is_alphanumeric());
    kept.flat_map(char::to_lowercase).collect()
}

fn positive(name: &str, value: &str) -> Result<usize, Refusal> {
    match value.parse::<usize>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Refusal::BadRequest {
            pointer: String::new(),
            message: format!("the parameter `{name}` must be a whole number from 1 on"),
        }),
    }
}

/// Names and values of a query, decoded.
fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    })
}

fn decoded(part: &str) -> Cow<'_, str> {
    if !part.contains('+') {
        return percent_decode_str(part).decode_utf8_lossy();
    }
    let spaced = part.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn models() -> Vec<ModelSpec> {
        [
            ("@cf/meta/llama-3.1-8b", "text-generation"),
            ("@cf/baai/bge-base", "text-embeddings"),
            ("@cf/stable/xl", "text-to-image"),
            ("plain", "translation"),
        ]
        .map(|(id, task)| {
            let spec = json!({ "id": id, "task": task, "backend": "http", "aliases": [] });
            serde_json::from_value(spec).unwrap()
        })
        .into()
    }

    fn names(query: &str) -> Vec<String> {
        let page: Value =
            serde_json::from_slice(&CatalogQuery::parse(query).unwrap().render(models().iter()))
                .unwrap();
        let result = page["result"].as_array().unwrap();
        assert_eq!(page["result_info"]["count"], result.len());
        result
            .iter()
            .map(|model| model["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn pages_follow_each_other_until_one_is_empty() {
        assert_eq!(names("").len(), 4);
        assert_eq!(names("per_page=3"), names("")[..3]);
        assert_eq!(names("per_page=3&page=2"), ["plain"]);
        assert!(names("per_page=3&page=3").is_empty());
        assert!(names("page=18446744073709551615&per_page=1000").is_empty());
        for bad in ["page=0", "per_page=0", "page=x", "per_page=-1", "page="] {
            assert!(CatalogQuery::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            CatalogQuery::parse("per_page=99999").unwrap().per_page,
            PER_PAGE_MAX
        );
    }

    #[test]
    fn filters_are_joined_and_a_task_has_a_slug_and_a_title() {
        assert_eq!(names("search=LLAMA"), ["@cf/meta/llama-3.1-8b"]);
        assert_eq!(names("search=%40cf%2Fbaai"), ["@cf/baai/bge-base"]);
        for task in [
            "Text-to-Image",
            "text+to+image",
            "text-to-image",
            "Text%20to%20Image",
        ] {
            assert_eq!(names(&format!("task={task}")), ["@cf/stable/xl"], "{task}");
        }
        assert_eq!(
            names("author=Meta&hide_experimental=true"),
            ["@cf/meta/llama-3.1-8b"]
        );
        assert!(names("author=cf").is_empty());
        assert!(names("author=meta&task=translation").is_empty());
        assert_eq!(names("search=&task=&author=").len(), 4);
    }

    #[test]
    fn a_schema_stands_in_the_envelope_as_it_was_written() {
        let page = schema(Some(r#"{ "type": "object" }"#), None);
        let page: Value = serde_json::from_slice(&page).unwrap();
        assert_eq!(
            page["result"],
            json!({ "input": { "type": "object" }, "output": {} })
        );
        assert_eq!(
            (&page["success"], &page["errors"]),
            (&json!(true), &json!([]))
        );
        assert!(page.get("result_info").is_none());
    }

    #[test]
    fn an_entry_fills_description_tags_and_properties() {
        let spec = json!({ "id": "m", "task": "translation", "backend": "http", "aliases": ["n"], "catalog": {
            "description": "Translates.", "tags": ["fast"], "properties": { "context_window": 8192 }, "beta": true } });
        let specs: [ModelSpec; 1] = [serde_json::from_value(spec).unwrap()];
        let page = CatalogQuery::parse("").unwrap().render(specs.iter());
        let page: Value = serde_json::from_slice(&page).unwrap();
        let model = &page["result"][0];
        assert_eq!(
            (&model["description"], &model["tags"]),
            (&json!("Translates."), &json!(["fast"]))
        );
        let expected = json!([{ "property_id": "beta", "value": "true" },
                              { "property_id": "context_window", "value": 8192 }]);
        assert_eq!(model["properties"], expected);
    }

    #[test]
    fn tasks_are_those_of_the_models_each_once() {
        let (mut specs, more) = (models(), models());
        specs.extend(more);
        let page: Value = serde_json::from_slice(&tasks(specs.iter())).unwrap();
        let names: Vec<&str> = page["result"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "Text Generation",
                "Text Embeddings",
                "Text-to-Image",
                "Translation"
            ]
        );
    }

    #[test]
    fn a_model_is_wanted_encoded_or_not() {
        assert_eq!(
            requested_model("a=b&model=@cf/meta/x").unwrap(),
            "@cf/meta/x"
        );
        assert_eq!(
            requested_model("model=%40cf%2Fmeta%2Fx").unwrap(),
            "@cf/meta/x"
        );
        assert!(requested_model("").is_err() && requested_model("model=").is_err());
    }
}
