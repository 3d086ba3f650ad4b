//! Processes of models with real keepers: whatever is killed, no process is left.
//!
//! `INFERGATE_KEEPER_ROUNDS=200` kills the gateway so often, and gateway and keeper a quarter as often.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use infergate::parts::process::{
    ExitReport, InstanceEvent, InstanceId, InstanceRecord, InstanceSpec, ListenScope, LogReader,
    OrphanDecision, PortOwnership, PortPool, ProcessId, ProcessLimits, RunningInstance,
    create_cgroup, environment, is_address_in_use, log_directory, log_file, own_group,
    port_ownership, prepare_cgroup_entry, run_directory, sweep,
};
use tokio::time::{Instant, timeout};

use crate::support::{LIMIT, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");
/// Specification of the instance that the stand-in of a gateway starts.
const STAND_IN: &str = "INFERGATE_TEST_STAND_IN";
/// Manners of model servers, of which each round of kills takes the next.
const MANNERS: [&[&str]; 4] = [
    &[],
    &["--fork-worker", "--escape-group"],
    &["--ignore-term"],
    &["--ignore-term", "--fork-worker"],
];

/// A gateway's `state_dir`, and the instances of this test in it.
struct Site {
    dir: tempfile::TempDir,
    ports: PortPool,
}

impl Site {
    fn new() -> Site {
        Site {
            dir: tempfile::tempdir().unwrap(),
            ports: PortPool::new(21_000..=29_999),
        }
    }

    fn run_directory(&self) -> PathBuf {
        run_directory(self.dir.path())
    }

    /// Specification of any command.
    fn spec(&self, argv: &[&str]) -> InstanceSpec {
        let instance = InstanceId::new("m/x#0", fastrand::u32(..)).unwrap();
        let path = |name: &str| (name == "PATH").then(|| std::env::var("PATH").unwrap());
        InstanceSpec {
            argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
            environment: environment(&Default::default(), &instance, path).unwrap(),
            working_directory: None,
            run_directory: self.run_directory(),
            log_directory: log_directory(self.dir.path()),
            log_bytes: 1 << 20,
            limits: ProcessLimits {
                open_files: 512,
                ..ProcessLimits::default()
            },
            cgroup: None,
            orphan_grace_ms: 0,
            stop_timeout_ms: 10_000,
            port: 0,
            devices: vec!["sim0".to_owned()],
            lease_epoch: 7,
            configuration_digest: "digest".to_owned(),
            files: None,
            api_key: "key".to_owned(),
            instance,
        }
    }

    /// Specification of a simulated server at a port of its own.
    fn server(&self, manners: &[&str]) -> InstanceSpec {
        let port = self.ports.take(fastrand::u32(..)).unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut argv = vec![INFERGATE, "simulate", "--address", &address];
        argv.extend(manners);
        InstanceSpec {
            port,
            ..self.spec(&argv)
        }
    }

    fn sweep_command(&self) -> Output {
        let mut sweep = Command::new(INFERGATE);
        sweep.args(["gpu", "sweep", "--state-dir"]);
        sweep.arg(self.dir.path()).output().unwrap()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.run_directory()).map_or(0, Iterator::count)
    }
}

async fn start(spec: &InstanceSpec) -> RunningInstance {
    let started =
        RunningInstance::start(Path::new(INFERGATE), spec.clone(), async |_| Ok(())).await;
    started.unwrap()
}

async fn next(running: &mut RunningInstance) -> InstanceEvent {
    timeout(LIMIT, running.next_event()).await.unwrap().unwrap()
}

async fn exit_of(running: &mut RunningInstance) -> ExitReport {
    match next(running).await {
        InstanceEvent::Exited(report) => report,
        other => panic!("{other:?}"),
    }
}

async fn gone(running: &mut RunningInstance) -> bool {
    match next(running).await {
        InstanceEvent::Gone { was_keeper_lost } => was_keeper_lost,
        other => panic!("{other:?}"),
    }
}

/// Processes that carry the mark of an instance and have not ended.
fn survivors(instance: &InstanceId) -> Vec<u32> {
    let mark = format!("INFERGATE_INSTANCE={instance}");
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_marked = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut entries = environ.split(|byte| *byte == 0);
        entries.any(|entry| entry == mark.as_bytes())
    };
    pids.filter(is_marked).collect()
}

