//! Method and path → operation: the routes of every dialect, in one place.
//!
//! The body is not read here. A model in a path may be percent-encoded or not: `@cf%2Fmeta%2Fx`
//! and `@cf/meta/x` are the same model (SDKs send the first, people type the second).

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::{ApiDialect, Operation};

/// Route of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// Dialect of the response, errors included.
    pub dialect: ApiDialect,
    /// The account named in the path; it must be the key's own.
    pub account: Option<Cow<'a, str>>,
    /// Resource or operation of the path.
    pub target: RouteTarget<'a>,
}

/// Resource or operation of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget<'a> {
    /// An inference; the model is named in the body, or in the path for [`Operation::Run`].
    Call(Operation, Option<Cow<'a, str>>),
    /// The list of models this key may use.
    Models,
    /// A model of that list.
    Model(Cow<'a, str>),
    /// A search in the Workers AI catalogue; the query.
    Search(&'a str),
    /// The schemas of one of its models; the query names it.
    Schema(&'a str),
    /// No route of this gateway.
    Unknown,
}

/// Finds the route of a request line. `path` is the raw path with its query, if any.
pub fn route<'a>(method: &str, path: &'a str) -> Route<'a> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if let Some(rest) = path.strip_prefix("/v1/") {
        return Route {
            dialect: ApiDialect::OpenAi,
            account: None,
            target: openai(method, rest),
        };
    }
    if let Some(model) = path.strip_prefix("/ai/run/") {
        return Route {
            dialect: ApiDialect::WorkersAi,
            account: None,
            target: run(method, model),
        };
    }
    if let Some(rest) = path.strip_prefix("/client/v4/accounts/")
        && let Some((account, rest)) = rest.split_once('/')
    {
        let account = Some(decoded(account));
        if let Some(model) = rest.strip_prefix("ai/run/") {
            return Route {
                dialect: ApiDialect::WorkersAi,
                account,
                target: run(method, model),
            };
        }
        if let Some(rest) = rest.strip_prefix("ai/models/") {
            return Route {
                dialect: ApiDialect::WorkersAi,
                account,
                target: catalog(method, rest, query),
            };
        }
        if let Some(rest) = rest.strip_prefix("ai/v1/") {
            return Route {
                dialect: ApiDialect::OpenAi,
                account,
                target: openai(method, rest),
            };
        }
        return Route {
            dialect: ApiDialect::WorkersAi,
            account,
            target: RouteTarget::Unknown,
        };
    }
    let face = if path.starts_with("/client/v4/") || path.starts_with("/ai/") {
        ApiDialect::WorkersAi
    } else {
        ApiDialect::OpenAi
    };
    Route {
        dialect: face,
        account: None,
        target: RouteTarget::Unknown,
    }
}

fn openai<'a>(method: &str, rest: &'a str) -> RouteTarget<'a> {
    match (method, rest) {
        ("POST", "chat/completions") => RouteTarget::Call(Operation::Chat, None),
        ("POST", "completions") => RouteTarget::Call(Operation::Completions, None),
        ("POST", "embeddings") => RouteTarget::Call(Operation::Embeddings, None),
        ("GET", "models") => RouteTarget::Models,
        ("GET", _) => match rest.strip_prefix("models/") {
            Some(id) if !id.is_empty() => RouteTarget::Model(decoded(id)),
            _ => RouteTarget::Unknown,
        },
        _ => RouteTarget::Unknown,
    }
}

fn run<'a>(method: &str, model: &'a str) -> RouteTarget<'a> {
    match (method, model) {
        ("POST", model) if !model.is_empty() => {
            RouteTarget::Call(Operation::Run, Some(decoded(model)))
        }
        _ => RouteTarget::Unknown,
    }
}

fn catalog<'a>(method: &str, rest: &str, query: &'a str) -> RouteTarget<'a> {
    match (method, rest) {
        ("GET", "search") => RouteTarget::Search(query),
        ("GET", "schema") => RouteTarget::Schema(query),
        _ => RouteTarget::Unknown,
    }
}

fn decoded(part: &str) -> Cow<'_, str> {
    percent_decode_str(part).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: &'static str, path: &'static str) -> RouteTarget<'static> {
        route(method, path).target
    }

    #[test]
    fn a_model_in_the_path_is_the_same_encoded_or_not() {
        let model = "@cf/meta/llama-3.1-8b-instruct";
        let want = RouteTarget::Call(Operation::Run, Some(model.into()));
        for path in [
            "/ai/run/@cf/meta/llama-3.1-8b-instruct",
            "/ai/run/@cf%2Fmeta%2Fllama-3.1-8b-instruct",
            "/client/v4/accounts/acme/ai/run/%40cf%2fmeta%2fllama-3.1-8b-instruct?x=1",
        ] {
            assert_eq!(target("POST", path), want, "{path}");
        }
    }

    #[test]
    fn every_face_has_its_paths() {
        assert_eq!(
            target("POST", "/v1/chat/completions"),
            RouteTarget::Call(Operation::Chat, None)
        );
        assert_eq!(
            target("POST", "/v1/completions"),
            RouteTarget::Call(Operation::Completions, None)
        );
        assert_eq!(
            target("POST", "/v1/embeddings"),
            RouteTarget::Call(Operation::Embeddings, None)
        );
        assert_eq!(target("GET", "/v1/models"), RouteTarget::Models);
        assert_eq!(
            target("GET", "/v1/models/@cf%2Fa%2Fb"),
            RouteTarget::Model("@cf/a/b".into())
        );
        let found = route("GET", "/client/v4/accounts/acme/ai/models/search?page=2");
        assert_eq!(found.dialect, ApiDialect::WorkersAi);
        assert_eq!(found.account.as_deref(), Some("acme"));
        assert_eq!(found.target, RouteTarget::Search("page=2"));
        let schema = "/client/v4/accounts/acme/ai/models/schema";
        assert_eq!(target("GET", schema), RouteTarget::Schema(""));
        assert_eq!(target("POST", schema), RouteTarget::Unknown);
        let found = route("POST", "/client/v4/accounts/acme/ai/v1/chat/completions");
        assert_eq!(found.dialect, ApiDialect::OpenAi);
        assert_eq!(found.account.as_deref(), Some("acme"));
        assert_eq!(found.target, RouteTarget::Call(Operation::Chat, None));
    }

    #[test]
    fn an_unknown_path_still_has_a_dialect() {
        assert_eq!(route("POST", "/v2/x").dialect, ApiDialect::OpenAi);
        assert_eq!(
            route("GET", "/client/v4/accounts/acme/ai/run/m").dialect,
            ApiDialect::WorkersAi
        );
        assert_eq!(target("GET", "/v1/chat/completions"), RouteTarget::Unknown);
        assert_eq!(target("POST", "/ai/run/"), RouteTarget::Unknown);
    }
}
