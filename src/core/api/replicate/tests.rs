//! Paths, bodies and preferences of the dialect.

use super::*;
use crate::Refusal;
use crate::api::ApiDialect;
use crate::api::dialects::route;
use crate::api::route::RouteTarget;

fn target(method: &'static str, path: &'static str) -> RouteTarget<'static> {
    let found = route(method, path);
    if matches!(found.target, RouteTarget::Replicate(_)) {
        assert_eq!(found.dialect, ApiDialect::Replicate, "{path}");
    }
    found.target
}

fn model() -> ModelPath {
    ModelPath {
        owner: "acme".into(),
        name: "sdxl".into(),
    }
}

#[test]
fn every_route_is_found() {
    use JobCollection::{Predictions, Trainings};
    use ReplicateRoute as Route;
    for (method, path, expected) in [
        ("POST", "/v1/predictions", Route::Create),
        (
            "POST",
            "/v1/models/acme/sdxl/predictions",
            Route::CreateOfModel(model()),
        ),
        (
            "POST",
            "/v1/deployments/acme/sdxl/predictions",
            Route::CreateOfDeployment(model()),
        ),
        (
            "POST",
            "/v1/models/acme/sdxl/versions/abc/trainings",
            Route::CreateTraining(model(), "abc".into()),
        ),
        (
            "GET",
            "/v1/predictions?cursor=a",
            Route::List(Predictions, "cursor=a".into()),
        ),
        ("GET", "/v1/trainings/x", Route::Get(Trainings, "x".into())),
        (
            "POST",
            "/v1/predictions/x/cancel",
            Route::Cancel(Predictions, "x".into()),
        ),
        ("GET", "/v1/collections", Route::Collections),
        ("GET", "/v1/collections/x", Route::Collection("x".into())),
        ("GET", "/v1/models/acme/sdxl", Route::Model(model())),
        (
            "GET",
            "/v1/models/acme/sdxl/versions",
            Route::Versions(model()),
        ),
        (
            "GET",
            "/v1/models/acme/sdxl/versions/abc",
            Route::Version(model(), "abc".into()),
        ),
        ("QUERY", "/v1/models", Route::Search),
        ("GET", "/v1/account", Route::Account),
        ("GET", "/v1/hardware", Route::Hardware),
        ("GET", "/v1/webhooks/default/secret", Route::WebhookSecret),
        (
            "GET",
            "/v1/streams/x?token=t",
            Route::Stream("x".into(), "token=t".into()),
        ),
        ("POST", "/v1/files", Route::CreateFile),
        ("DELETE", "/v1/files/x", Route::DeleteFile("x".into())),
        (
            "GET",
            "/v1/files/x/download?owner=o",
            Route::DownloadFile("x".into(), "owner=o".into()),
        ),
    ] {
        assert_eq!(
            target(method, path),
            RouteTarget::Replicate(Box::new(expected)),
            "{method} {path}"
        );
    }
    let unknown = route("PUT", "/v1/predictions/x");
    assert_eq!(
        (unknown.dialect, unknown.target),
        (ApiDialect::Replicate, RouteTarget::Unknown)
    );
    assert_eq!(target("GET", "/v1/models"), RouteTarget::Models);
}

#[test]
fn a_body_is_an_object_with_an_input() {
    let read = read_create(br#"{"version":"v","input":{"prompt":"x"},"webhook":"https://h/","webhook_events_filter":["completed","completed"],"stream":true}"#).unwrap();
    assert_eq!(read.version.as_deref(), Some("v"));
    assert_eq!(read.input.get(), r#"{"prompt":"x"}"#);
    assert_eq!(read.webhook_events, Some(vec!["completed".to_owned()]));
    for body in ["", "[]", "{", "\"a\""] {
        let refused = read_create(body.as_bytes()).unwrap_err();
        assert!(
            matches!(refused, Refusal::BadRequest { .. }),
            "{body} {refused:?}"
        );
    }
    for body in [
        r#"{}"#,
        r#"{"input":[]}"#,
        r#"{"input":{},"version":1}"#,
        r#"{"input":{},"webhook":1}"#,
        r#"{"input":{},"webhook_events_filter":["ended"]}"#,
        r#"{"input":{},"webhook_events_filter":"start"}"#,
    ] {
        let refused = read_create(body.as_bytes()).unwrap_err();
        assert!(
            matches!(refused, Refusal::Rejected { status: 422, .. }),
            "{body} {refused:?}"
        );
    }
    let long = format!(
        r#"{{"input":{{}},"webhook":"https://h/{}"}}"#,
        "a".repeat(2048)
    );
    assert!(read_create(long.as_bytes()).is_err());
}

#[test]
fn a_model_shows_its_newest_version_with_the_schemas_of_input_and_output() {
    let view = ModelView {
        path: "acme/sdxl",
        description: "text-generation",
        created_at: "2026-11-23T00:00:00Z".into(),
        versions: vec!["abc".into()],
        input_schema: None,
        output_schema: Some(text_output_schema()),
        url: "http://h/v1/models/acme/sdxl".into(),
    };
    let shown: serde_json::Value = serde_json::from_slice(&super::model(&view)).unwrap();
    let version = &shown["latest_version"];
    let schemas = &version["openapi_schema"]["components"]["schemas"];
    assert_eq!(
        (&shown["owner"], &shown["name"]),
        (&"acme".into(), &"sdxl".into())
    );
    assert_eq!(version["id"], "abc");
    assert_eq!(schemas["Input"]["type"], "object");
    assert_eq!(schemas["Output"]["x-cog-array-type"], "iterator");
    assert!(view.version_body("abc").is_some() && view.version_body("abd").is_none());
}

#[test]
fn a_search_is_plain_text_or_a_json_string() {
    for (body, expected) in [
        ("SDXL", "sdxl"),
        (" sdxl\n", "sdxl"),
        (r#""SDXL ""#, "sdxl"),
        (r#""sdxl"#, r#""sdxl"#),
        ("7", "7"),
        ("", ""),
    ] {
        assert_eq!(search_words(body), expected, "{body}");
    }
}

#[test]
fn a_wait_is_a_number_within_its_bounds() {
    for (value, expected) in [
        ("wait", Some(60)),
        ("wait=5", Some(5)),
        ("wait=0", Some(1)),
        ("wait=61", Some(60)),
        ("wait=99999999999999999999", Some(60)),
        ("respond-async, wait=7", Some(7)),
        ("wait=abc", None),
        ("wait=", None),
        ("return=minimal", None),
        ("", None),
    ] {
        assert_eq!(wait_preference(value), expected, "{value}");
    }
}

#[test]
fn versions_are_named_in_three_ways_and_models_in_one() {
    assert_eq!(VersionName::read("abc"), VersionName::Id("abc"));
    assert_eq!(VersionName::read("a/b"), VersionName::Model("a/b"));
    assert_eq!(VersionName::read("a/b:c"), VersionName::OfModel("a/b", "c"));
    assert!(model_path("acme/sdxl-1.0"));
    for name in ["@cf/meta/llama", "sdxl", "a/b/c", "/b", "a/", "a b/c"] {
        assert!(!model_path(name), "{name}");
    }
}
