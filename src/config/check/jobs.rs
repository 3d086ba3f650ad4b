//! `jobs`: networks that webhooks may reach, and the secret they are signed with.
//!
//! No name is resolved, and no secret is repeated.

use infergate_core::job::forbidden_address::Network;

use crate::config::document::Cursor;
use crate::config::problem::Problems;

/// Shortest secret, characters: what a person can guess signs nothing.
const SECRET_CHARS_MIN: usize = 16;

pub fn check(root: &Cursor<'_>, problems: &mut Problems) {
    let webhooks = root.key("jobs").and_then(|jobs| jobs.key("webhooks"));
    let Some(webhooks) = webhooks else { return };
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
