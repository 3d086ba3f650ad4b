//! `deployments`, `hardware` and `models[].versions`: names that refer to each other, and `jobs.moderation`.
//!
//! Deployments that accounts have made by API stand in the store and are not checked here.

use std::collections::{HashMap, HashSet};

use infergate_core::api::replicate::model_path;
use infergate_core::model::{DeploymentSpec, HardwareSpec};

use super::models::{ModelNames, check_accounts};
use super::names::anonymous_allowed;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::upstream::check_url;

pub fn check(
    root: &Cursor<'_>,
    accounts: &HashSet<String>,
    models: &ModelNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let versions = check_versions(root, problems);
    check_moderation(root, problems);
    let hardware = check_hardware(root, problems);
    let mut names: HashMap<&str, String> = HashMap::new();
    for deployment in root.list("deployments") {
        if let Some(id) = deployment.key("id")
            && let Some(name) = id.text()
        {
            if !model_path(name) {
                problems.add(
                    id.problem(
                        "is no `owner/name` of letters, digits, `-`, `.` and `_`: rename it",
                    ),
                );
            }
            if let Some(first) = names.insert(name, deployment.path.clone()) {
                problems.add(id.problem(format!("{name:?} is already the id of `{first}`")));
            }
        }
        check_model(root, &deployment, models, &versions, problems);
        check_sizes(&deployment, &hardware, problems);
        let is_anonymous_allowed = anonymous_allowed(root);
        check_accounts(
            &deployment,
            accounts,
            is_anonymous_allowed,
            problems,
            warnings,
        );
        if root.key("jobs").is_none() {
            warnings.add(deployment.problem("never used: add `jobs: {}` to the configuration"));
        }
    }
}

/// Versions by the path of their model; each names one model.
fn check_versions<'a>(
    root: &Cursor<'a>,
    problems: &mut Problems,
) -> HashMap<&'a str, HashSet<&'a str>> {
    let mut all: HashMap<&str, String> = HashMap::new();
    let mut of_models: HashMap<&str, HashSet<&str>> = HashMap::new();
    for model in root.list("models") {
        let own = of_models.entry(model.text_of("id").unwrap_or_default());
        let own = own.or_default();
        for version in model.list("versions") {
            let Some(id) = version.text() else { continue };
            own.insert(id);
            if let Some(first) = all.insert(id, version.path.clone()) {
                problems.add(version.problem(format!(
                    "already stands at `{first}`: a version names one model, once"
                )));
            }
        }
    }
    of_models
}

fn check_moderation(root: &Cursor<'_>, problems: &mut Problems) {
    for model in root.list("models") {
        let moderation = model.key("jobs").and_then(|jobs| jobs.key("moderation"));
        if let Some(url) = moderation.and_then(|moderation| moderation.key("url"))
            && let Some(text) = url.text()
            && let Err(fault) = check_url(text)
        {
            problems.add(url.problem(fault));
        }
    }
}

fn check_hardware<'a>(root: &Cursor<'a>, problems: &mut Problems) -> HashSet<String> {
    let mut known = HashSet::new();
    for hardware in root.list("hardware") {
        let Some(sku) = hardware.key("sku") else {
            continue;
        };
        if let Some(text) = sku.text()
            && !known.insert(text.to_owned())
        {
            problems.add(sku.problem("stands here twice: remove one of them"));
        }
    }
    if known.is_empty() {
        known.insert(HardwareSpec::usual().sku.to_string());
    }
    known
}

fn check_model(
    root: &Cursor<'_>,
    deployment: &Cursor<'_>,
    models: &ModelNames,
    versions: &HashMap<&str, HashSet<&str>>,
    problems: &mut Problems,
) {
    let Some(model) = deployment.key("model") else {
        return;
    };
    let Some(id) = model.text() else { return };
    if !models.has(id) {
        problems.add(model.problem(match models.id_of_alias(id) {
            Some(of) => format!("`{id}` is another name of `{of}`: write the id"),
            None => format!("no model has the id {id:?}: add it under `models`, or correct it"),
        }));
        return;
    }
    let all = root.list("models");
    let mut found = all.iter().filter(|it| it.text_of("id") == Some(id));
    let jobs = found.next().and_then(|it| it.key("jobs"));
    let enabled = jobs.and_then(|jobs| jobs.key("enabled"));
    if enabled.is_some_and(|enabled| enabled.shown() == "false") {
        problems.add(model.problem(format!("{id:?} takes no jobs: enable them, or remove this")));
    }
    if let Some(version) = deployment.key("version")
        && let Some(text) = version.text().filter(|it| *it != DeploymentSpec::LATEST)
        && !versions.get(id).is_some_and(|known| known.contains(text))
    {
        problems.add(version.problem(format!(
            "is no version of {id:?}: add it to that model's `versions`, or write `latest`"
        )));
    }
}

