//! Hand-over of the store to a second process: the successor asks through a Unix socket, the predecessor lets go of it.
//! The ends of its running jobs go through the same connection.
//!
//! Not the upgrade of a process, which is another's. The socket stands in the folder of the store. One process owns the
//! store at any time, because the lock moves with it.

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use infergate_core::job::{CanceledBy, WorkerId};
use tokio::sync::oneshot;

use super::command::StoreCommand;
use super::shared::{OwnerShared, Reply};
use super::wire::{
    ForwardedAnswer, ForwardedCall, LetGoAnswer, ReceivedCall, StoreRequest, read_frame,
    write_frame,
};
use crate::jobs::signals::StopCause;
use crate::jobs::store::StoreError;

/// Name of the socket.
const SOCKET: &str = "owner.sock";
/// Longest wait for the other process.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

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

    /// Returns the connection of a process that asks for the store. Waits for none.
    pub fn accept(&self) -> Option<UnixStream> {
        let (mut stream, _) = self.0.accept().ok()?;
        let asked = set_timeouts(&stream).and_then(|()| read_frame::<StoreRequest>(&mut stream));
        (asked.ok()? == StoreRequest::LetGo).then_some(stream)
    }
}

fn set_timeouts(stream: &UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))
}

/// Asks the owner of the store in `folder` to let go of it. Returns the connection for the ends of its running jobs.
///
/// # Errors
/// There is no owner that listens, or it did not let go in time.
pub(super) fn ask_for_store(folder: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(folder.join(SOCKET))?;
    set_timeouts(&stream)?;
    write_frame(&mut stream, &StoreRequest::LetGo)?;
    let LetGoAnswer { running } = read_frame(&mut stream)?;
    tracing::info!(
        running,
        "the store of jobs is taken over from another process"
    );
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Store that is another process's by now.
pub(super) struct HandedOverStore {
    stream: UnixStream,
    /// Workers that had running jobs then.
    pub workers: Vec<WorkerId>,
}

impl HandedOverStore {
    /// Tells the successor that the file is closed. `workers` have running jobs.
    ///
    /// # Errors
    /// The successor has left.
    pub fn begin(
        mut stream: UnixStream,
        workers: Vec<(WorkerId, usize)>,
    ) -> io::Result<HandedOverStore> {
        let running = workers.iter().map(|(_, jobs)| jobs).sum();
        write_frame(&mut stream, &LetGoAnswer { running })?;
        let workers = workers.into_iter().map(|(worker, _)| worker).collect();
        Ok(HandedOverStore { stream, workers })
    }

    fn exchange(&mut self, call: &ForwardedCall) -> io::Result<ForwardedAnswer> {
        write_frame(&mut self.stream, call)?;
        read_frame(&mut self.stream)
    }

    /// Sends a call to the successor and answers it.
    ///
    /// # Errors
    /// The successor is gone; the outcome of the call is unknown.
    pub fn forward(&mut self, shared: &OwnerShared, command: StoreCommand) -> io::Result<()> {
        match command {
            StoreCommand::Submit(job, reply) => {
                let answer = self.exchange(&ForwardedCall::submit(*job));
                answer_with(reply, answer, ForwardedAnswer::submitted)
            }
            StoreCommand::Finish(worker, end, reply) => {
                let job = end.end.id;
                let answer = self.exchange(&ForwardedCall::finish(worker, *end));
                answer_with(reply, answer, written)?;
                shared.signals.job_changed(&job);
                Ok(())
            }
            StoreCommand::Release(worker, release, reply) => {
                let answer = self.exchange(&ForwardedCall::release(worker, &release));
                answer_with(reply, answer, written)
            }
            StoreCommand::Cancel(job, by, reply) => {
                let answer = self.exchange(&ForwardedCall::Cancel(job, by));
                answer_with(reply, answer, |answer| match answer {
                    ForwardedAnswer::Canceled(result) => Some(result),
                    _ => None,
                })
            }
            StoreCommand::Retire(worker, reply) => {
                let answer = self.exchange(&ForwardedCall::Retire(worker));
                answer_with(reply, answer, |_| Some(()))
            }
            other => {
                let text = "another process has taken the store over".into();
                other.refuse(StoreError::Unavailable(text));
                Ok(())
            }
        }
    }

    /// Learns which running jobs are to stop.
    ///
    /// # Errors
    /// The successor is gone.
    pub fn heartbeat(&mut self, shared: &OwnerShared) -> io::Result<()> {
        let jobs = shared.signals.running();
        for worker in self.workers.clone() {
            let jobs = jobs.clone();
            let answer = self.exchange(&ForwardedCall::Heartbeat { worker, jobs })?;
            if let ForwardedAnswer::Held { canceled, lost } = answer {
                for job in canceled {
                    let by = StopCause::Canceled(CanceledBy::User);
                    shared.signals.stop(&job, by);
                }
                // With several workers each holds a part: a job is lost where it is nobody's.
                if self.workers.len() == 1 {
                    for job in lost {
                        shared.signals.stop(&job, StopCause::Lost);
                    }
                }
            }
        }
        Ok(())
    }
}

fn written(answer: ForwardedAnswer) -> Option<infergate_core::job::WriteResult> {
    match answer {
        ForwardedAnswer::Written(result) => Some(result),
        _ => None,
    }
}

/// Answers a caller with what the successor has answered.
fn answer_with<T>(
    reply: Reply<T>,
    answer: io::Result<ForwardedAnswer>,
    read: impl FnOnce(ForwardedAnswer) -> Option<T>,
) -> io::Result<()> {
    let (result, ended) = match answer {
        Ok(ForwardedAnswer::Failed(text)) => (Err(StoreError::Unavailable(text.into())), Ok(())),
        Ok(answer) => (read(answer).ok_or(StoreError::Timeout), Ok(())),
        Err(error) => (Err(StoreError::Timeout), Err(error)),
    };
    reply.send(result);
    ended
}

/// Serves the calls of the predecessor until it ends.
pub(super) fn serve_predecessor(mut stream: UnixStream, commands: &SyncSender<StoreCommand>) {
    while let Ok(call) = read_frame::<ForwardedCall>(&mut stream) {
        let answer = carry_out(call, commands);
        if write_frame(&mut stream, &answer).is_err() {
            break;
        }
    }
    // What it has not ended by now runs nowhere.
    let (reply, _) = oneshot::channel();
    let _ = commands.send(StoreCommand::PredecessorEnded(Reply(reply)));
}

fn carry_out(call: ForwardedCall, commands: &SyncSender<StoreCommand>) -> ForwardedAnswer {
    match ReceivedCall::from(call) {
        ReceivedCall::Submit(job) => {
            let result = send(commands, |reply| StoreCommand::Submit(job, reply));
            result.map_or_else(failed, ForwardedAnswer::from)
        }
        ReceivedCall::Finish(worker, end) => {
            let result = send(commands, |reply| StoreCommand::Finish(worker, end, reply));
            result.map_or_else(failed, ForwardedAnswer::Written)
        }
        ReceivedCall::Release(worker, release) => {
            let command = |reply| StoreCommand::Release(worker, release, reply);
            send(commands, command).map_or_else(failed, ForwardedAnswer::Written)
        }
        ReceivedCall::Cancel(job, by) => {
            let result = send(commands, |reply| StoreCommand::Cancel(job, by, reply));
            result.map_or_else(failed, ForwardedAnswer::Canceled)
        }
        ReceivedCall::Heartbeat(worker, held) => {
            let command = |reply| StoreCommand::Heartbeat(worker, held, reply);
            send(commands, command).map_or_else(failed, |held| ForwardedAnswer::Held {
                canceled: held.canceled,
                lost: held.lost,
            })
        }
        ReceivedCall::Retire(worker) => {
            let result = send(commands, |reply| StoreCommand::Retire(worker, reply));
            result.map_or_else(failed, |()| ForwardedAnswer::Done)
        }
    }
}

fn failed(error: StoreError) -> ForwardedAnswer {
    match error {
        StoreError::Timeout => ForwardedAnswer::Unknown,
        error => ForwardedAnswer::Failed(error.to_string()),
    }
}

/// Has a call carried out by the owner of this process, and waits for it.
fn send<T>(
    commands: &SyncSender<StoreCommand>,
    command: impl FnOnce(Reply<T>) -> StoreCommand,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    let gone = || StoreError::Unavailable(Arc::from("its thread has ended"));
    commands.send(command(Reply(reply))).map_err(|_| gone())?;
    answer.blocking_recv().unwrap_or_else(|_| Err(gone()))
}
