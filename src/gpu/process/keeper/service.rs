//! Loop of a keeper: waits for output, commands and ends of processes, and takes the step that is due.
//!
//! Steps are chosen in `ending.rs`. A single poll call sees everything: at most [`CLIENTS_MAX`] connections.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

use infergate_core::Millis;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    pidfd_open, set_child_subreaper, setsid, test_kill_process_group, wait,
};

use super::child::{self, EXEC_FLAG, KEEPER_COMMAND};
use super::client::KeeperClient;
use super::ending::{Ending, EndingFacts, EndingStep};
use super::output::InstanceOutput;
use crate::gpu::process::cgroup;
use crate::gpu::process::logs::{LogWriter, log_file};
use crate::gpu::process::protocol::{
    ExitReport, InstanceSpec, KeeperCommand, KeeperEvent, KeeperStatus,
};
use crate::gpu::process::record::{InstanceRecord, RunDirectory};
use crate::gpu::processes::{ProcessFacts, ProcessId, all_pids};
use crate::telemetry::host_time;

/// Connections at a time: gateways that follow each other while the former ones still serve, and commands.
const CLIENTS_MAX: usize = 64;
/// Time for the gateway to send what is to be started. Longer than its wait for the ledger, whose leases it hands over
/// before that.
const SPEC_WAIT: Duration = Duration::from_secs(30);
/// Time for clients to read that nothing is left.
const FAREWELL_WAIT: Duration = Duration::from_millis(500);
/// Pause after a connection that the system has no room for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Generations of orphans that are waited for in one look.
const REAPS_MAX: usize = 4096;

/// Runs this process as a keeper, or as the step between keeper and command, when its arguments ask for it.
pub fn keep() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != KEEPER_COMMAND {
        return None;
    }
    Some(match arguments.next() {
        Some(flag) if flag == EXEC_FLAG => child::become_command(arguments),
        _ => match run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("infergate: a gateway runs keepers: {error}");
                ExitCode::FAILURE
            }
        },
    })
}

fn run() -> io::Result<()> {
    // Fails for the first of a group, which has its session then.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let life_line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut gateway = KeeperClient::new(life_line)?;
    gateway.is_life_line = true;
    let spec = receive_spec(&mut gateway)?;
    match Keeper::start(&spec) {
        Ok(mut keeper) => {
            gateway.send(&KeeperEvent::Started { main: keeper.main });
            keeper.clients.push(gateway);
            keeper.serve_to_the_end();
            Ok(())
        }
        Err(error) => {
            gateway.send(&KeeperEvent::Rejected {
                reason: error.to_string(),
            });
            Err(error)
        }
    }
}

/// Waits for the first message of the gateway.
fn receive_spec(gateway: &mut KeeperClient) -> io::Result<InstanceSpec> {
    let begin = host_time();
    loop {
        for command in gateway.receive() {
            if let KeeperCommand::Start(spec) = command {
                return Ok(*spec);
            }
        }
        let waited = Duration::from_millis(host_time().since(begin).0);
        if gateway.is_closed() || waited > SPEC_WAIT {
            return Err(io::Error::other("nothing to start has come"));
        }
        let mut sockets = [PollFd::from_borrowed_fd(gateway.socket(), PollFlags::IN)];
        wait_for(&mut sockets, SPEC_WAIT)?;
    }
}

