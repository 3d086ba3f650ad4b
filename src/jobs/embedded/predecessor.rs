//! Process that had the store before this one, as this one sees it: its calls are served while it lives.
//!
//! Not the hand-over itself. A connection that breaks is no sign of an end: the jobs of the predecessor are queued again
//! when its process has ended, or has not come back within [`RECONNECT_GRACE`].

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use tokio::sync::oneshot;

use super::command::StoreCommand;
use super::files::is_life_locked;
use super::shared::Reply;
use super::wire::{
    ForwardedAnswer, ForwardedCall, ReceivedCall, ResumeAnswer, read_frame, write_frame,
};
use crate::jobs::store::StoreError;

/// Connections that wait to be served: of each predecessor one, and those that it has given up.
pub(super) const CONNECTIONS_MAX: usize = 8;
/// Time without a connection after which the jobs of a process that lives are queued again: a lease.
const RECONNECT_GRACE: Duration = Duration::from_secs(10);
/// Interval of looks whether the process lives.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Server of the processes that had the store before.
pub(super) struct PredecessorServer {
    /// Folder of the store.
    pub folder: PathBuf,
    /// Their connections, the first one from the hand-over.
    pub connections: Receiver<UnixStream>,
    pub commands: SyncSender<StoreCommand>,
}

impl PredecessorServer {
    /// Serves calls until the predecessor, or the store of this process, has ended.
    pub fn run(self) {
        // Before it has let go there is none.
        let Ok(mut stream) = self.connections.recv() else {
            return;
        };
        let mut count = 1;
        loop {
            self.serve(stream);
            match self.wait(count) {
                Some(mut next) => {
                    // One that was given up meanwhile is over at once.
                    let _ = write_frame(&mut next, &ResumeAnswer);
                    stream = next;
                }
                None => return,
            }
            count += 1;
        }
    }

    fn serve(&self, mut stream: UnixStream) {
        while let Ok(call) = read_frame::<ForwardedCall>(&mut stream) {
            let answer = carry_out(call, &self.commands);
            if write_frame(&mut stream, &answer).is_err() {
                break;
            }
        }
    }

    /// Waits for the next connection after `count`. None after the end of the process, or of this store.
    fn wait(&self, count: u64) -> Option<UnixStream> {
        let (mut waited, mut is_released) = (Duration::ZERO, false);
        loop {
            match self.connections.recv_timeout(LOOK_EVERY) {
                Ok(stream) => return Some(stream),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => waited += LOOK_EVERY,
            }
            let is_alive = is_life_locked(&self.folder);
            if !is_released && (!is_alive || waited >= RECONNECT_GRACE) {
                let ended = |reply| StoreCommand::PredecessorEnded(count, reply);
                // A store that fails is asked again.
                is_released = send(&self.commands, ended).unwrap_or(false);
            }
            if is_released && !is_alive {
                return None;
            }
        }
    }
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
            send(commands, command).map_or_else(failed, ForwardedAnswer::from)
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
