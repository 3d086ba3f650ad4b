//! `models`: names, endpoints, and whether backend and task fit together.
//!
//! Endpoints are not contacted; their health shows while running.

use std::collections::{HashMap, HashSet};

use infergate_core::model::{EndpointSpec, RESERVED, Task, same_server, server_of};

use crate::config::check::names::{anonymous_allowed, is_anonymous, name_fault};
use crate::config::check::{discovery, endpoints};
use crate::config::document::{Cursor, NodeData};
use crate::config::problem::{Problem, Problems};
use crate::state::Timeouts;
use crate::upstream::{BACKENDS, backend, check_endpoint_url};

/// Ids and aliases of all models, for checks elsewhere.
#[derive(Default)]
pub struct ModelNames {
    ids: Vec<String>,
    alias_to_id: HashMap<String, String>,
}

impl ModelNames {
    /// Returns true when an account's pattern names at least one model.
    pub fn matches(&self, pattern: &str) -> bool {
        match pattern.strip_suffix('*') {
            Some(prefix) => self.ids.iter().any(|id| id.starts_with(prefix)),
            None => self.ids.iter().any(|id| id == pattern),
        }
    }

    /// Returns true when a model has this id.
    pub fn has(&self, id: &str) -> bool {
        self.ids.iter().any(|known| known == id)
    }

    /// Ids of all models.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(String::as_str)
    }

    /// The id of the model that has this alias.
    pub fn id_of_alias(&self, alias: &str) -> Option<&str> {
        self.alias_to_id.get(alias).map(String::as_str)
    }
}

pub fn check(
    root: &Cursor<'_>,
    accounts: &HashSet<String>,
    problems: &mut Problems,
    warnings: &mut Problems,
) -> ModelNames {
    let ceiling = root
        .key("timeouts")
        .and_then(|timeouts| timeouts.number_of("ceiling_secs"))
        .unwrap_or(Timeouts::default().ceiling_secs);
    let mut names = ModelNames::default();
    let mut taken = HashMap::new();
    let models = root.list("models");
    for model in &models {
        check_names(model, &mut taken, &mut names, problems);
        check_backend(model, problems);
        check_endpoints(model, problems);
        check_parameters(model, problems);
        check_chat(model, problems, warnings);
        // In a cluster another node may serve it.
        if root.key("cluster").is_none() {
            warn_of_none(model, warnings);
        }
        discovery::check(model, problems);
        check_accounts(model, accounts, anonymous_allowed(root), problems, warnings);
        if let Some(key) = model.key("timeout_secs")
            && model
                .number_of("timeout_secs")
                .is_some_and(|secs| secs > ceiling)
        {
            warnings.add(key.problem(format!(
                "above timeouts.ceiling_secs ({ceiling}): requests end at the ceiling"
            )));
        }
    }
    check_servers(&models, problems);
    if models.is_empty()
        && root
            .key("models")
            .is_none_or(|key| key.node.is_empty_list())
    {
        let place = root.key("models").map_or(root.place, |key| key.place);
        warnings.add(Problem::new(
            "models",
            place,
            "no models: every request gets 404",
        ));
    }
    names
}

fn check_names(
    model: &Cursor<'_>,
    taken: &mut HashMap<String, String>,
    names: &mut ModelNames,
    problems: &mut Problems,
) {
    let id = model.key("id");
    let aliases = model.list("aliases");
    for name in id.iter().chain(&aliases) {
        let Some(text) = name.text() else { continue };
        // A model's name stands in paths and, with a `*`, in accounts' patterns.
        if let Some(fault) = name_fault(text, &['*', '?', '#', '%']) {
            problems.add(name.problem(fault));
        } else if let Some(first) = taken.get(text) {
            problems.add(name.problem(format!(
                "{text:?} already stands at `{first}`: ids and aliases name one model each"
            )));
        } else {
            taken.insert(text.to_owned(), name.path.clone());
        }
    }
    if let Some(id) = id.as_ref().and_then(Cursor::text) {
        names.ids.push(id.to_owned());
        for alias in aliases.iter().filter_map(Cursor::text) {
            names
                .alias_to_id
                .entry(alias.to_owned())
                .or_insert_with(|| id.to_owned());
        }
    }
}