/// Waits until a server and its worker, if it has one, have been started in full.
async fn serves(spec: &InstanceSpec) {
    let path = log_file(&spec.log_directory, &spec.instance);
    eventually("the server listens", async || {
        let mut log = LogReader::open(&path).ok()?;
        let text = String::from_utf8(log.tail(99, 1 << 20).unwrap()).unwrap();
        let lines = 1 + usize::from(spec.argv.iter().any(|word| word == "--fork-worker"));
        (text.matches("simulated container on").count() >= lines).then_some(())
    })
    .await;
}

async fn nothing_is_left(site: &Site, instance: &InstanceId) {
    eventually("no process and no file is left", async || {
        (survivors(instance).is_empty() && site.files() == 0).then_some(())
    })
    .await;
}

fn kill(pid: u32, signal: &str) {
    let kill = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
}

/// Waits until the keeper knows that its gateway has gone.
async fn orphan(site: &Site) -> InstanceRecord {
    eventually("an instance is orphaned", async || {
        let found = sweep(&site.run_directory(), &BTreeSet::new(), |_| {
            OrphanDecision::Adopt
        })
        .unwrap();
        found.adoptable.into_iter().next()
    })
    .await
}

/// A process that starts an instance and waits, as a gateway does, until it is killed.
struct StandIn {
    child: Child,
}

impl StandIn {
    fn start(spec: &InstanceSpec) -> StandIn {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["gpu_processes::gateway_stand_in", "--exact", "--nocapture"]);
        command.env(STAND_IN, serde_json::to_string(spec).unwrap());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().unwrap().contains("has started"));
        StandIn { child }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Not a test of its own: what [`StandIn`] runs.
#[tokio::test]
async fn gateway_stand_in() {
    let Ok(spec) = std::env::var(STAND_IN) else {
        return;
    };
    let spec = serde_json::from_str(&spec).unwrap();
    let mut running = start(&spec).await;
    println!("the instance has started");
    while running.next_event().await.is_some() {}
}

fn rounds(few: usize, part: usize) -> usize {
    let many = std::env::var("INFERGATE_KEEPER_ROUNDS");
    many.map_or(few, |many| many.parse::<usize>().unwrap() / part)
}

