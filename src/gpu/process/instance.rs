//! An instance from the gateway's side: started or adopted, its events, and its end.
//!
//! Decides nothing: which instance is started and stopped is the pool's. The handle is the life line: dropped, in
//! whatever way, the keeper ends the instance after its grace. Every method may be cancelled.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::identity::InstanceId;
use super::protocol::{
    ExitReport, InstanceSpec, KeeperCommand, KeeperEvent, LineBuffer, decode, encode,
};
use super::record::{InstanceRecord, RunDirectory};
use super::sweep::{EMPTY_ROUNDS, kill_round};
use crate::gpu::processes::ProcessId;

/// Time for a keeper to answer: it starts a process at most.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Between two looks at processes whose keeper was lost.
const TICK: Duration = Duration::from_millis(5);
/// The same for processes that do not end, as those in a driver's call.
const SLOW_TICK: Duration = Duration::from_millis(100);

/// Keepers that may not have ended yet: each is waited for at the next look, so that none stays as a zombie.
static LEFT_KEEPERS: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Reason why an instance has not been started or adopted.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// The keeper cannot be run or reached.
    #[error("the keeper: {0}")]
    Keeper(#[from] io::Error),
    /// The keeper cannot do it.
    #[error("{0}")]
    Rejected(String),
    /// The leases cannot be given to the keeper.
    #[error("its leases cannot be given to its keeper: {0}")]
    HandOver(String),
    /// The keeper has ended, or does not answer.
    #[error("the keeper does not answer")]
    NoAnswer,
    /// Another instance than the record's answers.
    #[error("the keeper has another instance than its record says")]
    Mismatch,
    /// The instance is being ended.
    #[error("the instance is being ended")]
    Ending,
}

/// Event of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceEvent {
    /// Its process has ended. Others may still have memory.
    Exited(ExitReport),
    /// No process of it is left. The last event.
    Gone {
        /// The keeper was lost, and processes were ended without it.
        was_keeper_lost: bool,
    },
}

/// An instance with its keeper.
#[derive(Debug)]
pub struct RunningInstance {
    instance: InstanceId,
    run_directory: PathBuf,
    main: ProcessId,
    stream: UnixStream,
    input: LineBuffer,
    /// The keeper, unless it was adopted.
    keeper: Option<Child>,
    /// The keeper's last words have come, or its connection has ended without.
    end: Option<KeeperEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeeperEnd {
    /// Processes may be left.
    Lost,
    /// The last event has been returned.
    Reported,
}

impl RunningInstance {
    /// Starts an instance: `program` is this binary, as `/proc/self/exe`. Calls `hand_over` with the keeper, before which
    /// there is no process: leases are the keeper's from then on, whatever becomes of this gateway.
    ///
    /// # Errors
    /// The keeper or the process cannot be started, or the hand-over fails: nothing is left of it.
    pub async fn start<F: Future<Output = Result<(), String>>>(
        program: &Path,
        spec: InstanceSpec,
        hand_over: impl FnOnce(ProcessId) -> F,
    ) -> Result<RunningInstance, InstanceError> {
        let (own, theirs) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        let program = program.to_owned();
        let keeper = spawn_blocking(move || start_keeper(&program, theirs));
        let keeper = keeper.await.map_err(io::Error::other)??;
        let mut running = RunningInstance {
            instance: spec.instance.clone(),
            run_directory: spec.run_directory.clone(),
            main: ProcessId { pid: 0, start: 0 },
            stream: UnixStream::from_std(own)?,
            input: LineBuffer::default(),
            keeper: Some(keeper),
            end: None,
        };
        let keeper = running.keeper.as_ref();
        let handed_over = match keeper.and_then(|keeper| ProcessId::of(keeper.id())) {
            Some(keeper) => hand_over(keeper).await.map_err(InstanceError::HandOver),
            None => Err(InstanceError::NoAnswer),
        };
        let answer = match handed_over {
            Ok(()) => running.call(&KeeperCommand::Start(Box::new(spec))).await,
            Err(error) => Err(error),
        };
        let error = match answer {
            Ok(KeeperEvent::Started { main }) => {
                running.main = main;
                return Ok(running);
            }
            Ok(KeeperEvent::Rejected { reason }) => InstanceError::Rejected(reason),
            Ok(_) => InstanceError::NoAnswer,
            Err(error) => error,
        };
        // Its leases are given back on this error, and the keeper may be about to start the process.
        running.end_keeper().await;
        running.end_remains().await;
        Err(error)
    }