/// Tasks that only some backends serve.
fn check_backend(model: &Cursor<'_>, problems: &mut Problems) {
    let (Some(task), Some(key)) = (model.text_of("task"), model.key("backend")) else {
        return;
    };
    let (Some(found), Some(task)) = (
        key.text().and_then(backend),
        Task::ALL.into_iter().find(|known| known.slug() == task),
    ) else {
        return;
    };
    if !found.tasks.contains(&task) {
        let fit = BACKENDS.iter().filter(|other| other.tasks.contains(&task));
        let fit: Vec<&str> = fit.map(|other| other.name).collect();
        let served: Vec<&str> = found.tasks.iter().map(|task| task.slug()).collect();
        problems.add(key.problem(format!(
            "backend `{}` serves {} only, and the task is {}: use {}",
            found.name,
            served.join(" and "),
            task.slug(),
            fit.join(" or ")
        )));
    }
}

fn warn_of_none(model: &Cursor<'_>, warnings: &mut Problems) {
    if model.list("endpoints").is_empty()
        && model.key("discovery").is_none()
        && model.key("base").is_none()
        && model.key("process").is_none()
        && model
            .key("endpoints")
            .is_none_or(|key| key.node.is_empty_list())
    {
        let key = model.key("endpoints");
        warnings.add(
            key.as_ref()
                .unwrap_or(model)
                .problem("no endpoints: nothing can serve this model until one is added"),
        );
    }
}

fn check_endpoints(model: &Cursor<'_>, problems: &mut Problems) {
    let mut seen: HashMap<String, String> = HashMap::new();
    for endpoint in &model.list("endpoints") {
        check_ca_file(endpoint, problems);
        check_http2(endpoint, problems);
        check_model_config(model, endpoint, problems);
        endpoints::check_sent(endpoint, problems);
        endpoints::check(endpoint, problems);
        if let Some(loopback) = endpoint.key("loopback")
            && model.text_of("backend") == Some("cog")
        {
            problems.add(
                loopback.problem("runs of Cog are followed by its own routes: remove the key"),
            );
        }
        let Some(url) = endpoint.key("url") else {
            continue;
        };
        let Some(text) = url.text() else { continue };
        if let Err(fault) = check_endpoint_url(text) {
            problems.add(url.problem(format!("{fault}, found {}", url.shown())));
            continue;
        }
        let same = same_server(text);
        if let Some(first) = seen.get(&same) {
            problems.add(url.problem(format!(
                "this endpoint already stands at `{first}`: raise its max_concurrent_requests instead"
            )));
        } else {
            seen.insert(same, endpoint.path.clone());
        }
    }
}

/// Chats have another form only towards servers with the OpenAI paths.
fn check_chat(model: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let Some(chat) = model.key("chat") else {
        return;
    };
    let template = chat.text_of("template").unwrap_or("server");
    let thinking = chat.key("thinking");
    let thinking = thinking.filter(|thinking| thinking.text() != Some("default"));
    if let Some(thinking) = &thinking
        && template != "server"
    {
        problems.add(thinking.problem(format!(
            "the template {template:?} is written without it: remove it, or use `template: server`"
        )));
    }
    let found = model.text_of("backend").and_then(backend);
    let has_chats = found.is_none_or(|found| found.paths.contains(&"/v1/completions"));
    if (template != "server" || thinking.is_some()) && !has_chats {
        warnings.add(chat.problem(
            "without effect: only backends with the path /v1/completions are asked in another form",
        ));
    }
}