#[tokio::test]
async fn a_server_that_obeys_ends_at_sigterm_and_leaves_its_log_alone() {
    let site = Site::new();
    let spec = site.server(&[]);
    let mut running = start(&spec).await;
    serves(&spec).await;
    let record = running.record().unwrap();
    assert_eq!(record.main, Some(running.main()));
    assert_eq!((record.lease_epoch, &*record.api_key), (7, "key"));
    running.stop().await.unwrap();
    let exit = exit_of(&mut running).await;
    assert_eq!((exit.code, exit.signal), (Some(0), None));
    assert!(exit.last_lines.contains("simulated container on"));
    assert!(!gone(&mut running).await);
    assert_eq!(running.next_event().await, None);
    assert_eq!((survivors(running.id()), site.files()), (vec![], 0));
    let log = log_file(&spec.log_directory, &spec.instance);
    let kept = LogReader::open(&log).unwrap().tail(1, 4096).unwrap();
    assert!(kept.starts_with(b"simulated container"));
    assert_eq!(std::fs::metadata(log).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_server_that_ignores_sigterm_is_killed_after_its_time_to_stop() {
    let site = Site::new();
    let mut spec = site.server(&["--ignore-term"]);
    spec.stop_timeout_ms = 300;
    let mut running = start(&spec).await;
    serves(&spec).await;
    running.stop().await.unwrap();
    let asked = Instant::now();
    assert_eq!(exit_of(&mut running).await.signal, Some(9));
    assert!(!gone(&mut running).await);
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(290), "{took:?}");
    nothing_is_left(&site, &spec.instance).await;
}

#[tokio::test]
async fn a_kill_waits_for_no_time_to_stop() {
    let site = Site::new();
    let spec = site.server(&["--ignore-term", "--fork-worker"]);
    let mut running = start(&spec).await;
    serves(&spec).await;
    running.kill().await.unwrap();
    assert_eq!(exit_of(&mut running).await.signal, Some(9));
    assert!(!gone(&mut running).await);
    nothing_is_left(&site, &spec.instance).await;
}

#[tokio::test]
async fn workers_end_with_their_server_also_where_they_have_left_its_group() {
    let site = Site::new();
    for manners in [&["--fork-worker"][..], &["--fork-worker", "--escape-group"]] {
        let spec = site.server(manners);
        let mut running = start(&spec).await;
        serves(&spec).await;
        assert_eq!(survivors(&spec.instance).len(), 2);
        kill(running.main().pid, "-9");
        assert_eq!(exit_of(&mut running).await.signal, Some(9));
        assert!(!gone(&mut running).await);
        nothing_is_left(&site, &spec.instance).await;
    }
}

#[tokio::test]
async fn an_instance_whose_handle_is_dropped_ends() {
    let site = Site::new();
    let spec = site.server(&["--fork-worker", "--escape-group"]);
    let running = start(&spec).await;
    serves(&spec).await;
    drop(running);
    nothing_is_left(&site, &spec.instance).await;
}

#[tokio::test]
async fn no_process_outlives_a_killed_gateway() {
    let site = Site::new();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds(MANNERS.len(), 1) {
        let mut spec = site.server(MANNERS[round % MANNERS.len()]);
        spec.stop_timeout_ms = 100;
        let gateway = StandIn::start(&spec);
        if round % 8 < MANNERS.len() {
            serves(&spec).await;
        }
        gateway.kill();
        let killed = Instant::now();
        nothing_is_left(&site, &spec.instance).await;
        slowest = slowest.max(killed.elapsed());
    }
    println!("gateway killed: all gone after {slowest:?} at most");
}

#[tokio::test]
async fn a_sweep_ends_what_is_left_of_a_gateway_and_a_keeper_that_were_killed() {
    let site = Site::new();
    let (mut left, mut slowest) = (0, Duration::ZERO);
    for round in 0..rounds(MANNERS.len(), 4) {
        let mut spec = site.server(MANNERS[round % MANNERS.len()]);
        spec.orphan_grace_ms = 60_000;
        let gateway = StandIn::start(&spec);
        serves(&spec).await;
        gateway.kill();
        let record = orphan(&site).await;
        kill(record.keeper.pid, "-9");
        left += usize::from(!survivors(&spec.instance).is_empty());
        let begin = Instant::now();
        let swept = site.sweep_command();
        slowest = slowest.max(begin.elapsed());
        let printed = String::from_utf8_lossy(&swept.stdout).into_owned();
        assert_eq!(swept.status.code(), Some(0), "{printed}");
        assert!(printed.contains("had no keeper"), "{printed}");
        assert_eq!((survivors(&spec.instance), site.files()), (vec![], 0));
    }
    println!("both killed: {left} left processes, swept within {slowest:?}");
    let printed = site.sweep_command().stdout;
    assert_eq!(printed, b"nothing is left\n");
}

/// Numbers of the processes of a group that have not ended.
fn members(group: u32) -> Vec<u32> {
    let list = Command::new("ps")
        .args(["-eo", "pid=,pgid=,stat="])
        .output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let rows = list
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    let group = group.to_string();
    let rows = rows.filter(|row| row[1] == group && !row[2].starts_with('Z'));
    rows.map(|row| row[0].parse().unwrap()).collect()
}

#[tokio::test]
async fn processes_that_have_lost_their_mark_are_known_by_their_group() {
    let site = Site::new();
    let mut spec = site.spec(&["sh", "-c", "env -i sleep 600 & env -i sleep 600 & wait"]);
    spec.orphan_grace_ms = 60_000;
    let gateway = StandIn::start(&spec);
    gateway.kill();
    let record = orphan(&site).await;
    let group = record.main.unwrap().pid;
    eventually("both have been started and have no mark", async || {
        let is_ready = members(group).len() == 3 && survivors(&spec.instance) == [group];
        is_ready.then_some(())
    })
    .await;
    kill(record.keeper.pid, "-9");
    eventually("the main process is dead", async || {
        (members(group).len() == 2).then_some(())
    })
    .await;
    assert_eq!(site.sweep_command().status.code(), Some(0));
    assert_eq!((members(group), site.files()), (vec![], 0));
}

#[tokio::test]
async fn a_lost_keeper_is_noticed_and_its_instance_ended_within_a_second() {
    let site = Site::new();
    let spec = site.server(&["--fork-worker", "--escape-group"]);
    let mut running = start(&spec).await;
    serves(&spec).await;
    kill(running.record().unwrap().keeper.pid, "-9");
    let killed = Instant::now();
    assert!(gone(&mut running).await);
    let took = killed.elapsed();
    println!("keeper killed: all gone after {took:?}");
    assert!(took <= Duration::from_secs(1), "{took:?}");
    assert_eq!((survivors(&spec.instance), site.files()), (vec![], 0));
}

#[tokio::test]
async fn a_keeper_that_does_not_listen_can_be_given_up() {
    let site = Site::new();
    let spec = site.server(&["--fork-worker", "--escape-group"]);
    let mut running = start(&spec).await;
    serves(&spec).await;
    kill(running.record().unwrap().keeper.pid, "-STOP");
    running.kill().await.unwrap();
    running.end_by_force();
    assert!(gone(&mut running).await);
    assert_eq!((survivors(&spec.instance), site.files()), (vec![], 0));
}

#[tokio::test]
async fn another_gateway_takes_an_orphan_over_and_a_sweep_leaves_it_alone() {
    let site = Site::new();
    let mut spec = site.server(&[]);
    spec.orphan_grace_ms = 60_000;
    let gateway = StandIn::start(&spec);
    serves(&spec).await;
    gateway.kill();
    let record = orphan(&site).await;
    assert_eq!(record.configuration_digest, "digest");
    let adopted = RunningInstance::adopt(&site.run_directory(), &record).await;
    let mut adopted = adopted.unwrap();
    let swept = String::from_utf8(site.sweep_command().stdout).unwrap();
    assert!(swept.contains("a gateway has it"), "{swept}");
    assert!(adopted.main().is_alive());
    adopted.stop().await.unwrap();
    assert_eq!(exit_of(&mut adopted).await.code, Some(0));
    assert!(!gone(&mut adopted).await);
    let late = RunningInstance::adopt(&site.run_directory(), &record).await;
    assert!(late.is_err());
}

#[tokio::test]
async fn an_orphan_that_is_not_adopted_is_stopped_by_its_keeper() {
    let site = Site::new();
    for manners in [&[][..], &["--ignore-term", "--fork-worker"]] {
        let mut spec = site.server(manners);
        spec.orphan_grace_ms = 60_000;
        let gateway = StandIn::start(&spec);
        serves(&spec).await;
        gateway.kill();
        let swept = eventually("the keeper knows that it is orphaned", async || {
            let swept = String::from_utf8(site.sweep_command().stdout).unwrap();
            (!swept.contains("a gateway has it")).then_some(swept)
        })
        .await;
        assert!(swept.contains("ended by its keeper"), "{swept}");
        assert_eq!((survivors(&spec.instance), site.files()), (vec![], 0));
    }
}

#[tokio::test]
async fn a_keeper_that_stands_still_is_ended_with_its_instance() {
    let site = Site::new();
    let mut spec = site.server(&["--fork-worker", "--escape-group"]);
    spec.orphan_grace_ms = 60_000;
    let gateway = StandIn::start(&spec);
    serves(&spec).await;
    gateway.kill();
    let record = orphan(&site).await;
    kill(record.keeper.pid, "-STOP");
    let swept = String::from_utf8(site.sweep_command().stdout).unwrap();
    assert!(swept.contains("had no keeper"), "{swept}");
    assert_eq!((survivors(&spec.instance), site.files()), (vec![], 0));
}

/// Status line and body of a request without a body.
fn ask(port: u16, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn a_server_that_sleeps_leaves_its_memory_to_another() {
    let site = Site::new();
    let card = site.dir.path().join("sim0");
    std::fs::create_dir(&card).unwrap();
    std::fs::write(card.join("card.json"), r#"{"total_mib":1000,"pages":10}"#).unwrap();
    let card = card.to_str().unwrap();
    let manners = ["--vram-card", card, "--vram-mib", "800", "--sleepable"];
    let spec = site.server(&manners);
    let sleeper = start(&spec).await;
    let log = log_file(&spec.log_directory, &spec.instance);
    eventually("memory is taken", async || {
        let text = LogReader::open(&log).ok()?.tail(9, 4096).unwrap();
        String::from_utf8(text)
            .unwrap()
            .contains("800 MiB")
            .then_some(())
    })
    .await;
    let asleep = ask(spec.port, "POST", "/sleep?level=1");
    assert!(asleep.contains(r#"{"is_sleeping":true}"#), "{asleep}");
    assert!(ask(spec.port, "GET", "/health").starts_with("HTTP/1.1 200"));
    assert!(ask(spec.port, "GET", "/v1/models").starts_with("HTTP/1.1 503"));
    let other = site.server(&manners);
    let mut running = start(&other).await;
    eventually("the other serves", async || {
        let port = other.port;
        let is_up = TcpStream::connect(("127.0.0.1", port)).is_ok();
        (is_up && ask(port, "GET", "/v1/models").contains("200 OK")).then_some(())
    })
    .await;
    running.kill().await.unwrap();
    exit_of(&mut running).await;
    gone(&mut running).await;
    let awake = ask(spec.port, "POST", "/wake_up");
    assert!(awake.contains(r#"{"is_sleeping":false}"#), "{awake}");
    assert!(ask(spec.port, "GET", "/v1/models").contains("200 OK"));
    drop(sleeper);
    nothing_is_left(&site, &spec.instance).await;
}

#[tokio::test]
async fn a_port_that_a_stranger_has_is_never_taken_for_the_instances() {
    let site = Site::new();
    let spec = site.server(&[]);
    let stranger = TcpListener::bind(("127.0.0.1", spec.port)).unwrap();
    let mut running = start(&spec).await;
    let keeper = running
        .record()
        .map_or(running.main(), |record| record.keeper);
    let look = |port, keeper| port_ownership(port, keeper, ListenScope::Loopback);
    assert_eq!(look(spec.port, keeper), PortOwnership::Foreign);
    let exit = exit_of(&mut running).await;
    assert!(is_address_in_use(&exit.last_lines), "{}", exit.last_lines);
    assert!(!gone(&mut running).await);
    drop(stranger);
    let spec = site.server(&[]);
    let running = start(&spec).await;
    serves(&spec).await;
    let keeper = running.record().unwrap().keeper;
    assert_eq!(look(spec.port, keeper), PortOwnership::Owned);
    let own = ProcessId::of(std::process::id()).unwrap();
    assert_eq!(look(spec.port, own), PortOwnership::Owned, "an ancestor's");
    let other = start(&site.server(&[])).await.record().unwrap().keeper;
    assert_eq!(look(spec.port, other), PortOwnership::Foreign);
}

/// Prints figures: the time from a wish to its process, and the memory of a keeper.
#[tokio::test]
async fn a_start_takes_milliseconds_and_a_keeper_little_memory() {
    let site = Site::new();
    let mut took = Vec::new();
    let mut running = Vec::new();
    for _ in 0..rounds(8, 2) {
        let spec = site.spec(&["sleep", "600"]);
        let begin = Instant::now();
        let instance = start(&spec).await;
        took.push(begin.elapsed());
        running.push(instance);
        if running.len() > 4 {
            running.remove(0).kill().await.unwrap();
        }
    }
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    let keeper = running[0].record().unwrap().keeper.pid;
    let rollup = std::fs::read_to_string(format!("/proc/{keeper}/smaps_rollup")).unwrap();
    let pss = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .unwrap();
    println!("started after {median:?} (median), {longest:?} (longest); keeper's {pss}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
}

#[tokio::test]
async fn a_control_group_is_made_joined_and_removed() {
    let site = Site::new();
    let mut spec = site.server(&["--fork-worker", "--escape-group"]);
    let group = own_group().and_then(|own| create_cgroup(&own, &spec.instance, &spec.limits).ok());
    let Some(group) = group else {
        println!("skipped: control groups of version 2 cannot be made here");
        return;
    };
    let before = own_group();
    prepare_cgroup_entry();
    assert_eq!(own_group(), before, "this process stays where it is");
    spec.cgroup = Some(group.clone());
    let mut running = start(&spec).await;
    serves(&spec).await;
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert_eq!(members.lines().count(), 2, "server and worker: {members}");
    running.kill().await.unwrap();
    assert_eq!(exit_of(&mut running).await.signal, Some(9));
    assert!(!gone(&mut running).await);
    assert!(!group.exists());
}

#[tokio::test]
async fn output_beyond_the_ring_keeps_its_newest_lines() {
    let site = Site::new();
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo end >&2";
    let mut spec = site.spec(&["sh", "-c", script]);
    spec.log_bytes = 16 * 1024;
    let mut running = start(&spec).await;
    let exit = exit_of(&mut running).await;
    assert_eq!(exit.code, Some(0));
    assert!(exit.last_lines.ends_with("line 19999\nend\n"));
    assert!(!gone(&mut running).await);
    let path = log_file(&spec.log_directory, &spec.instance);
    assert!(std::fs::metadata(&path).unwrap().len() < 17 * 1024);
    let tail = LogReader::open(&path).unwrap().tail(2, 4096).unwrap();
    assert_eq!(tail, b"line 19999\nend\n");
}

#[tokio::test]
async fn a_full_disk_of_logs_drops_and_never_blocks_the_process() {
    let site = Site::new();
    let full = site.dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
    if !mount.arg(&full).output().unwrap().status.success() {
        println!("skipped: only root may mount a small disk");
        return;
    }
    let script = "head -c 4000000 /dev/zero | tr '\\0' 'x'; echo; echo end";
    let mut spec = site.spec(&["sh", "-c", script]);
    spec.log_directory = full.clone();
    let mut running = start(&spec).await;
    let exit = exit_of(&mut running).await;
    assert_eq!(exit.code, Some(0));
    assert!(exit.last_lines.ends_with("end\n"));
    assert!(!gone(&mut running).await);
    let unmount = Command::new("umount").arg(&full).status();
    assert!(unmount.unwrap().success());
}

#[tokio::test]
async fn a_command_that_is_not_there_says_so_and_is_status_127() {
    let site = Site::new();
    let mut running = start(&site.spec(&["/no/such/server"])).await;
    let exit = exit_of(&mut running).await;
    assert_eq!(exit.code, Some(127));
    assert!(exit.last_lines.contains("/no/such/server"), "{exit:?}");
    assert!(!gone(&mut running).await);
    let mut spec = site.spec(&["true"]);
    spec.working_directory = Some("/no/such/directory".into());
    let mut running = start(&spec).await;
    let exit = exit_of(&mut running).await;
    assert_eq!(exit.code, Some(126));
    assert!(exit.last_lines.contains("/no/such/directory"), "{exit:?}");
}

#[tokio::test]
async fn a_process_has_its_environment_and_limits_and_nothing_else() {
    let site = Site::new();
    let script = "env | cut -d= -f1 | sort | tr '\\n' ' '; ulimit -n; cat /proc/self/oom_score_adj; ls /proc/self/fd";
    let mut running = start(&site.spec(&["sh", "-c", script])).await;
    let exit = exit_of(&mut running).await;
    let lines: Vec<_> = exit.last_lines.lines().collect();
    let names = "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES INFERGATE_INSTANCE PATH PWD 512";
    assert_eq!(lines[0], names, "{}", exit.last_lines);
    assert_eq!(lines[1], "500");
    // Those that the test itself was given are passed on.
    let mut list = Command::new("ls");
    let own = list
        .arg("/proc/self/fd")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let own = String::from_utf8(own.stdout).unwrap();
    assert_eq!(lines[2..].join("\n"), own.trim_end());
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing() {
    let site = Site::new();
    std::fs::write(site.dir.path().join("gpu"), "a file in the way").unwrap();
    let spec = site.spec(&["true"]);
    let failed = RunningInstance::start(Path::new(INFERGATE), spec.clone(), async |_| Ok(())).await;
    let why = failed.unwrap_err().to_string();
    assert!(why.contains("directory") || why.contains("exists"), "{why}");
    assert!(survivors(&spec.instance).is_empty());
}

#[tokio::test]
async fn no_process_is_started_before_its_keeper_has_the_leases() {
    let site = Site::new();
    let mark = site.dir.path().join("started");
    let script = format!("touch {}", mark.display());
    let spec = site.spec(&["sh", "-c", &script]);
    let refused = async |keeper: ProcessId| {
        assert_eq!(ProcessId::of(keeper.pid), Some(keeper), "the keeper lives");
        Err("the ledger is full".to_owned())
    };
    let failed = RunningInstance::start(Path::new(INFERGATE), spec.clone(), refused).await;
    let why = failed.unwrap_err().to_string();
    assert!(why.contains("the ledger is full"), "{why}");
    assert!(!mark.exists() && survivors(&spec.instance).is_empty());
}

#[test]
fn a_keeper_by_hand_says_that_gateways_run_keepers() {
    let mut keep = Command::new(INFERGATE);
    let run = keep.arg("keep").stdin(Stdio::null()).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("a gateway runs keepers"));
}

#[test]
fn a_sweep_of_a_configuration_that_does_not_load_is_status_2() {
    let mut sweep = Command::new(INFERGATE);
    let run = sweep
        .args(["gpu", "sweep", "--config", "/no/such.yaml"])
        .output();
    assert_eq!(run.unwrap().status.code(), Some(2));
}
