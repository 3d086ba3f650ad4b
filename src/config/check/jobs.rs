//! `jobs`: networks that webhooks may reach, the secret they are signed with, and what clients can not reach.
//!
//! No name is resolved, and no secret is repeated.

use infergate_core::api::replicate::model_path;
use infergate_core::network::Network;

use crate::config::document::Cursor;
use crate::config::problem::Problems;

/// Shortest secret, characters: what a person can guess signs nothing.
const SECRET_CHARS_MIN: usize = 16;

/// Owner in a suggested name, where that of a model has none.
const OWNER: &str = "models";

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let Some(jobs) = root.key("jobs") else { return };
    check_nodes(root, &jobs, warnings);
    for model in root.list("models") {
        check_path(&model, warnings);
    }
    if let Some(webhooks) = jobs.key("webhooks") {
        check_webhooks(&webhooks, problems);
    }
}

/// The one store there is is a node's own.
fn check_nodes(root: &Cursor<'_>, jobs: &Cursor<'_>, warnings: &mut Problems) {
    if root.key("cluster").is_some() {
        let store = jobs.key("store");
        warnings.add(store.as_ref().unwrap_or(jobs).problem(
            "jobs live on the node that accepted them, and the others of the cluster do not know them: clients must stay \
             with one node",
        ));
    }
}

/// A model is named in paths of the API by `owner/name` alone.
fn check_path(model: &Cursor<'_>, warnings: &mut Problems) {
    let Some(id) = model.text_of("id") else {
        return;
    };
    let enabled = model.key("jobs").and_then(|jobs| jobs.key("enabled"));
    if enabled.is_some_and(|enabled| enabled.shown() == "false") {
        return;
    }
    let aliases = model.list("aliases");
    let mut names = aliases.iter().filter_map(Cursor::text).chain([id]);
    if names.any(model_path) {
        return;
    }
    warnings.add(model.problem(format!(
        "jobs of {id:?} are reached by version id only, for no name of it has the form owner/name: add `aliases: \
         [\"{}\"]`, or `jobs: {{ enabled: false }}`",
        suggested_path(id)
    )));
}

/// Returns a name of the form `owner/name` that is near to an id.
fn suggested_path(id: &str) -> String {
    let clean = |part: &str| -> String {
        let letters = part.chars().map(|letter| match letter {
            letter if letter.is_ascii_alphanumeric() || "-._".contains(letter) => letter,
            _ => '-',
        });
        letters.collect()
    };
    let mut parts = id.rsplit('/').filter(|part| !part.is_empty()).map(clean);
    let name = parts.next().unwrap_or_default();
    let owner = parts.next().unwrap_or_else(|| OWNER.to_owned());
    format!("{owner}/{name}")
}

fn check_webhooks(webhooks: &Cursor<'_>, problems: &mut Problems) {
    for network in webhooks.list("allow_networks") {
        if let Some(Err(fault)) = network.text().map(Network::parse) {
            problems.add(network.problem(fault.to_string()));
        }
    }
    let previous = webhooks.list("previous_secrets");
    for secret in webhooks.key("secret").into_iter().chain(previous) {
        let is_short = |text: &str| text.chars().count() < SECRET_CHARS_MIN;
        if secret.text().is_some_and(is_short) {
            problems.add(secret.problem(format!(
                "is too short for a secret: take at least {SECRET_CHARS_MIN} characters"
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const BASE: &str = r#"
listen: { clients: [{ address: "127.0.0.1:8080" }] }
anonymous: allow
"#;

    #[test]
    fn networks_and_secrets_of_no_use_are_named_and_secrets_not_repeated() {
        let text = format!(
            "{BASE}jobs: {{ webhooks: {{ secret: guessable, previous_secrets: [short], allow_networks: [10.0.0.0/8, 10.0.0.1/8, x] }} }}\n"
        );
        let found = parse(&text, &|_: &str| None).unwrap_err();
        let mut paths: Vec<&str> = found.iter().map(|problem| &*problem.path).collect();
        paths.sort_unstable();
        let expected = [
            "jobs.webhooks.allow_networks[1]",
            "jobs.webhooks.allow_networks[2]",
            "jobs.webhooks.previous_secrets[0]",
            "jobs.webhooks.secret",
        ];
        assert_eq!(paths, expected);
        let messages = format!("{found:?}");
        assert!(!messages.contains("guessable") && !messages.contains("short]"));
    }

    /// Returns the warnings about a file, by place.
    fn warnings(more: &str) -> Vec<(String, String)> {
        let loaded = parse(&format!("{BASE}{more}"), &|_: &str| None).unwrap();
        let warnings = loaded.warnings.iter();
        let pair = |it: &crate::config::Problem| (it.path.clone(), it.to_string());
        warnings.map(pair).collect()
    }

    #[test]
    fn a_model_without_a_path_is_named_with_the_alias_that_it_lacks() {
        let model = |rest: &str| {
            let server = "task: dumb-pipe, backend: http, endpoints: [{ url: \"http://a:1\" }]";
            format!("models: [{{ {rest}, {server} }}]\n")
        };
        let with_jobs = |rest: &str| warnings(&format!("jobs: {{}}\n{}", model(rest)));
        for (id, alias) in [
            ("\"@cf/meta/llama\"", "meta/llama"),
            ("m", "models/m"),
            ("\"a:c\"", "models/a-c"),
        ] {
            let found = with_jobs(&format!("id: {id}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].0, "models[0]");
            let text = &found[0].1;
            assert!(text.contains("by version id only"), "{text}");
            assert!(text.contains(&format!("aliases: [\"{alias}\"]")), "{text}");
        }
        for fine in [
            "id: acme/m",
            "id: m, aliases: [acme/m]",
            "id: m, jobs: { enabled: false }",
        ] {
            assert_eq!(with_jobs(fine), []);
        }
        assert_eq!(warnings(&model("id: m")), [], "without jobs");
    }

    #[test]
    fn a_cluster_is_told_that_jobs_stay_on_their_node() {
        let text = r#"
listen: { clients: [{ address: "127.0.0.1:8080" }], peers: { address: "127.0.0.1:7002", tls: { certificate: c, private_key: k, client_ca: a } } }
anonymous: allow
node: { id: a }
cluster: { gossip: "127.0.0.1:7001" }
jobs: { store: embedded }
"#;
        let loaded = parse(text, &|_: &str| None).unwrap();
        let found: Vec<_> = loaded.warnings.iter().collect();
        let of_store = found.iter().find(|it| it.path == "jobs.store");
        let text = of_store.map(|it| it.to_string()).unwrap_or_default();
        assert!(
            text.contains("clients must stay with one node"),
            "{found:?}"
        );
    }

    #[test]
    fn secrets_of_webhooks_are_shown_as_digests() {
        let text = format!(
            "{BASE}jobs: {{ webhooks: {{ secret: present-0123456789, previous_secrets: [former-0123456789] }} }}\n"
        );
        let config = parse(&text, &|_: &str| None).unwrap().config;
        let shown = crate::config::redacted(&config, std::path::Path::new("/"), "salt");
        let webhooks = &shown["jobs"]["webhooks"];
        assert!(crate::config::has_secret(&webhooks["secret"]));
        assert!(crate::config::has_secret(&webhooks["previous_secrets"]));
        assert!(!shown.to_string().contains("0123456789"));
    }
}
