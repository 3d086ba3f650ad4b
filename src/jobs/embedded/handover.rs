//! Hand-over of the store to a second process: the successor asks through a Unix socket, the predecessor lets go of it.
//!
//! Neither the calls that follow, which `handed_over` sends and `predecessor` serves, nor the upgrade of a process, which
//! is another's. The socket stands in the folder of the store. A single process owns the store at any time, because the lock
//! moves with it. A connection that breaks is made anew through the socket of the process that then owns the store.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::wire::{LetGoAnswer, ResumeAnswer, StoreRequest, read_frame, write_frame};

/// Name of the socket.
const SOCKET: &str = "owner.sock";
/// Longest wait for the other process, while a connection is made.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a call: longer than a busy disk takes. The call is repeated after it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Listener of the process that owns the store.
pub(super) struct SuccessorListener(UnixListener);

impl SuccessorListener {
    /// Listens in `folder`, in the place of a former process. None where the folder takes no socket: the store is then
    /// opened by the next process when this one ends.
    pub fn bind(folder: &Path) -> Option<SuccessorListener> {
        let path = folder.join(SOCKET);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listener {
            Ok(listener) => Some(SuccessorListener(listener)),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no process can take the store over");
                None
            }
        }
    }

    /// Returns the request of another process with its connection. Waits for none.
    pub fn accept(&self) -> Option<(StoreRequest, UnixStream)> {
        let (mut stream, _) = self.0.accept().ok()?;
        let request = set_timeouts(&stream).and_then(|()| read_frame(&mut stream));
        Some((request.ok()?, stream))
    }
}

fn set_timeouts(stream: &UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))
}

fn connect(folder: &Path, request: &StoreRequest) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(folder.join(SOCKET))?;
    set_timeouts(&stream)?;
    write_frame(&mut stream, request)?;
    Ok(stream)
}

/// Asks the owner of the store in `folder` to let go of it. Returns the connection for the ends of its running jobs.
///
/// # Errors
/// There is no owner that listens, or it did not let go in time.
pub(super) fn ask_for_store(folder: &Path) -> io::Result<UnixStream> {
    let mut stream = connect(folder, &StoreRequest::LetGo)?;
    let LetGoAnswer { running } = read_frame(&mut stream)?;
    tracing::info!(
        running,
        "the store of jobs is taken over from another process"
    );
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Lets the process that asked have the store, which is closed. `running` jobs end through the connection.
///
/// # Errors
/// The process has left.
pub(super) fn let_go(stream: &mut UnixStream, running: usize) -> io::Result<()> {
    write_frame(stream, &LetGoAnswer { running })?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))
}

/// Returns a new connection to the process that owns the store in `folder`, in the place of one that broke.
///
/// # Errors
/// The process is gone, or has no time for it now.
pub(super) fn resume(folder: &Path) -> io::Result<UnixStream> {
    let mut stream = connect(folder, &StoreRequest::Resume)?;
    let _: ResumeAnswer = read_frame(&mut stream)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}
