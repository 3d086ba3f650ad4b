//! Instances that a former gateway has left: found by their records, taken over or ended.
//!
//! Does not take over itself: a record that is to be adopted is returned. A keeper that answers ends its own instance.
//! Without one, processes are ended that carry the instance's mark in their environment, or are of its group in its
//! keeper's session. Both are looked at with user, number and start, so that no other process is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use infergate_core::Millis;

use super::cgroup;
use super::command::INSTANCE_VARIABLE;
use super::identity::InstanceId;
use super::protocol::{KeeperCommand, KeeperEvent, KeeperStatus, LineBuffer, decode, encode};
use super::record::{InstanceRecord, RunDirectory};
use crate::gpu::processes::{ProcessFacts, ProcessId, all_pids, has_environment, is_own};
use crate::telemetry::host_time;

/// Time for a keeper to answer. Keepers never wait for anything themselves.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Time for orphans to end after SIGTERM: nobody waits for what they would still do.
const STOP_WAIT: Millis = Millis(1500);
/// The same after SIGKILL.
const KILL_WAIT: Millis = Millis(1000);
/// Time for marked processes to vanish after SIGKILL.
const FORCE_WAIT: Millis = Millis(5000);
const TICK: Duration = Duration::from_millis(5);
/// Rounds in which nothing was found, until nothing is left: a process that becomes another program at the moment has no
/// environment to be known by.
pub const EMPTY_ROUNDS: u32 = 3;

/// Future of an instance that no gateway has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanDecision {
    /// The caller connects to its keeper.
    Adopt,
    /// The instance ends.
    Stop,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub struct SweepReport {
    /// Instances that a gateway has.
    pub held: Vec<InstanceId>,
    /// Instances to be adopted.
    pub adoptable: Vec<InstanceRecord>,
    /// Instances that were ended by their keepers.
    pub stopped: Vec<InstanceId>,
    /// Instances without a keeper, and the processes that were ended for each.
    pub killed: BTreeMap<InstanceId, usize>,
    /// Failures, for people.
    pub failures: Vec<String>,
}

