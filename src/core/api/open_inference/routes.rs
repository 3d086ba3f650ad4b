//! Paths of the dialect. A model stands in a path as it is called or percent-encoded.
//!
//! Shared memory, traces and logs of a server are no client's to use and have no route.

use super::page_route::{ModelPage, OpenInferenceRoute, VersionedModel};
use crate::Refusal;
use crate::api::call::Operation;
use crate::api::route::{RequestPath, RouteTarget, decoded};

/// Longest name of a version, bytes.
const VERSION_BYTES_MAX: usize = 64;

/// Returns the target of a path of this dialect.
pub(super) fn route<'a>(request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
    let rest = request.path.strip_prefix("/v2")?;
    if request.account.is_some() || !(rest.is_empty() || rest.starts_with('/')) {
        return None;
    }
    let rest = rest.trim_matches('/');
    let own = |route| RouteTarget::OpenInference(Box::new(route));
    Some(match (request.method, rest) {
        ("GET", "") => own(OpenInferenceRoute::Server),
        ("GET", "health/live") => own(OpenInferenceRoute::Live),
        ("GET", "health/ready") => own(OpenInferenceRoute::Ready),
        ("POST", "repository/index") => own(OpenInferenceRoute::Index),
        ("POST", _) if is_load_order(rest) => RouteTarget::Refused(Refusal::Rejected {
            status: 403,
            pointer: String::new(),
            message: "models are loaded and unloaded by the operator of this gateway".into(),
        }),
        (method, _) => match rest.strip_prefix("models/") {
            Some(below) => model_route(method, below).unwrap_or(RouteTarget::Unknown),
            None => RouteTarget::Unknown,
        },
    })
}

/// Returns the version in the path of a request, with its query or without.
pub(super) fn version_in(path: &str) -> Option<&str> {
    let path = path.split('?').next().unwrap_or_default();
    let below = path.strip_prefix("/v2/models/")?.trim_end_matches('/');
    let (named, _) = below.rsplit_once('/')?;
    split_version(named)?.1
}

fn is_load_order(rest: &str) -> bool {
    let named = rest.strip_prefix("repository/models/");
    named.is_some_and(|named| named.ends_with("/load") || named.ends_with("/unload"))
}

/// Meaning of what stands behind a model in a path.
enum PathEnd {
    Call(Operation),
    Page(ModelPage),
}

fn model_route<'a>(method: &str, below: &'a str) -> Option<RouteTarget<'a>> {
    let (named, end) = match (method, below.rsplit_once('/')) {
        ("POST", Some((named, "infer"))) => (named, PathEnd::Call(Operation::Infer)),
        ("POST", Some((named, "generate"))) => (named, PathEnd::Call(Operation::Generate)),
        ("POST", Some((named, "generate_stream"))) => {
            (named, PathEnd::Call(Operation::GenerateStream))
        }
        ("GET", Some((named, "config"))) => (named, PathEnd::Page(ModelPage::Config)),
        ("GET", Some((named, "stats"))) => (named, PathEnd::Page(ModelPage::Stats)),
        ("GET", Some((named, "ready"))) => (named, PathEnd::Page(ModelPage::Ready)),
        ("GET", _) => (below, PathEnd::Page(ModelPage::Metadata)),
        _ => return None,
    };
    let (model, version) = split_version(named)?;
    if model.is_empty() {
        return None;
    }
    let model = decoded(model);
    Some(match end {
        PathEnd::Call(operation) => RouteTarget::Call(operation, Some(model)),
        PathEnd::Page(page) => {
            let named = VersionedModel {
                model: model.into_owned(),
                version: version.map(str::to_owned),
            };
            RouteTarget::OpenInference(Box::new(OpenInferenceRoute::Model(named, page)))
        }
    })
}

/// Splits a model from its version; none where that could not stand in a path.
fn split_version(named: &str) -> Option<(&str, Option<&str>)> {
    let Some((model, version)) = named.rsplit_once("/versions/") else {
        return Some((named, None));
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_version = (1..=VERSION_BYTES_MAX).contains(&version.len())
        && version.bytes().all(is_plain)
        && !version.starts_with('.');
    is_version.then_some((model, Some(version)))
}
