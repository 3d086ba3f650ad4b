//! Start of a successor by the process that serves, up to the moment at which the successor serves.
//!
//! The process changes nothing of its own here: it serves on while the successor loads its configuration, and where that comes to
//! nothing. The successor gets the other end of a socket pair as its standard input, and on it first the sockets.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use infergate_core::billing::QuotaSnapshot;
use tokio::net::UnixStream;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use super::messages::{PredecessorMessage, SuccessorMessage, UpgradeRequest, receive, send};
use super::sockets::{NamedSocket, send_sockets};
use super::successor::SUCCESSOR_VARIABLE;
use crate::app::membership_handover::FormerNode;

/// Longest start of a successor: to load its configuration, and to compile large plugins without a cache.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Time for which a successor must live once it could serve, before it does: a program that soon crashes costs nobody a
/// request.
const PROBATION: Duration = Duration::from_millis(1500);
/// Longest time from the order to serve until it could accept connections: to take the store of jobs over, and to look
/// endpoints up.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Looks for the exit status of a process that has closed its connection.
const END_LOOKS: u32 = 50;
/// Interval of the looks.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Process that is to follow this one. Its drop kills it, unless it serves.
pub struct SuccessorProcess {
    /// Absent once it serves, or has ended.
    child: Option<Child>,
    stream: Option<UnixStream>,
    start_limit: Instant,
}

impl SuccessorProcess {
    /// Starts it and hands the sockets over.
    ///
    /// # Errors
    /// A sentence: it could not be started, or takes nothing.
    pub fn start(
        request: &UpgradeRequest,
        sockets: &[NamedSocket],
    ) -> Result<SuccessorProcess, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", request.binary.display());
        let (mut here, there) = StdUnixStream::pair().map_err(failed)?;
        let child = Command::new(&request.binary)
            .arg("serve")
            .arg("--config")
            .arg(&request.config)
            .env(SUCCESSOR_VARIABLE, "1")
            .stdin(Stdio::from(OwnedFd::from(there)))
            .spawn()
            .map_err(failed)?;
        let sent = send_sockets(&mut here, sockets).and_then(|()| {
            here.set_nonblocking(true)?;
            UnixStream::from_std(here)
        });
        match sent {
            Ok(stream) => Ok(SuccessorProcess {
                child: Some(child),
                stream: Some(stream),
                start_limit: Instant::now() + START_TIMEOUT,
            }),
            Err(error) => {
                end(child);
                Err(failed(error))
            }
        }
    }

    /// Returns the next step of its start; none once it could serve.
    ///
    /// # Errors
    /// A sentence: why it will not serve.
    pub async fn next_step(&mut self) -> Result<Option<String>, String> {
        let Some(stream) = &mut self.stream else {
            return Err(self.end_text().await);
        };
        match timeout_at(self.start_limit, receive(stream)).await {
            Ok(Ok(SuccessorMessage::Progress(step))) => Ok(Some(step)),
            Ok(Ok(SuccessorMessage::Ready)) => Ok(None),
            Ok(Ok(SuccessorMessage::Failed(reason))) => Err(reason),
            Ok(Ok(SuccessorMessage::Serving | SuccessorMessage::Permits(_)) | Err(_)) => {
                Err(self.end_text().await)
            }
            Err(_) => {
                let secs = START_TIMEOUT.as_secs();
                Err(format!("it could not serve within {secs} seconds"))
            }
        }
    }

    /// Waits for the time in which a broken program shows itself.
    ///
    /// # Errors
    /// A sentence: it has ended.
    pub async fn probation(&mut self) -> Result<(), String> {
        let Some(stream) = &mut self.stream else {
            return Err(self.end_text().await);
        };
        // Nothing is sent meanwhile but a failure: another message is as good as its end.
        tokio::select! {
            () = sleep(PROBATION) => Ok(()),
            message = receive(stream) => match message {
                Ok(SuccessorMessage::Failed(reason)) => Err(reason),
                _ => Err(self.end_text().await),
            },
        }
    }

    /// Has it serve. `owned` are the permits that this process may still use, by server; `quota` are the neurons of the day,
    /// `node` is the node of a cluster that this process is. Returns its process and the connection on which permits are exchanged.
    ///
    /// # Errors
    /// A sentence: it does not serve.
    pub async fn begin(
        mut self,
        owned: BTreeMap<String, u32>,
        quota: QuotaSnapshot,
        node: Option<FormerNode>,
    ) -> Result<(Child, UnixStream), String> {
        let Some(mut stream) = self.stream.take() else {
            return Err(self.end_text().await);
        };
        let begin = PredecessorMessage::Begin { owned, quota, node };
        let serving = async {
            send(&mut stream, &begin).await?;
            receive(&mut stream).await
        };
        match timeout(BEGIN_TIMEOUT, serving).await {
            Ok(Ok(SuccessorMessage::Serving)) => {
                let child = self.child.take();
                child
                    .map(|child| (child, stream))
                    .ok_or_else(|| "it has ended".to_owned())
            }
            Ok(Ok(SuccessorMessage::Failed(reason))) => Err(reason),
            Ok(_) => Err(self.end_text().await),
            Err(_) => {
                let secs = BEGIN_TIMEOUT.as_secs();
                Err(format!("it accepted no connection within {secs} seconds"))
            }
        }
    }

    /// Tells how it ended; one that lives is killed.
    async fn end_text(&mut self) -> String {
        let Some(mut child) = self.child.take() else {
            return "it has ended".to_owned();
        };
        // Its end of the connection closes a moment before its exit status is there.
        let mut looks = interval(END_LOOK_INTERVAL);
        for _ in 0..END_LOOKS {
            looks.tick().await;
            if let Ok(Some(status)) = child.try_wait() {
                return format!("it ended before it served: {status}; the log has its words");
            }
        }
        end(child);
        "it closed the connection before it served, and was ended; the log has its words".to_owned()
    }
}

impl Drop for SuccessorProcess {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            end(child);
        }
    }
}

/// Kills a process and takes its exit status, which a killed one has at once.
fn end(mut child: Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        tracing::warn!(%error, "a successor that does not serve could not be ended");
    }
}