/// Looks at every record of the directory, and ends or returns what no gateway has.
///
/// Instances of `own` are the caller's: a keeper that is slow to answer would else be taken for none.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn sweep(
    run_directory: &Path,
    own: &BTreeSet<InstanceId>,
    mut decide: impl FnMut(&InstanceRecord) -> OrphanDecision,
) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    let directory = match RunDirectory::open(run_directory) {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(report),
        Err(error) => return Err(error),
    };
    let mut ending = Vec::new();
    for record in directory.records()? {
        let record = match record {
            Ok(record) => record,
            Err((path, error)) => {
                report.failures.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        if own.contains(&record.instance) {
            continue;
        }
        match look(&directory, &record) {
            KeeperState::Held => report.held.push(record.instance),
            KeeperState::Orphaned(mut link, status) => {
                if !status.is_stopping && decide(&record) == OrphanDecision::Adopt {
                    report.adoptable.push(record);
                } else {
                    // One that cannot be asked is ended below.
                    let _ = link.send(&KeeperCommand::Stop);
                    ending.push((record, link));
                }
            }
            KeeperState::Absent => force(&directory, record, &mut report),
            KeeperState::Unknown(error) => report
                .failures
                .push(format!("{}: {error}", record.instance)),
        }
    }
    let until = host_time() + STOP_WAIT;
    for (record, mut link) in ending {
        let left = Duration::from_millis(until.since(host_time()).0).max(TICK);
        if link.await_end(left) || link.kill_and_await_end() {
            report.stopped.push(record.instance);
        } else {
            force(&directory, record, &mut report);
        }
    }
    Ok(report)
}

enum KeeperState {
    /// A gateway is connected.
    Held,
    /// No gateway is connected.
    Orphaned(KeeperLink, KeeperStatus),
    /// No keeper answers.
    Absent,
    /// This process cannot ask, as one without a free file cannot.
    Unknown(io::Error),
}

fn look(directory: &RunDirectory, record: &InstanceRecord) -> KeeperState {
    let mut link = match KeeperLink::connect(directory, &record.instance) {
        Ok(link) => link,
        Err(error) => {
            use ErrorKind::{ConnectionRefused, NotFound};
            return match error.kind() {
                ConnectionRefused | NotFound => KeeperState::Absent,
                _ => KeeperState::Unknown(error),
            };
        }
    };
    match link.status() {
        Ok(status) if status.instance != record.instance => KeeperState::Absent,
        Ok(status) if status.life_lines > 0 => KeeperState::Held,
        Ok(status) => KeeperState::Orphaned(link, status),
        // Closed at once: every place is taken.
        Err(error) if is_closed(&error) && record.keeper.is_alive() => KeeperState::Held,
        Err(_) => KeeperState::Absent,
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

/// Ends an instance without the help of its keeper.
fn force(directory: &RunDirectory, record: InstanceRecord, report: &mut SweepReport) {
    // The processes of another boot are gone, and their numbers are others'.
    let ended = match record.is_of_this_boot() {
        true => force_end(&record),
        false => Ok(0),
    };
    let ended = ended.and_then(|count| {
        directory.remove(&record.instance)?;
        Ok(count)
    });
    match ended {
        Ok(count) => drop(report.killed.insert(record.instance, count)),
        Err(error) => report
            .failures
            .push(format!("{}: {error}", record.instance)),
    }
}

fn force_end(record: &InstanceRecord) -> io::Result<usize> {
    let begin = host_time();
    let (mut count, mut empty_rounds) = (0, 0);
    loop {
        let found = kill_round(&record.instance, Some(record))?;
        count = count.max(found);
        empty_rounds = if found == 0 { empty_rounds + 1 } else { 0 };
        if empty_rounds == EMPTY_ROUNDS {
            return Ok(count);
        }
        if found > 0 && host_time().since(begin) > FORCE_WAIT {
            return Err(io::Error::other(format!("{found} processes do not end")));
        }
        std::thread::sleep(TICK);
    }
}

/// Sends SIGKILL to the keeper and to all processes of an instance, and returns how many there were.
///
/// # Errors
/// A process cannot be ended.
pub fn kill_round(instance: &InstanceId, record: Option<&InstanceRecord>) -> io::Result<usize> {
    let mut found = 0;
    if let Some(record) = record {
        found += usize::from(record.keeper.kill()?);
        if let Some(cgroup) = &record.cgroup {
            cgroup::kill(cgroup);
            cgroup::remove(cgroup);
        }
    }
    let mark = format!("{INSTANCE_VARIABLE}={instance}");
    for pid in all_pids() {
        if pid == std::process::id() {
            continue;
        }
        let Some(facts) = ProcessFacts::read(pid).filter(|facts| !facts.is_ended) else {
            continue;
        };
        let is_meant =
            record.is_some_and(|record| is_of_group(&facts, record)) || has_environment(pid, &mark);
        if is_meant && is_own(pid) {
            let process = ProcessId {
                pid,
                start: facts.start,
            };
            found += usize::from(process.kill()?);
        }
    }
    Ok(found)
}

/// A number of a group goes to no other while the group has processes, and a later group has a later session.
fn is_of_group(facts: &ProcessFacts, record: &InstanceRecord) -> bool {
    record.main.is_some_and(|main| {
        facts.group == main.pid && facts.session == record.keeper.pid && facts.start >= main.start
    })
}

/// A connection to a keeper that is waited for.
struct KeeperLink {
    stream: UnixStream,
    input: LineBuffer,
}

impl KeeperLink {
    fn connect(directory: &RunDirectory, instance: &InstanceId) -> io::Result<KeeperLink> {
        let stream = directory.connect(instance)?;
        stream.set_write_timeout(Some(ANSWER_WAIT))?;
        Ok(KeeperLink {
            stream,
            input: LineBuffer::default(),
        })
    }

    fn send(&mut self, command: &KeeperCommand) -> io::Result<()> {
        self.stream.write_all(&encode(command)?)
    }

    fn status(&mut self) -> io::Result<KeeperStatus> {
        self.send(&KeeperCommand::Status)?;
        loop {
            match self.next_event(ANSWER_WAIT)? {
                KeeperEvent::Status(status) => return Ok(status),
                KeeperEvent::Rejected { reason } => return Err(io::Error::other(reason)),
                _ => {}
            }
        }
    }

    fn next_event(&mut self, wait: Duration) -> io::Result<KeeperEvent> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(line) = self.input.next_line()? {
                return decode(&line);
            }
            self.stream.set_read_timeout(Some(wait))?;
            match self.stream.read(&mut bytes)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.input.push(&bytes[..count]),
            }
        }
    }

    /// Returns whether the keeper says within `wait` that nothing is left.
    fn await_end(&mut self, wait: Duration) -> bool {
        let begin = host_time();
        loop {
            let waited = Duration::from_millis(host_time().since(begin).0);
            let Some(left) = wait.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return false;
            };
            match self.next_event(left) {
                Ok(KeeperEvent::Gone) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    fn kill_and_await_end(&mut self) -> bool {
        let wait = Duration::from_millis(KILL_WAIT.0);
        self.send(&KeeperCommand::Kill).is_ok() && self.await_end(wait)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::gpu::process::record::tests::record;

    fn process(mark: &str, group: i32) -> Child {
        let mut command = Command::new("cat");
        command.env(INSTANCE_VARIABLE, mark).process_group(group);
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        while !has_environment(child.id(), &format!("{INSTANCE_VARIABLE}={mark}")) {
            std::thread::yield_now();
        }
        child
    }

    fn ended(child: &mut Child) -> bool {
        child.try_wait().unwrap().is_some()
    }

    #[test]
    fn marked_processes_end_and_those_of_another_mark_or_without_one_stay() {
        let instance = InstanceId::new("sweep#0", std::process::id()).unwrap();
        let mut marked = process(instance.as_str(), 0);
        let mut longer = process(&format!("{instance}0"), 0);
        let mut unmarked = process("", 0);
        assert_eq!(kill_round(&instance, None).unwrap(), 1);
        marked.wait().unwrap();
        assert_eq!(kill_round(&instance, None).unwrap(), 0);
        assert!(!ended(&mut longer) && !ended(&mut unmarked));
        for mut child in [longer, unmarked] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_group_of_another_session_or_an_earlier_start_is_a_strangers() {
        let mut stranger = process("", 0);
        let main = ProcessId::of(stranger.id()).unwrap();
        let instance = InstanceId::new("sweep#1", std::process::id()).unwrap();
        let facts = ProcessFacts::read(main.pid).unwrap();
        let with = |session: u32, start: u64| {
            let keeper = ProcessId {
                pid: session,
                start: 1,
            };
            let main = ProcessId { start, ..main };
            is_of_group(&facts, &record(&instance, keeper, main))
        };
        assert!(with(facts.session, main.start));
        assert!(!with(facts.session + 1, main.start));
        assert!(!with(facts.session, main.start + 1));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_record_of_another_boot_goes_and_touches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(dir.path()).unwrap();
        let instance = InstanceId::new("sweep#2", std::process::id()).unwrap();
        let mut stranger = process(instance.as_str(), 0);
        let id = ProcessId::of(stranger.id()).unwrap();
        run.write(&record(&instance, id, id)).unwrap();
        let report = sweep(dir.path(), &BTreeSet::new(), |_| OrphanDecision::Stop).unwrap();
        assert_eq!(report.killed, BTreeMap::from([(instance.clone(), 0)]));
        assert!(run.read(&instance).is_err());
        assert!(!ended(&mut stranger));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_keeper_without_a_place_for_one_more_connection_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(dir.path()).unwrap();
        let instance = InstanceId::new("sweep#3", std::process::id()).unwrap();
        let mut marked = process(instance.as_str(), 0);
        let keeper = ProcessId::of(std::process::id()).unwrap();
        let listener = run.listen(&instance).unwrap();
        run.write(&record(&instance, keeper, keeper)).unwrap();
        let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
        let report = sweep(dir.path(), &BTreeSet::new(), |_| OrphanDecision::Stop).unwrap();
        assert_eq!(report.held, [instance]);
        assert!(report.killed.is_empty() && !ended(&mut marked));
        closing.join().unwrap();
        marked.kill().unwrap();
        marked.wait().unwrap();
    }

    #[test]
    fn an_instance_of_the_caller_stays_whatever_its_keeper_answers() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(dir.path()).unwrap();
        let instance = InstanceId::new("sweep#4", std::process::id()).unwrap();
        let mut keeper = process("", 0);
        let mut marked = process(instance.as_str(), 0);
        let id = |child: &Child| ProcessId::of(child.id()).unwrap();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let record = InstanceRecord {
            boot_id: boot_id.trim().to_owned(),
            ..record(&instance, id(&keeper), id(&marked))
        };
        run.write(&record).unwrap();
        let own = BTreeSet::from([instance.clone()]);
        let report = sweep(dir.path(), &own, |_| OrphanDecision::Stop).unwrap();
        assert!(report.killed.is_empty() && !ended(&mut keeper) && !ended(&mut marked));
        assert_eq!(run.read(&instance).unwrap(), record);
        // Of another gateway it has no keeper that answers.
        let report = sweep(dir.path(), &BTreeSet::new(), |_| OrphanDecision::Stop).unwrap();
        assert_eq!(report.killed, BTreeMap::from([(instance, 2)]));
        for mut child in [keeper, marked] {
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_directory_that_is_not_there_has_nothing_to_sweep() {
        let report = sweep(Path::new("/no/such/run"), &BTreeSet::new(), |_| {
            OrphanDecision::Stop
        })
        .unwrap();
        assert!(report.failures.is_empty() && report.killed.is_empty());
    }
}
