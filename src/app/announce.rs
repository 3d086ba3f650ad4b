//! Start-up message of a gateway: where it listens, what it serves, where its events go.
//!
//! Listeners and tasks are started elsewhere. A line each, and of models and plugins at most [`ANNOUNCED_MAX`]
//! lines; `/state` has all.

use crate::config::Config;
use crate::state::ConfigSnapshot;

/// Models and plugins that get a line of their own.
const ANNOUNCED_MAX: usize = 50;

/// Writes it to the log. Health is what the first checks have found by now.
pub fn announce(config: &Config, snapshot: &ConfigSnapshot) {
    let listen = &config.listen;
    let clients: Vec<String> = listen
        .clients
        .iter()
        .map(|listener| listener.address.to_string())
        .collect();
    tracing::info!(
        clients = clients.join(","),
        admin = %listen.admin.address,
        anonymous = ?config.anonymous,
        accounts = config.accounts.len(),
        "listening"
    );
    for model in snapshot.models.iter().take(ANNOUNCED_MAX) {
        let health = model.gate.health();
        let endpoints: Vec<String> = health
            .iter()
            .map(|(url, health, _)| {
                let health = format!("{health:?}").to_lowercase();
                format!("{url} {health}")
            })
            .collect();
        tracing::info!(
            model = model.spec.id.as_str(),
            task = model.spec.task.slug(),
            permits = model.spec.permits(),
            endpoints = endpoints.join(", "),
            "serves a model"
        );
    }
    for plugin in snapshot.plugins.state().iter().take(ANNOUNCED_MAX) {
        tracing::info!(
            plugin = &*plugin.name,
            world = plugin.world.name(),
            sha256 = &*plugin.sha256,
            "runs a plugin"
        );
    }
    let more = snapshot.models.iter().count().saturating_sub(ANNOUNCED_MAX);
    if more > 0 {
        tracing::info!(more, "serves more models: see /state");
    }
    match &config.events.file {
        Some(file) => {
            tracing::info!(file = %file.path.display(), "writes an event for each request")
        }
        None => tracing::info!("writes no events: `events.file` is not configured"),
    }
    if let Some(socket) = &config.events.unix_socket {
        let share = config.events.sample;
        tracing::info!(path = %socket.path.display(), share, "sends events to a socket");
    }
}
