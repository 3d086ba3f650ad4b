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