    /// Takes over an instance that another gateway has started.
    ///
    /// # Errors
    /// The keeper does not answer, or the instance ends.
    pub async fn adopt(
        run_directory: &Path,
        record: &InstanceRecord,
    ) -> Result<RunningInstance, InstanceError> {
        let stream = RunDirectory::open(run_directory)?.connect(&record.instance)?;
        stream.set_nonblocking(true)?;
        let mut running = RunningInstance {
            instance: record.instance.clone(),
            run_directory: run_directory.to_owned(),
            main: record.main.ok_or(InstanceError::Mismatch)?,
            stream: UnixStream::from_std(stream)?,
            input: LineBuffer::default(),
            keeper: None,
            end: None,
        };
        match running.call(&KeeperCommand::Adopt).await? {
            KeeperEvent::Status(status) => {
                if status.instance != running.instance || status.main != running.main {
                    return Err(InstanceError::Mismatch);
                }
                match status.is_stopping || status.exit.is_some() {
                    true => Err(InstanceError::Ending),
                    false => Ok(running),
                }
            }
            KeeperEvent::Rejected { reason } => Err(InstanceError::Rejected(reason)),
            _ => Err(InstanceError::Ending),
        }
    }

    /// Identity.
    pub fn id(&self) -> &InstanceId {
        &self.instance
    }

    /// The process, which is the first of its group.
    pub fn main(&self) -> ProcessId {
        self.main
    }

    /// Returns the record, which names the keeper, as [`super::port_ownership`] needs it.
    ///
    /// # Errors
    /// The instance has ended.
    pub fn record(&self) -> io::Result<InstanceRecord> {
        RunDirectory::open(&self.run_directory)?.read(&self.instance)
    }

    /// Asks for the end: SIGTERM, the time to stop, SIGKILL. Events say how it goes.
    ///
    /// # Errors
    /// The keeper is lost, as the next event says too.
    pub async fn stop(&self) -> io::Result<()> {
        self.send(&KeeperCommand::Stop).await
    }

    /// Asks for the end at once.
    ///
    /// # Errors
    /// The keeper is lost, as the next event says too.
    pub async fn kill(&self) -> io::Result<()> {
        self.send(&KeeperCommand::Kill).await
    }

    /// Gives the keeper up, which does not do what it is asked for: the next event ends it and the instance by force.
    pub fn end_by_force(&mut self) {
        self.end.get_or_insert(KeeperEnd::Lost);
    }

    /// Waits for the next event; none after the last.
    pub async fn next_event(&mut self) -> Option<InstanceEvent> {
        while self.end.is_none() {
            match self.read_event().await {
                Ok(KeeperEvent::Exited(report)) => return Some(InstanceEvent::Exited(report)),
                Ok(KeeperEvent::Gone) => {
                    self.end = Some(KeeperEnd::Reported);
                    self.leave_keeper();
                    return Some(InstanceEvent::Gone {
                        was_keeper_lost: false,
                    });
                }
                Ok(_) => {}
                Err(_) => self.end = Some(KeeperEnd::Lost),
            }
        }
        if self.end == Some(KeeperEnd::Reported) {
            return None;
        }
        self.end_remains().await;
        self.end = Some(KeeperEnd::Reported);
        self.leave_keeper();
        Some(InstanceEvent::Gone {
            was_keeper_lost: true,
        })
    }

