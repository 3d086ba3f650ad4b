//! The semantic check as a whole: each part in turn, and the short ones.
//!
//! Not the rules of a part, which stand in its own file.

use crate::config::document::{Cursor, DocumentNode};
use crate::config::problem::Problems;
use crate::telemetry::log;
use crate::upstream::check_url;

use super::{
    accounts, bases, billing, client_profiles, cluster, deployments, endpoints, fallbacks, files,
    finetunes, gpu, jobs, limits, listen, models, named_tasks, plugins, processes,
};

/// Reports what cannot work to `problems` and what probably is not meant to `warnings`.
pub(in crate::config) fn check(
    root: &DocumentNode,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let root = Cursor::root(root);
    listen::check(&root, problems, warnings);
    cluster::check(&root, problems);
    limits::check(&root, problems);
    check_log(&root, problems);
    check_tracing(&root, problems);
    let accounts = accounts::check(&root, problems, warnings);
    let models = models::check(&root, &accounts, problems, warnings);
    accounts::check_models(&root, &models, warnings);
    check_readiness(&root, &models, problems);
    fallbacks::check(&root, &models, problems, warnings);
    named_tasks::check(&root, &models, problems, warnings);
    client_profiles::check(&root, &models, problems, warnings);
    bases::check(&root, &models, problems, warnings);
    finetunes::check(&root, &accounts, problems, warnings);
    let plugins = plugins::check(&root, problems, warnings);
    plugins::check_models(&root, &plugins, problems, warnings);
    billing::check(&root, problems, warnings);
    jobs::check(&root, problems, warnings);
    files::check(&root, problems, warnings);
    processes::check(&root, problems, warnings);
    gpu::check(&root, problems, warnings);
    deployments::check(&root, &accounts, &models, problems, warnings);
}

fn check_log(root: &Cursor<'_>, problems: &mut Problems) {
    if let Some(level) = root.key("log").and_then(|log| log.key("level"))
        && let Some(text) = level.text()
        && let Err(bad) = log::check_level(text)
    {
        problems.add(level.problem(bad.to_string()));
    }
}

fn check_tracing(root: &Cursor<'_>, problems: &mut Problems) {
    let otlp = root.key("tracing").and_then(|tracing| tracing.key("otlp"));
    if let Some(otlp) = &otlp {
        endpoints::check_collector_headers(otlp, problems);
    }
    if let Some(endpoint) = otlp.and_then(|otlp| otlp.key("endpoint"))
        && let Some(text) = endpoint.text()
        && let Err(fault) = check_url(text)
    {
        problems.add(endpoint.problem(fault));
    }
}

fn check_readiness(root: &Cursor<'_>, models: &models::ModelNames, problems: &mut Problems) {
    let Some(readiness) = root.key("readiness") else {
        return;
    };
    for entry in readiness.list("require_models") {
        let Some(id) = entry.text().filter(|id| *id != "*" && !models.has(id)) else {
            continue;
        };
        problems.add(entry.problem(match models.id_of_alias(id) {
            Some(of) => format!("`{id}` is another name of `{of}`: write the id"),
            None => format!("no model has the id {id:?}: correct it, or write \"*\" for all"),
        }));
    }
}
