//! The table of API dialects.
//!
//! No shapes are here. Adding a dialect takes a folder beside this file, a variant of [`ApiDialect`] and a
//! row in [`DIALECTS`].

use super::anthropic::Anthropic;
use super::call::ApiDialect;
use super::dialect::Dialect;
use super::open_inference::OpenInference;
use super::openai::OpenAi;
use super::openapi;
use super::replicate::Replicate;
use super::route::{RequestPath, Route, RouteTarget};
use super::workers_ai::WorkersAi;

/// Every dialect, at the index of its [`ApiDialect`]. The last one that claims a path has it, so that a
/// dialect may have paths below those of an earlier one.
pub static DIALECTS: [&dyn Dialect; 5] =
    [&OpenAi, &WorkersAi, &Anthropic, &Replicate, &OpenInference];

impl ApiDialect {
    /// Returns the row of the dialect.
    pub fn rules(self) -> &'static dyn Dialect {
        DIALECTS[self.index()]
    }

    /// Returns its place in [`DIALECTS`], for tables with an entry for each.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the name in events and metric labels.
    pub fn name(self) -> &'static str {
        self.rules().name()
    }
}

/// Finds the route of a request line. `path` is the raw path with its query, if any. A path that no
/// dialect claims is refused in the first one.
pub fn route<'a>(method: &'a str, path: &'a str) -> Route<'a> {
    let request = RequestPath::read(method, path);
    let claimed = DIALECTS.iter().rev().find_map(|dialect| {
        let target = dialect.route(&request)?;
        Some((dialect.id(), target))
    });
    let (dialect, target) = claimed.unwrap_or_else(|| (ApiDialect::OpenAi, unclaimed(&request)));
    Route {
        dialect,
        account: request.account,
        target,
    }
}

/// Returns the target of a path that belongs to no dialect.
fn unclaimed<'a>(request: &RequestPath<'a>) -> RouteTarget<'a> {
    match (request.method, request.path, &request.account) {
        ("GET", openapi::PATH, None) => RouteTarget::Description,
        _ => RouteTarget::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Operation;

    #[test]
    fn each_row_stands_at_the_index_of_its_variant() {
        for (index, dialect) in DIALECTS.iter().enumerate() {
            assert_eq!(dialect.id().index(), index, "{}", dialect.name());
            assert_eq!(dialect.id().name(), dialect.name());
        }
    }

    fn target(method: &'static str, path: &'static str) -> RouteTarget<'static> {
        route(method, path).target
    }

    #[test]
    fn a_model_in_the_path_is_the_same_encoded_or_not() {
        let model = "@cf/meta/llama-3.1-8b-instruct";
        let expected = RouteTarget::Call(Operation::Run, Some(model.into()));
        for path in [
            "/ai/run/@cf/meta/llama-3.1-8b-instruct",
            "/ai/run/@cf%2Fmeta%2Fllama-3.1-8b-instruct",
            "/client/v4/accounts/acme/ai/run/%40cf%2fmeta%2fllama-3.1-8b-instruct?x=1",
        ] {
            assert_eq!(target("POST", path), expected, "{path}");
        }
    }

    #[test]
    fn every_dialect_has_its_paths() {
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
        assert_eq!(route("POST", "/v3/x").dialect, ApiDialect::OpenAi);
        assert_eq!(
            route("GET", "/client/v4/accounts/acme/ai/run/m").dialect,
            ApiDialect::WorkersAi
        );
        assert_eq!(target("GET", "/v1/chat/completions"), RouteTarget::Unknown);
        assert_eq!(target("POST", "/ai/run/"), RouteTarget::Unknown);
        assert_eq!(target("PUT", "/ai/run/m"), RouteTarget::Unknown);
        for (path, dialect) in [
            ("/ai/v1/chat/completions", ApiDialect::WorkersAi),
            ("/ai/models/search", ApiDialect::WorkersAi),
            ("/client/v4/user", ApiDialect::WorkersAi),
            ("/client/v4/accounts/acme", ApiDialect::WorkersAi),
            (
                "/client/v4/accounts/acme/v1/chat/completions",
                ApiDialect::WorkersAi,
            ),
            ("/client/v4/accounts/acme/ai/v1/x", ApiDialect::OpenAi),
            ("/v1/x", ApiDialect::OpenAi),
            ("*", ApiDialect::OpenAi),
            ("/v1/messages", ApiDialect::Anthropic),
            ("/v1/messages/batches", ApiDialect::Anthropic),
            ("/v1/messagesx", ApiDialect::OpenAi),
            ("/v2/x", ApiDialect::OpenInference),
            ("/v2x", ApiDialect::OpenAi),
        ] {
            let found = route("GET", path);
            assert_eq!(
                (found.dialect, found.target),
                (dialect, RouteTarget::Unknown),
                "{path}"
            );
        }
    }

    #[test]
    fn a_websocket_names_its_model_in_the_path_or_in_the_query() {
        let expected = RouteTarget::Call(Operation::WebSocket, Some("@cf/a".into()));
        for path in [
            "/ai/run/@cf/a",
            "/client/v4/accounts/acme/ai/run/@cf%2Fa?x=1",
            "/v1/realtime?model=@cf/a",
            "/v1/realtime?intent=x&model=%40cf%2Fa&model=b",
            "/client/v4/accounts/acme/ai/v1/realtime?model=@cf/a",
        ] {
            assert_eq!(target("GET", path), expected, "{path}");
        }
        for path in ["/v1/realtime", "/v1/realtime?model=", "/v1/realtime?x"] {
            let refused = target("GET", path);
            assert!(matches!(refused, RouteTarget::Refused(_)), "{refused:?}");
        }
        assert_eq!(target("POST", "/v1/realtime?model=m"), RouteTarget::Unknown);
    }

    #[test]
    fn the_description_is_at_the_root_alone() {
        assert_eq!(target("GET", "/openapi.json"), RouteTarget::Description);
        assert_eq!(target("POST", "/openapi.json"), RouteTarget::Unknown);
        let below = "/client/v4/accounts/acme/openapi.json";
        assert_eq!(target("GET", below), RouteTarget::Unknown);
    }

    #[test]
    fn messages_are_a_chat_and_are_not_counted() {
        for prefix in ["", "/client/v4/accounts/acme/ai"] {
            let path = format!("{prefix}/v1/messages?beta=true");
            let found = route("POST", &path);
            assert_eq!(found.dialect, ApiDialect::Anthropic);
            assert_eq!(found.target, RouteTarget::Call(Operation::Chat, None));
        }
        let counted = target("POST", "/v1/messages/count_tokens");
        assert!(matches!(counted, RouteTarget::Refused(_)), "{counted:?}");
    }

    #[test]
    fn a_queued_run_is_refused_where_it_is_asked_for() {
        let queued = target("POST", "/ai/run/m?queueRequest=true");
        assert!(matches!(queued, RouteTarget::Refused(_)), "{queued:?}");
    }
}