/// Parameters are the caller's to send; what the gateway reads and writes itself is not among them.
fn check_parameters(model: &Cursor<'_>, problems: &mut Problems) {
    let Some(parameters) = model.key("parameters") else {
        return;
    };
    for kind in ["default", "force", "max"] {
        for (name, value) in parameters.entries(kind) {
            if RESERVED.contains(&name) {
                problems.add(value.problem(format!(
                    "`{name}` is written by the gateway: it cannot be a parameter"
                )));
            } else if kind == "max" && !matches!(value.node.data, NodeData::Number(_)) {
                problems.add(value.problem("expected a number: the largest that may be sent"));
            }
        }
    }
}

/// Models whose endpoints share a server's permits must agree how many there are.
fn check_servers(models: &[Cursor<'_>], problems: &mut Problems) {
    let mut servers: HashMap<String, (u64, String)> = HashMap::new();
    for endpoint in models.iter().flat_map(|model| model.list("endpoints")) {
        let Some(url) = endpoint
            .text_of("url")
            .filter(|url| check_endpoint_url(url).is_ok())
        else {
            continue;
        };
        if endpoint.text_of("permits") == Some("model") {
            continue;
        }
        let permits = endpoint
            .number_of("max_concurrent_requests")
            .unwrap_or(EndpointSpec::default_max_concurrent_requests().into());
        let server = server_of(url);
        let (first, place) = servers
            .entry(server)
            .or_insert((permits, endpoint.path.clone()));
        if *first != permits {
            let key = endpoint.key("max_concurrent_requests");
            problems.add(key.as_ref().unwrap_or(&endpoint).problem(format!(
                "{permits} permits, but {first} at `{place}` for the same server: write one number, \
                 or `permits: model` at each where its models run side by side"
            )));
        }
    }
}

/// The content of the file is checked when it is loaded.
fn check_ca_file(endpoint: &Cursor<'_>, problems: &mut Problems) {
    let Some(key) = endpoint.key("ca_file") else {
        return;
    };
    if key.text() == Some("") {
        problems
            .add(key.problem("must not be empty: remove the key to use the public certificates"));
    }
    let url = endpoint.text_of("url");
    if url.is_some_and(|url| !url.starts_with("https://")) {
        problems.add(key.problem(
            "only an https endpoint has a certificate to check: remove the key, or correct the url",
        ));
    }
}

fn check_model_config(model: &Cursor<'_>, endpoint: &Cursor<'_>, problems: &mut Problems) {
    let key = endpoint.key("send_model_config");
    let Some(key) = key.filter(|key| key.node.is_true()) else {
        return;
    };
    if model.key("tariff").is_none() {
        problems.add(
            key.problem(
                "the model has no `tariff` that could be sent: write one, or remove the key",
            ),
        );
    }
}

fn check_http2(endpoint: &Cursor<'_>, problems: &mut Problems) {
    let Some(key) = endpoint
        .key("http2")
        .filter(|key| key.text() == Some("auto"))
    else {
        return;
    };
    let url = endpoint.text_of("url");
    if url.is_some_and(|url| !url.starts_with("https://")) {
        problems.add(key.problem(
            "HTTP/2 is agreed on in the TLS handshake of an https endpoint: remove the key, or correct the url",
        ));
    }
}

pub(super) fn check_accounts(
    model: &Cursor<'_>,
    accounts: &HashSet<String>,
    anonymous_allowed: bool,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let list = (model, "allowed_accounts");
    check_account_list(list, accounts, anonymous_allowed, problems, warnings);
}

/// Checks that the accounts of a list exist.
pub(super) fn check_account_list(
    (holder, key): (&Cursor<'_>, &str),
    accounts: &HashSet<String>,
    anonymous_allowed: bool,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    for account in holder.list(key) {
        let Some(name) = account.text() else { continue };
        if is_anonymous(name) && !anonymous_allowed {
            warnings.add(account.problem(
                "never used: requests without a key are refused, write `anonymous: allow` to serve them",
            ));
        } else if !is_anonymous(name) && !accounts.contains(name) {
            problems.add(account.problem(format!(
                "no account is called {name:?}: add it under `accounts`, or correct the name"
            )));
        }
    }
}
