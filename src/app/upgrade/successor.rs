//! Process that was started to follow another one, as it sees that one: sockets first, then its turn to serve.
//!
//! The connection is the standard input. Until its turn comes it changes nothing that the other one uses, except that the
//! store of jobs is handed over, which goes back where this process ends.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use tokio::net::UnixStream;

use super::messages::{PredecessorMessage, SuccessorMessage, frame, receive, send};
use super::sockets::{SocketSet, receive_sockets};

/// Environment variable of a process that is started as a successor.
pub const SUCCESSOR_VARIABLE: &str = "INFERGATE_SUCCESSOR";
/// Longest wait for the sockets, which are sent at once.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(10);

/// Process that serves until this one does.
pub struct Predecessor {
    stream: StdUnixStream,
    sockets: SocketSet,
}

/// Turn of this process: permits that the predecessor may still use, by server, and the connection to it.
pub struct Turn {
    /// Permits by server.
    pub owned: BTreeMap<String, u32>,
    /// Connection on which permits are exchanged.
    pub stream: UnixStream,
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

    /// Takes the sockets of the predecessor.
    pub fn take_sockets(&mut self) -> SocketSet {
        std::mem::take(&mut self.sockets)
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

    /// Tells the predecessor that this process could serve, and waits for its turn.
    ///
    /// # Errors
    /// A sentence: the predecessor has ended, or wants none.
    pub async fn await_turn(self) -> Result<Turn, String> {
        let waiting = async {
            self.stream.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(self.stream)?;
            send(&mut stream, &SuccessorMessage::Ready).await?;
            let begin = receive(&mut stream).await?;
            io::Result::Ok((begin, stream))
        };
        match waiting.await {
            Ok((PredecessorMessage::Begin { owned }, stream)) => Ok(Turn { owned, stream }),
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
    /// Tells the predecessor that connections are accepted.
    ///
    /// # Errors
    /// The predecessor is gone.
    pub async fn report_serving(&mut self) -> io::Result<()> {
        send(&mut self.stream, &SuccessorMessage::Serving).await
    }
}

fn receive_from_standard_input() -> io::Result<Predecessor> {
    // A descriptor that no child of this process gets.
    let own = io::stdin().as_fd().try_clone_to_owned()?;
    let mut stream = StdUnixStream::from(own);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOCKETS_TIMEOUT))?;
    let sockets = receive_sockets(&mut stream)?;
    Ok(Predecessor { stream, sockets })
}
