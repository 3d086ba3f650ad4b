//! Request lines, their accounts and targets.
//!
//! The paths themselves belong to the dialects. A model in a path may be percent-encoded or not:
//! `@cf%2Fmeta%2Fx` and `@cf/meta/x` are the same model (SDKs send the first, people type the second).

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::call::{ApiDialect, Operation};
use super::open_inference::OpenInferenceRoute;
use super::replicate::ReplicateRoute;
use super::workers_ai::FinetuneScope;
use crate::Refusal;

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
    /// An inference; the model is named in the body, or in the path for [`Operation::Run`], [`Operation::Infer`],
    /// [`Operation::Generate`], [`Operation::GenerateStream`] and [`Operation::WebSocket`].
    Call(Operation, Option<Cow<'a, str>>),
    /// The list of models this key may use.
    Models,
    /// A model of that list.
    Model(Cow<'a, str>),
    /// A search in the Workers AI catalogue; the query.
    Search(&'a str),
    /// The schemas of one of its models; the query names it.
    Schema(&'a str),
    /// The tasks of the models in that catalogue.
    Tasks,
    /// A route of the durable path.
    Replicate(Box<ReplicateRoute>),
    /// Finetunes of the models this key may use.
    Finetunes(FinetuneScope),
    /// The document that describes all routes.
    Description,
    /// A route of the Open Inference Protocol beside inference.
    OpenInference(Box<OpenInferenceRoute>),
    /// A part of the API that this gateway does not serve.
    Refused(Refusal),
    /// No route of this gateway.
    Unknown,
}

/// A request line as dialects look at it.
#[derive(Clone, Debug)]
pub struct RequestPath<'a> {
    /// Method in upper case.
    pub method: &'a str,
    /// The account in `/client/v4/accounts/{account}`.
    pub account: Option<Cow<'a, str>>,
    /// Path behind the account, where there is one, else the whole path.
    pub path: &'a str,
    /// Query without its question mark.
    pub query: &'a str,
}

impl<'a> RequestPath<'a> {
    /// Splits a raw path with its query.
    pub fn read(method: &'a str, path: &'a str) -> RequestPath<'a> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let below = path.strip_prefix("/client/v4/accounts/");
        let below = below.and_then(|rest| Some(rest.split_at(rest.find('/')?)));
        let (account, path) = match below {
            Some((account, path)) => (Some(decoded(account)), path),
            None => (None, path),
        };
        RequestPath {
            method,
            account,
            path,
            query,
        }
    }
}

/// Returns a part of a path, percent-decoded.
pub(super) fn decoded(part: &str) -> Cow<'_, str> {
    percent_decode_str(part).decode_utf8_lossy()
}
