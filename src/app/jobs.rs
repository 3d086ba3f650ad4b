//! Durable jobs in the process: opened at the start, configured by reloads, ended by a drain.
//!
//! Not the durable path itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::files::Files;
use crate::jobs::{EventPlace, JobChoices, Jobs};
use crate::state::Shared;

/// Opens the durable path where it is configured.
///
/// # Errors
/// A sentence: a thread cannot be started.
pub fn open(config: &Config, shared: &Arc<Shared>) -> Result<Option<Arc<Jobs>>, String> {
    let Some(choices) = choices(config) else {
        return Ok(None);
    };
    let place = EventPlace {
        node: Arc::clone(&config.node.id),
        site: Arc::clone(&config.node.site),
    };
    let files = Files::open(choices.files.clone(), &config.state_dir, shared)
        .map_err(|error| format!("files cannot be kept: {error}"))?;
    let jobs = Jobs::open(shared, choices, &config.state_dir, (place, files));
    jobs.map(Some)
        .map_err(|error| format!("jobs cannot be kept: {error}"))
}

/// Returns the choices of a configuration; none where it has no jobs.
pub fn choices(config: &Config) -> Option<JobChoices> {
    Some(JobChoices {
        jobs: config.jobs.clone()?,
        replicate: config.replicate.clone(),
        public_url: config.public_url.clone(),
        listeners: listeners(config),
        callbacks_url: config
            .listen
            .callbacks
            .as_ref()
            .map(|callbacks| callbacks.url.trim_end_matches('/').into()),
        files: config.files.clone(),
        deployments: config.deployments.clone(),
        hardware: config.hardware.clone(),
    })
}

/// Addresses at which this node listens.
fn listeners(config: &Config) -> Vec<SocketAddr> {
    let listen = &config.listen;
    let clients = listen
        .clients
        .iter()
        .filter_map(|clients| clients.address.ip());
    let peers = listen.peers.as_ref().map(|peers| peers.address);
    let admin = listen.admin.address;
    let callbacks = listen.callbacks.as_ref().map(|callbacks| callbacks.address);
    clients
        .chain(peers)
        .chain([admin])
        .chain(callbacks)
        .collect()
}

/// Tasks of the durable path that a drain waits for.
pub struct JobTasks {
    jobs: Option<Arc<Jobs>>,
    stopping: watch::Sender<bool>,
    working: JoinSet<()>,
}

impl JobTasks {
    /// Starts the worker; `tasks` gets what ends with the process.
    pub fn start(jobs: Option<Arc<Jobs>>, tasks: &mut JoinSet<()>) -> JobTasks {
        let (stopping, stop) = watch::channel(false);
        let mut working = JoinSet::new();
        if let Some(jobs) = &jobs {
            if jobs.choices().jobs.worker.enabled {
                working.spawn(Arc::clone(jobs).work(stop));
            }
            tasks.spawn(Arc::clone(jobs).deliver_events());
            tasks.spawn(Arc::clone(jobs).end_unserved());
            tasks.spawn(Arc::clone(jobs).deliver_webhooks());
            tasks.spawn(Arc::clone(jobs).remove_input_files());
            tasks.spawn(Arc::clone(&jobs.files).sweep());
        }
        JobTasks {
            jobs,
            stopping,
            working,
        }
    }

    /// Takes no further job.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits until running jobs have ended or are queued again.
    pub async fn ended(&mut self) {
        while self.working.join_next().await.is_some() {}
    }

    /// Longest time in which running jobs end after [`stop`](JobTasks::stop).
    pub fn drain_limit(&self) -> Duration {
        let jobs = self.jobs.as_ref();
        jobs.map_or(Duration::ZERO, |jobs| {
            jobs.choices().jobs.worker.drain_timeout()
        })
    }

    /// Queues running jobs again at once.
    pub fn release(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.release_all();
        }
    }

    /// Writes the events of the last ends.
    pub async fn flush(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.flush_events().await;
        }
    }
}
