//! `cors`: web pages of which origins may call, and the headers that tell a browser so.
//!
//! Not the comparison of origins, which the core makes. Specification:
//! <https://fetch.spec.whatwg.org/#http-cors-protocol>.

use http::header::{HeaderName, HeaderValue};
use infergate_core::api::origin::{self, OriginRelation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http1::Fields;

/// Headers that a page may read, besides `headers.pass` and those that browsers show anyway.
const EXPOSED: [&str; 14] = [
    "cf-ai-neurons",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-infergate-load-ms",
    "x-infergate-model",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-should-retry",
];

/// Web pages that may call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cors {
    /// Origins (`https://app.example.com`, with a port where it is not the usual one) whose web pages may
    /// call from browsers; `"*"` is every origin. Without any, browsers get no CORS headers, and a
    /// page of another origin without a key is refused with 403 even where `anonymous: allow`.
    #[schemars(length(max = 256))]
    pub origins: Vec<String>,
}

/// [`Cors`] as requests use it.
#[derive(Default)]
pub struct CorsRules {
    origins: Vec<String>,
    /// Every origin is listed: answers are the same for all.
    lists_all: bool,
    /// `Access-Control-Expose-Headers`.
    exposed: Option<HeaderValue>,
}

impl CorsRules {
    /// Rules of a configuration; `passing` is `headers.pass`.
    pub fn new(cors: &Cors, passing: &[HeaderName]) -> CorsRules {
        let passing = passing.iter().map(HeaderName::as_str);
        let names: Vec<&str> = EXPOSED.into_iter().chain(passing).collect();
        CorsRules {
            lists_all: origin::is_any_listed(&cors.origins),
            exposed: HeaderValue::try_from(names.join(", ")).ok(),
            origins: cors.origins.clone(),
        }
    }

    /// Returns what the page that makes a request with this head is.
    pub fn page_of(&self, headers: &Fields) -> PageOrigin {
        let varies = !self.origins.is_empty() && !self.lists_all;
        let Some(origin) = headers.get("origin") else {
            return if varies {
                PageOrigin::Unlisted
            } else {
                PageOrigin::None
            };
        };
        let host = headers.get("host").unwrap_or_default();
        match origin::relation(origin, host, &self.origins) {
            OriginRelation::Listed => PageOrigin::Listed {
                origin: match self.lists_all {
                    true => HeaderValue::from_static("*"),
                    false => match HeaderValue::from_bytes(origin) {
                        Ok(origin) => origin,
                        Err(_) => return PageOrigin::Foreign { varies },
                    },
                },
                exposed: self.exposed.clone(),
            },
            OriginRelation::Foreign => PageOrigin::Foreign { varies },
            OriginRelation::Same if varies => PageOrigin::Unlisted,
            OriginRelation::Same => PageOrigin::None,
        }
    }
}

/// The web page that makes a request, and so what the head of its answer says of origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PageOrigin {
    /// None, or one of this host; answers do not depend on the origin.
    #[default]
    None,
    /// Likewise, but pages of listed origins get other heads.
    Unlisted,
    /// A page of another origin that is not listed.
    Foreign {
        /// Pages of listed origins get other heads.
        varies: bool,
    },
    /// A page of a listed origin.
    Listed {
        /// `Access-Control-Allow-Origin`.
        origin: HeaderValue,
        /// `Access-Control-Expose-Headers`.
        exposed: Option<HeaderValue>,
    },
}

impl PageOrigin {
    /// Returns whether the origin is neither listed nor that of this host.
    pub fn is_foreign(&self) -> bool {
        matches!(self, PageOrigin::Foreign { .. })
    }

    /// Returns whether the origin is listed.
    pub fn is_listed(&self) -> bool {
        matches!(self, PageOrigin::Listed { .. })
    }

    /// Returns the fields that browsers read in the head of an answer.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let varies = match self {
            PageOrigin::None | PageOrigin::Foreign { varies: false } => false,
            PageOrigin::Unlisted | PageOrigin::Foreign { varies: true } => true,
            PageOrigin::Listed { origin, .. } => origin != "*",
        };
        let (origin, exposed) = match self {
            PageOrigin::Listed { origin, exposed } => (Some(origin), exposed.as_ref()),
            _ => (None, None),
        };
        let vary = varies.then_some(("vary", &b"origin"[..]));
        let origin = origin.map(|value| ("access-control-allow-origin", value.as_bytes()));
        let exposed_line = exposed.map(|value| (EXPOSE_HEADERS, value.as_bytes()));
        [vary, origin, exposed_line].into_iter().flatten()
    }

    /// Returns the fields in the answer to a preflight: nothing is read from it but who may ask.
    pub fn preflight_lines(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.lines().filter(|(name, _)| *name != EXPOSE_HEADERS)
    }
}

const EXPOSE_HEADERS: &str = "access-control-expose-headers";
