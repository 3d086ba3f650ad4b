//! The document against the routes: their match arms are read from the source of the dialects.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::api::dialects::route;
use crate::api::route::RouteTarget;

const ACCOUNT: &str = "/client/v4/accounts/{account}";

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// Method and path of each operation of the document.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let method = method.trim_start_matches("x-").to_uppercase();
            found.push((method, path.clone(), operation));
        }
    }
    found
}

/// Second part of a match arm `("METHOD", …)`.
#[derive(Debug)]
enum ArmPattern {
    /// The rest of the path.
    Text(String),
    /// Its segments; those that are no text are in braces.
    Segments(Vec<String>),
    /// Any rest.
    Any,
    /// Number of segments.
    Count(usize),
}

/// The match arms by method in a file of routes.
fn arms(source: &str) -> Vec<(String, ArmPattern)> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let mut found = Vec::new();
    for part in code.split("(\"").skip(1) {
        let (method, rest) = part.split_once('"').unwrap();
        let is_method = !method.is_empty() && method.bytes().all(|it| it.is_ascii_uppercase());
        let Some(rest) = rest.strip_prefix(", ").filter(|_| is_method) else {
            continue;
        };
        let pattern = match rest.as_bytes()[0] {
            b'"' => ArmPattern::Text(rest[1..].split('"').next().unwrap().to_owned()),
            b'[' => {
                let inner = rest[1..].split(']').next().unwrap();
                let segment = |part: &str| match part.trim().strip_prefix('"') {
                    Some(text) => text.trim_end_matches('"').to_owned(),
                    None => format!("{{{}}}", part.trim()),
                };
                ArmPattern::Segments(inner.split(',').map(segment).collect())
            }
            b'_' => ArmPattern::Any,
            _ => {
                let count = rest.split(')').next().unwrap();
                ArmPattern::Count(count.parse().expect("a pattern that this test knows"))
            }
        };
        found.push((method.to_owned(), pattern));
    }
    assert!(
        !found.is_empty(),
        "no arm is found: has the form of routes changed?"
    );
    found
}

/// Routes of the Open Inference Protocol: texts of match arms, and the pages of a model and of its versions.
fn open_inference_routes(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in source.split("(\"").skip(1) {
        let (method, rest) = part.split_once('"').unwrap();
        if let Some(text) = rest.strip_prefix(", \"") {
            let text = text.split('"').next().unwrap();
            let path = format!("/v2/{text}").trim_end_matches('/').to_owned();
            found.push((method.to_owned(), path));
        }
    }
    let page = "Some((named, \"";
    let pages = source.match_indices(page).map(|(at, _)| {
        let method = source[..at].rsplit('"').nth(1).unwrap();
        let name = source[at + page.len()..].split('"').next().unwrap();
        (method, format!("/{name}"))
    });
    let pages: Vec<_> = pages.chain([("GET", String::new())]).collect();
    assert_eq!(pages.len(), 7, "has the form of routes changed? {pages:?}");
    for model in [
        "/v2/models/{model}",
        "/v2/models/{model}/versions/{version}",
    ] {
        let of_model = pages
            .iter()
            .map(|(method, page)| ((*method).to_owned(), format!("{model}{page}")));
        found.extend(of_model);
    }
    found
}

fn routes() -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    let mut add = |method: &str, path: String| routes.insert((method.to_owned(), path));
    let own_and_of_account =
        |rest: &str| [format!("/v1/{rest}"), format!("{ACCOUNT}/ai/v1/{rest}")];
    for (method, pattern) in arms(include_str!("../openai/routes.rs")) {
        let rest = match pattern {
            ArmPattern::Text(rest) => rest,
            ArmPattern::Any => "models/{model}".to_owned(),
            other => panic!("{other:?}"),
        };
        for path in own_and_of_account(&rest) {
            add(&method, path);
        }
    }
    for (method, pattern) in arms(include_str!("../anthropic/routes.rs")) {
        let ArmPattern::Text(rest) = pattern else {
            panic!("{pattern:?}");
        };
        for path in own_and_of_account(&format!("messages{rest}")) {
            add(&method, path);
        }
    }
    for (method, pattern) in arms(include_str!("../workers_ai/routes.rs")) {
        let ArmPattern::Text(rest) = pattern else {
            panic!("{pattern:?}");
        };
        add(&method, format!("{ACCOUNT}/ai/{rest}"));
    }
    // No arms of methods.
    for rest in ["finetunes", "finetunes/public"] {
        add("GET", format!("{ACCOUNT}/ai/{rest}"));
    }
    // Not an arm: a prefix.
    for method in ["POST", "GET"] {
        add(method, "/ai/run/{model}".to_owned());
        add(method, format!("{ACCOUNT}/ai/run/{{model}}"));
    }
    for (method, pattern) in arms(include_str!("../replicate/routes.rs")) {
        let path = match pattern {
            ArmPattern::Segments(segments) => format!("/v1/{}", segments.join("/")),
            ArmPattern::Count(0) => "/v1/deployments".to_owned(),
            ArmPattern::Count(2) => "/v1/deployments/{owner}/{name}".to_owned(),
            other => panic!("{other:?}"),
        };
        for jobs in ["predictions", "trainings"] {
            add(&method, path.replace("{segment}", jobs));
        }
    }
    for (method, rest) in open_inference_routes(include_str!("../open_inference/routes.rs")) {
        add(&method, rest);
    }
    add("GET", PATH.to_owned());
    routes
}

#[test]
fn every_route_has_an_entry_and_every_entry_is_a_route() {
    let document = document();
    let described: BTreeSet<(String, String)> = operations(&document)
        .into_iter()
        .map(|(method, path, _)| (method, path))
        .collect();
    let routes = routes();
    assert_eq!(
        routes.difference(&described).collect::<Vec<_>>(),
        Vec::<&(String, String)>::new(),
        "routes without an entry in openapi.json"
    );
    for (method, path) in &described {
        let sample = path.replace(['{', '}'], "");
        let target = route(method, &sample).target;
        assert_ne!(target, RouteTarget::Unknown, "{method} {path}");
        assert!(
            routes.contains(&(method.clone(), path.clone())),
            "{method} {path}"
        );
    }
}

#[test]
fn an_arm_that_is_added_is_missed_in_the_document() {
    let source = "match x {\n (\"POST\", \"images/generations\") => a,\n (\"GET\", [\"files\", id]) => b,\n \
                  (\"PATCH\", 2) => c,\n (\"GET\", _) => d,\n}\n#[cfg(test)]\n(\"POST\", \"not this\")";
    let found = format!("{:?}", arms(source));
    let expected = r#"[("POST", Text("images/generations")), ("GET", Segments(["files", "{id}"])), ("PATCH", Count(2)), ("GET", Any)]"#;
    assert_eq!(found, expected);
}

#[test]
fn the_document_is_of_this_version_and_whole() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id} stands twice");
        let parameters = operation["parameters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for name in path
            .split('{')
            .skip(1)
            .map(|part| part.split('}').next().unwrap())
        {
            let reference = format!("#/components/parameters/{name}");
            let is_declared = parameters.iter().any(|it| it["$ref"] == *reference);
            assert!(is_declared, "{method} {path}: {name}");
        }
    }
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_str().filter(|_| name == "$ref") {
                    Some(reference) => found.push(reference.to_owned()),
                    None => collect_references(member, found),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_references(item, found)),
        _ => {}
    }
}