    /// Ends the keeper that was started. Returns once it starts nothing more.
    async fn end_keeper(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        // It may have ended by itself.
        let _ = keeper.kill();
        while matches!(keeper.try_wait(), Ok(None)) {
            sleep(TICK).await;
        }
    }

    /// Ends what a lost keeper has left. Returns once nothing is left, however long that takes.
    async fn end_remains(&self) {
        let mut pause = TICK;
        let mut empty_rounds = 0;
        let mut has_warned = false;
        while empty_rounds < EMPTY_ROUNDS {
            let instance = self.instance.clone();
            let run_directory = self.run_directory.clone();
            let round = spawn_blocking(move || {
                let directory = RunDirectory::open(&run_directory);
                let record = directory.and_then(|directory| directory.read(&instance));
                kill_round(&instance, record.ok().as_ref())
            });
            match round.await {
                Ok(Ok(0)) => {
                    empty_rounds += 1;
                    pause = TICK;
                }
                Ok(Ok(_)) => empty_rounds = 0,
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(%error, instance = %self.instance, "processes of a lost keeper are left");
                    }
                    (empty_rounds, pause) = (0, SLOW_TICK);
                }
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(SLOW_TICK);
        }
        let directory = RunDirectory::open(&self.run_directory);
        let removed = directory.and_then(|directory| directory.remove(&self.instance));
        // A keeper that was rejected may not have made the directory.
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, instance = %self.instance, "the record of a lost keeper stays");
        }
    }

    async fn call(&mut self, command: &KeeperCommand) -> Result<KeeperEvent, InstanceError> {
        let answered = async {
            self.stream.write_all(&encode(command)?).await?;
            self.read_event().await
        };
        match timeout(ANSWER_WAIT, answered).await {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => Err(error.into()),
            _ => Err(InstanceError::NoAnswer),
        }
    }

    async fn read_event(&mut self) -> io::Result<KeeperEvent> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(line) = self.input.next_line()? {
                return decode(&line);
            }
            match self.stream.read(&mut bytes).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.input.push(&bytes[..count]),
            }
        }
    }

    /// A command is shorter than what a socket takes at once.
    async fn send(&self, command: &KeeperCommand) -> io::Result<()> {
        let line = encode(command)?;
        loop {
            self.stream.writable().await?;
            match self.stream.try_write(&line) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn leave_keeper(&mut self) {
        let mut left = LEFT_KEEPERS.lock();
        left.extend(self.keeper.take());
        left.retain_mut(|keeper| matches!(keeper.try_wait(), Ok(None)));
    }
}

impl Drop for RunningInstance {
    fn drop(&mut self) {
        self.leave_keeper();
    }
}

fn start_keeper(program: &Path, life_line: StdUnixStream) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.arg0("infergate").arg("keep").env_clear();
    command.stdin(OwnedFd::from(life_line));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::process::ProcessLimits;

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_does_not_answer_in_time_has_ended_once_its_start_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let spec = InstanceSpec {
            instance: InstanceId::new("late#0", std::process::id()).unwrap(),
            argv: vec!["true".to_owned()],
            environment: Vec::new(),
            working_directory: None,
            run_directory: dir.path().join("run"),
            log_directory: dir.path().join("log"),
            log_bytes: 4096,
            limits: ProcessLimits::default(),
            cgroup: None,
            orphan_grace_ms: 0,
            stop_timeout_ms: 0,
            port: 1,
            devices: Vec::new(),
            lease_epoch: 0,
            configuration_digest: String::new(),
            files: None,
            api_key: String::new(),
        };
        // Any program that goes on and reads no command.
        let kept = async |_| Ok(());
        let error = RunningInstance::start(Path::new("/usr/bin/yes"), spec, kept).await;
        assert!(matches!(error, Err(InstanceError::NoAnswer)), "{error:?}");
        assert!(LEFT_KEEPERS.lock().is_empty(), "it could start the process");
    }
}
