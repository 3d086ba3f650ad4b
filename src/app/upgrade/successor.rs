//! Process that was started to follow another one, as it sees that one: sockets first, then its turn to serve.
//!
//! The connection is the standard input at first. Until its turn comes this process has only read its configuration. Its
//! gateway is built in its turn; the store of jobs goes back to the predecessor where that fails.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use infergate_core::billing::QuotaSnapshot;
use rustix::stdio::dup2_stdin;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::messages::{PredecessorMessage, SuccessorMessage, frame, receive, send};
use super::sockets::{SocketSet, receive_sockets};
use crate::app::membership_handover::FormerNode;
use crate::upstream::ProcessPermits;

/// Environment variable of a process that is started as a successor.
pub const SUCCESSOR_VARIABLE: &str = "INFERGATE_SUCCESSOR";
/// Longest wait for the sockets, which are sent at once.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the first permits, which are sent at once.
const FIRST_PERMITS_TIMEOUT: Duration = Duration::from_secs(5);

/// Process that serves until this one does.
pub struct Predecessor {
    stream: StdUnixStream,
    sockets: SocketSet,
}

/// Turn of this process, while its gateway is built: what the predecessor hands over, and the connection to it.
pub struct Turn {
    owned: BTreeMap<String, u32>,
    quota: QuotaSnapshot,
    node: Option<FormerNode>,
    sockets: SocketSet,
    stream: UnixStream,
}

impl Predecessor {
    /// Returns the process that has started this one as its successor; none of a process that was started otherwise.
    ///
    /// # Errors
    /// A sentence: its sockets did not come.
    pub fn of_environment() -> Result<Option<Predecessor>, String> {
        if std::env::var_os(SUCCESSOR_VARIABLE).is_none() {
            return Ok(None);
        }
        let received = receive_from_standard_input();
        received.map(Some).map_err(|error| {
            format!(
                "{SUCCESSOR_VARIABLE} is set, but no sockets came on the standard input: {error}; `infergate upgrade` \
                 sets it"
            )
        })
    }

    /// Tells the predecessor what this process does.
    pub fn report_progress(&mut self, step: &str) {
        self.report(&SuccessorMessage::Progress(step.to_owned()));
    }

    /// Tells the predecessor that this process cannot serve.
    pub fn report_failure(&mut self, reason: &str) {
        self.report(&SuccessorMessage::Failed(reason.to_owned()));
    }

    fn report(&mut self, message: &SuccessorMessage) {
        let sent = frame(message).and_then(|frame| self.stream.write_all(&frame));
        if let Err(error) = sent {
            tracing::debug!(%error, "the process before this one cannot be reached");
        }
    }

    /// Tells the predecessor that everything is loaded, and waits for its turn.
    ///
    /// # Errors
    /// A sentence: the predecessor has ended, or wants none.
    pub async fn await_turn(self) -> Result<Turn, String> {
        let waiting = async {
            self.stream.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(self.stream)?;
            send(&mut stream, &SuccessorMessage::Ready).await?;
            io::Result::Ok((receive(&mut stream).await?, stream))
        };
        match waiting.await {
            Ok((PredecessorMessage::Begin { owned, quota, node }, stream)) => Ok(Turn {
                owned,
                quota,
                node,
                sockets: self.sockets,
                stream,
            }),
            Ok((PredecessorMessage::Permits(_), _)) => {
                Err("the process before this one is of another protocol".to_owned())
            }
            Err(error) => Err(format!(
                "the process before this one does not hand over: {error}"
            )),
        }
    }
}

impl Turn {
    /// Takes the sockets of the predecessor.
    pub fn take_sockets(&mut self) -> SocketSet {
        std::mem::take(&mut self.sockets)
    }

    /// Neurons of the day as the predecessor has counted them.
    pub fn quota(&self) -> &QuotaSnapshot {
        &self.quota
    }

    /// Node of a cluster that the predecessor is, where this process is the node of that name too.
    pub fn node(&self, name: &str) -> Option<&FormerNode> {
        self.node.as_ref().filter(|node| *node.name == *name)
    }

    /// Tells the predecessor that this process cannot serve.
    pub async fn report_failure(mut self, reason: &str) {
        let failed = SuccessorMessage::Failed(reason.to_owned());
        if let Err(error) = send(&mut self.stream, &failed).await {
            tracing::debug!(%error, "the process before this one cannot be reached");
        }
    }

    /// Tells the predecessor that connections can be accepted, and waits for the first permits. Returns the connection on
    /// which more come.
    ///
    /// # Errors
    /// The predecessor is gone.
    pub(super) async fn begin(mut self, permits: &ProcessPermits) -> io::Result<UnixStream> {
        send(&mut self.stream, &SuccessorMessage::Serving).await?;
        let first = timeout(FIRST_PERMITS_TIMEOUT, receive(&mut self.stream)).await;
        if let PredecessorMessage::Permits(report) = first.map_err(io::Error::other)?? {
            permits.take(&report);
        }
        Ok(self.stream)
    }

    /// Permits that the predecessor may still use, by server.
    pub(super) fn owned(&self) -> &BTreeMap<String, u32> {
        &self.owned
    }
}

fn receive_from_standard_input() -> io::Result<Predecessor> {
    // A descriptor that no child of this process gets.
    let own = io::stdin().as_fd().try_clone_to_owned()?;
    // The end of this process is the end of the connection, whatever its children inherit.
    dup2_stdin(File::open("/dev/null")?)?;
    let mut stream = StdUnixStream::from(own);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOCKETS_TIMEOUT))?;
    let sockets = receive_sockets(&mut stream)?;
    Ok(Predecessor { stream, sockets })
}
