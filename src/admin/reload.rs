//! Asking for a reload and hearing what came of it.
//!
//! Reloading itself is done in `app`, which holds the other end of the channel. Requests are served
//! one at a time, on the same path as a file change or SIGHUP, and each gets a result.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// Reloads that may wait for the one in progress; more at once is a loop gone wrong.
const PENDING_RELOADS_MAX: usize = 8;

/// A configuration is read and checked in milliseconds, but its plugins compile at the lowest priority. A
/// megabyte of JavaScript takes seconds of processor time. A hanging disk must not hang the caller for ever.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(180);

/// Changes made by a reload: the body of `POST /reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Generation of the configuration now in use.
    pub generation: u64,
    /// Key paths that differ and are in use.
    pub changed: Vec<String>,
    /// Key paths that differ and need a restart.
    pub needs_restart: Vec<String>,
    /// Plugins that are compiled still: models that need them keep what they had until then.
    pub compiling: Vec<String>,
}

/// A problem in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReloadProblem {
    /// Key path, empty for the whole file.
    pub path: String,
    /// Line in the file, from 1.
    pub line: Option<u64>,
    /// The fault and the remedy, for a person.
    pub message: String,
}

/// Reason for the absence of a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadFailure {
    /// The file is not good; the configuration in use stays.
    #[error("the configuration has problems")]
    Refused(Vec<ReloadProblem>),
    /// Too many reloads wait already.
    #[error("other reloads are waiting, try again")]
    Busy,
    /// The process is on its way out.
    #[error("this node is shutting down")]
    Stopped,
    /// No result in time; the reload may still happen, see `/state`.
    #[error("the reload takes long, see /state for what comes of it")]
    Late,
}

/// A request for a reload.
#[derive(Debug)]
pub struct ReloadRequest {
    /// Channel for the result. The receiver may have left meanwhile.
    pub answer: oneshot::Sender<Result<ReloadReport, Vec<ReloadProblem>>>,
}

/// The asking end.
#[derive(Clone, Debug)]
pub struct ReloadHandle {
    requests: mpsc::Sender<ReloadRequest>,
}

/// Both ends; `app` keeps the receiver.
pub fn reload_channel() -> (ReloadHandle, mpsc::Receiver<ReloadRequest>) {
    let (requests, receiver) = mpsc::channel(PENDING_RELOADS_MAX);
    (ReloadHandle { requests }, receiver)
}

impl ReloadHandle {
    /// Asks for a reload and waits for what comes of it, within a limit.
    pub async fn reload(&self) -> Result<ReloadReport, ReloadFailure> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .try_send(ReloadRequest { answer })
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => ReloadFailure::Busy,
                mpsc::error::TrySendError::Closed(_) => ReloadFailure::Stopped,
            })?;
        match tokio::time::timeout(RELOAD_TIMEOUT, answered).await {
            Ok(Ok(outcome)) => outcome.map_err(ReloadFailure::Refused),
            Ok(Err(_)) => Err(ReloadFailure::Stopped),
            Err(_) => Err(ReloadFailure::Late),
        }
    }
}