fn wait_for(descriptors: &mut [PollFd<'_>], longest: Duration) -> io::Result<()> {
    let longest = Timespec::try_from(longest).ok();
    match poll(descriptors, longest.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A keeper with its instance.
struct Keeper {
    directory: RunDirectory,
    record: InstanceRecord,
    listener: UnixListener,
    clients: Vec<KeeperClient>,
    output: InstanceOutput,
    ending: Ending,
    main: ProcessId,
    /// Readable once the process has ended; none from then on.
    main_end: Option<OwnedFd>,
    exit: Option<ExitReport>,
    /// The group may have processes. Once it has none, its number may become another's.
    is_group_left: bool,
}

impl Keeper {
    /// Makes socket, record and ring, and starts the process. Leaves nothing behind when that fails.
    fn start(spec: &InstanceSpec) -> io::Result<Keeper> {
        let directory = RunDirectory::create(&spec.run_directory)?;
        let started = Keeper::start_in(directory, spec);
        if started.is_err()
            && let Ok(directory) = RunDirectory::open(&spec.run_directory)
        {
            let _ = directory.remove(&spec.instance);
        }
        started
    }

    fn start_in(directory: RunDirectory, spec: &InstanceSpec) -> io::Result<Keeper> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&spec.log_directory)?;
        let log_file = log_file(&spec.log_directory, &spec.instance);
        let ring = LogWriter::create(&log_file, spec.log_bytes)?;
        let own = ProcessId::of(std::process::id());
        let own = own.ok_or_else(|| io::Error::other("/proc is not there"))?;
        let mut record = InstanceRecord::new(spec, own, log_file)?;
        let listener = directory.listen(&spec.instance)?;
        listener.set_nonblocking(true)?;
        // Before the process: should both be killed between, its mark leads to it.
        directory.write(&record)?;
        let (main, pipe) = child::start(spec)?;
        record.main = Some(main);
        directory.write(&record)?;
        let main_end = pidfd_open(number(main.pid)?, PidfdFlags::empty())?;
        Ok(Keeper {
            directory,
            record,
            listener,
            clients: Vec::new(),
            output: InstanceOutput::new(pipe, ring),
            ending: Ending::new(Millis(spec.orphan_grace_ms), Millis(spec.stop_timeout_ms)),
            main,
            main_end: Some(main_end),
            exit: None,
            is_group_left: true,
        })
    }

    fn serve_to_the_end(&mut self) {
        loop {
            self.output.read();
            let is_child_left = self.reap();
            self.accept();
            self.serve_clients();
            let facts = EndingFacts {
                has_main_ended: self.exit.is_some(),
                has_life_line: self.clients.iter().any(|client| client.is_life_line),
                is_group_left: self.look_at_group(),
                is_child_left,
            };
            let step = self.ending.next(host_time(), facts);
            if step == EndingStep::Finish {
                break;
            }
            self.take(step);
            if self.wait().is_err() {
                // Without poll the gateway cannot be heard: its instance ends.
                let step = self.ending.kill(host_time());
                self.take(step);
            }
        }
        self.finish();
    }

    fn wait(&self) -> io::Result<()> {
        let mut descriptors = Vec::with_capacity(CLIENTS_MAX + 3);
        let listener = self.listener.as_fd();
        descriptors.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
        if let Some(pipe) = self.output.pipe() {
            descriptors.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
        }
        if let Some(main_end) = &self.main_end {
            let main_end = main_end.as_fd();
            descriptors.push(PollFd::from_borrowed_fd(main_end, PollFlags::IN));
        }
        for client in &self.clients {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, client.has_output());
            descriptors.push(PollFd::from_borrowed_fd(client.socket(), events));
        }
        wait_for(&mut descriptors, self.ending.pause(host_time()))
    }

    /// Waits for children that have ended, orphans among them. Returns whether a child is left.
    fn reap(&mut self) -> bool {
        for _ in 0..REAPS_MAX {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if is_number(pid, self.main.pid) => self.end_main(status),
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(rustix::io::Errno::CHILD) => return false,
                Err(_) => return true,
            }
        }
        true
    }

    fn end_main(&mut self, status: WaitStatus) {
        self.main_end = None;
        self.output.read();
        let report = ExitReport {
            code: status.exit_status(),
            signal: status.terminating_signal(),
            last_lines: self.output.last_lines(),
        };
        self.exit = Some(report.clone());
        self.broadcast(&KeeperEvent::Exited(report));
    }

    fn broadcast(&mut self, event: &KeeperEvent) {
        for client in &mut self.clients {
            client.send(event);
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if self.clients.len() < CLIENTS_MAX => {
                    self.clients.extend(KeeperClient::new(stream).ok());
                }
                // Closed at once: every place is taken.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn serve_clients(&mut self) {
        for at in 0..self.clients.len() {
            for command in self.clients[at].receive() {
                self.follow(at, command);
            }
            self.clients[at].flush();
        }
        self.clients.retain(|client| !client.is_closed());
    }

    fn follow(&mut self, at: usize, command: KeeperCommand) {
        match command {
            KeeperCommand::Stop => {
                let step = self.ending.stop(host_time());
                self.take(step);
            }
            KeeperCommand::Kill => {
                let step = self.ending.kill(host_time());
                self.take(step);
            }
            KeeperCommand::Adopt => {
                self.clients[at].is_life_line = true;
                self.send_status(at);
            }
            KeeperCommand::Status => self.send_status(at),
            KeeperCommand::Start(_) => self.clients[at].send(&KeeperEvent::Rejected {
                reason: "an instance has been started".to_owned(),
            }),
        }
    }

    fn send_status(&mut self, at: usize) {
        let others = self.clients.iter().enumerate();
        let life_lines = others.filter(|(nth, client)| *nth != at && client.is_life_line);
        let status = KeeperStatus {
            instance: self.record.instance.clone(),
            main: self.main,
            exit: self.exit.clone(),
            is_stopping: self.ending.is_stopping(),
            life_lines: u32::try_from(life_lines.count()).unwrap_or(u32::MAX),
            dropped_log_bytes: self.output.dropped(),
        };
        self.clients[at].send(&KeeperEvent::Status(status));
    }

    fn look_at_group(&mut self) -> bool {
        let group = number(self.main.pid);
        let is_there = group.is_ok_and(|group| test_kill_process_group(group).is_ok());
        self.is_group_left &= is_there;
        self.is_group_left
    }

    /// Takes a step. A process that has ended meanwhile needs no signal.
    fn take(&mut self, step: EndingStep) {
        match step {
            EndingStep::Wait | EndingStep::Finish => {}
            EndingStep::Terminate => self.signal_group(Signal::TERM),
            EndingStep::Kill => {
                self.signal_group(Signal::KILL);
                if let Some(cgroup) = &self.record.cgroup {
                    cgroup::kill(cgroup);
                }
                for child in children() {
                    // Not waited for, so that its number is its own still.
                    let _ = number(child).map(|child| kill_process(child, Signal::KILL));
                }
            }
        }
    }

    fn signal_group(&mut self, signal: Signal) {
        if self.look_at_group() {
            let _ = number(self.main.pid).map(|group| kill_process_group(group, signal));
        }
    }

    fn finish(&mut self) {
        self.output.read();
        if let Some(cgroup) = &self.record.cgroup {
            cgroup::remove(cgroup);
        }
        // Before the event: who reads it finds the instance nowhere.
        let _ = self.directory.remove(&self.record.instance);
        self.broadcast(&KeeperEvent::Gone);
        let begin = host_time();
        self.clients.retain(KeeperClient::has_output);
        while !self.clients.is_empty()
            && Duration::from_millis(host_time().since(begin).0) < FAREWELL_WAIT
        {
            let sockets = self.clients.iter();
            let mut sockets: Vec<_> = sockets
                .map(|client| PollFd::from_borrowed_fd(client.socket(), PollFlags::OUT))
                .collect();
            if wait_for(&mut sockets, FAREWELL_WAIT).is_err() {
                return;
            }
            drop(sockets);
            self.clients.iter_mut().for_each(KeeperClient::flush);
            self.clients
                .retain(|client| client.has_output() && !client.is_closed());
        }
    }
}

/// Children of this process, orphans that came to it among them.
fn children() -> Vec<u32> {
    let own = std::process::id();
    // Needs CONFIG_PROC_CHILDREN, as all distributions have it.
    if let Ok(listed) = std::fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        let pids = listed.split_whitespace();
        return pids.filter_map(|pid| pid.parse().ok()).collect();
    }
    let is_child = |pid: &u32| ProcessFacts::read(*pid).is_some_and(|facts| facts.parent == own);
    all_pids().into_iter().filter(is_child).collect()
}

fn number(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("no number of a process"))
}

fn is_number(pid: Pid, other: u32) -> bool {
    pid.as_raw_nonzero().get().cast_unsigned() == other
}