fn check_sizes(deployment: &Cursor<'_>, hardware: &HashSet<String>, problems: &mut Problems) {
    if let Some(sku) = deployment.key("hardware")
        && let Some(text) = sku.text().filter(|text| !hardware.contains(*text))
    {
        problems.add(sku.problem(format!(
            "there is no hardware {text:?}: add its `sku` under `hardware`, or correct it"
        )));
    }
    let least = deployment.number_of("min_instances").unwrap_or(0);
    let most = deployment.number_of("max_instances").unwrap_or(1);
    if least > most {
        let place = deployment.key("min_instances");
        let place = place.as_ref().unwrap_or(deployment);
        problems.add(place.problem(format!("is more than max_instances, which is {most}")));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    fn problems(rest: &str) -> Vec<String> {
        let version = "a".repeat(64);
        let text = format!(
            r#"
listen: {{ clients: [{{ address: "127.0.0.1:8080" }}] }}
anonymous: allow
jobs: {{}}
models:
  - id: acme/m
    task: text-generation
    backend: openai
    aliases: [m]
    versions: ["{version}"]
    endpoints: [{{ url: "http://127.0.0.1:1" }}]
  - id: acme/none
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:2" }}]
    jobs: {{ enabled: false }}
{rest}
"#
        );
        match parse(&text, &|_: &str| None) {
            Ok(_) => Vec::new(),
            Err(found) => found.into_iter().map(|problem| problem.path).collect(),
        }
    }

    #[test]
    fn names_of_deployments_refer_to_what_there_is() {
        let good = format!(
            "hardware: [{{ sku: a100, name: A100 }}]\ndeployments:\n  - {{ id: acme/prod, model: acme/m, version: \"{}\", hardware: a100 }}\n  - {{ id: acme/dev, model: acme/m }}\n",
            "a".repeat(64)
        );
        assert_eq!(problems(&good), Vec::<String>::new());
        for (item, path) in [
            ("{ id: prod, model: acme/m }", "id"),
            ("{ id: acme/p, model: acme/other }", "model"),
            ("{ id: acme/p, model: m }", "model"),
            ("{ id: acme/p, model: acme/none }", "model"),
            ("{ id: acme/p, model: acme/m, hardware: h100 }", "hardware"),
            (
                "{ id: acme/p, model: acme/m, min_instances: 3 }",
                "min_instances",
            ),
            (
                "{ id: acme/p, model: acme/m, allowed_accounts: [x] }",
                "allowed_accounts[0]",
            ),
            ("{ id: acme/p, model: acme/m, version: v1 }", "version"),
        ] {
            let found = problems(&format!("deployments: [{item}]\n"));
            assert_eq!(found, [format!("deployments[0].{path}")], "{item}");
        }
        let unknown = format!(
            "deployments: [{{ id: a/p, model: acme/m, version: \"{}\" }}]\n",
            "b".repeat(64)
        );
        assert_eq!(problems(&unknown), ["deployments[0].version"]);
        let twice = "deployments: [{ id: a/p, model: acme/m }, { id: a/p, model: acme/m }]\n";
        assert_eq!(problems(twice), ["deployments[1].id"]);
        let skus = "hardware: [{ sku: a, name: A }, { sku: a, name: B }]\n";
        assert_eq!(problems(skus), ["hardware[1].sku"]);
    }

    #[test]
    fn versions_are_64_digits_of_one_model_each_and_moderation_has_a_url() {
        let model = |rest: &str| {
            let head = "  - { id: x, task: text-generation, backend: openai, endpoints: [{ url: \"http://127.0.0.1:3\" }]";
            problems(&format!("{head}, {rest} }}\n"))
        };
        assert_eq!(model("versions: [short]"), ["models[2].versions[0]"]);
        let taken = format!("versions: [\"{}\"]", "a".repeat(64));
        assert_eq!(model(&taken), ["models[2].versions[0]"]);
        let url = "jobs: { moderation: { url: nowhere } }";
        assert_eq!(model(url), ["models[2].jobs.moderation.url"]);
    }
}
