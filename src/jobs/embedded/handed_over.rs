//! Store that another process has taken over, as the one that had it before sees it: calls go there and come back.
//!
//! Not the hand-over itself. A connection that breaks is made anew as long as this process lives: what waits for an answer
//! is repeated there by its callers, until their drain ends.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use infergate_core::job::WorkerId;

use super::command::StoreCommand;
use super::files::lock_life;
use super::handover::{let_go, resume};
use super::shared::{OwnerShared, Reply};
use super::wire::{ForwardedAnswer, ForwardedCall, read_frame, write_frame};
use crate::jobs::signals::StopCause;
use crate::jobs::store::StoreError;

/// Store that is another process's by now.
pub(super) struct HandedOverStore {
    folder: PathBuf,
    /// Connection to the successor; none after it broke.
    stream: Option<UnixStream>,
    /// Workers that had running jobs then.
    pub workers: Vec<WorkerId>,
    /// Shows the successor that this process lives.
    _life: Option<File>,
}

impl HandedOverStore {
    /// Lets the successor have the store in `folder`, whose file is closed. `workers` have running jobs.
    ///
    /// # Errors
    /// The successor has left.
    pub fn begin(
        mut stream: UnixStream,
        workers: Vec<(WorkerId, usize)>,
        folder: &Path,
    ) -> io::Result<HandedOverStore> {
        // Before the answer: a successor that has it may look.
        let life = lock_life(folder);
        let running = workers.iter().map(|(_, jobs)| jobs).sum();
        let_go(&mut stream, running)?;
        Ok(HandedOverStore {
            folder: folder.to_owned(),
            stream: Some(stream),
            workers: workers.into_iter().map(|(worker, _)| worker).collect(),
            _life: life
                .inspect_err(|error| tracing::warn!(%error, "the successor cannot see that this process lives"))
                .ok(),
        })
    }

    /// Has a call carried out by the successor, through a new connection where the present one breaks. Every call may
    /// be repeated: ends are known by job, epoch and worker, submits by their id.
    fn exchange(&mut self, call: &ForwardedCall) -> io::Result<ForwardedAnswer> {
        if let Some(mut stream) = self.stream.take() {
            match exchange(&mut stream, call) {
                Ok(answer) => {
                    self.stream = Some(stream);
                    return Ok(answer);
                }
                Err(error) => {
                    tracing::warn!(%error, "the connection to the process that has the store of jobs broke");
                }
            }
        }
        let mut stream = resume(&self.folder)?;
        let answer = exchange(&mut stream, call)?;
        self.stream = Some(stream);
        Ok(answer)
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
            StoreCommand::Heartbeat(worker, held, reply) => {
                let answer = self.exchange(&ForwardedCall::heartbeat(worker, held));
                answer_with(reply, answer, ForwardedAnswer::held)
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
            let call = ForwardedCall::Heartbeat {
                worker,
                jobs,
                taken_before: None,
            };
            let Some(held) = self.exchange(&call)?.held() else {
                continue;
            };
            for (job, by) in held.canceled {
                shared.signals.stop(&job, StopCause::Canceled(by));
            }
            // With several workers each holds a part: a job is lost where it is nobody's.
            if self.workers.len() == 1 {
                for job in held.lost {
                    shared.signals.stop(&job, StopCause::Lost);
                }
            }
        }
        Ok(())
    }
}

fn exchange(stream: &mut UnixStream, call: &ForwardedCall) -> io::Result<ForwardedAnswer> {
    write_frame(stream, call)?;
    read_frame(stream)
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
