//! Leases on simulated cards by real processes: 20 jobs on two cards, killed holders, waits with a limit.
//!
//! A job is `infergate lease … -- infergate simulate …`, which takes pages of the cards it was granted.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::support::LIMIT;

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");
/// Pages of a card have 96 MiB.
const PAGE_MIB: u64 = 96;
/// Takes memory on each granted card, as a tensor parallel server does.
const TAKE: &str = r#"exec "$INFERGATE" simulate --address 127.0.0.1:0 --vram-mib "$MIB" \
    $(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | sed "s|^|--vram-card $CARDS/|")"#;
const JOBS: u64 = 20;

/// Cards of 24 GiB, of which 512 MiB are reserved.
struct Cards {
    dir: tempfile::TempDir,
}

impl Cards {
    fn new(names: &[&str]) -> Cards {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let card = dir.path().join(name);
            std::fs::create_dir(&card).unwrap();
            std::fs::write(card.join("card.json"), r#"{"total_mib":24576}"#).unwrap();
        }
        Cards { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn lease(&self, options: &[&str], command: &[&str]) -> Command {
        let mut lease = Command::new(INFERGATE);
        lease.args(["lease", "--cards"]).arg(self.path());
        lease.args(options).arg("--").args(command);
        lease.env("INFERGATE", INFERGATE).env("CARDS", self.path());
        lease.stdout(Stdio::piped()).stderr(Stdio::piped());
        lease
    }

    /// Starts a job that takes what it leases.
    fn job(&self, mib: u64, options: &[&str]) -> Job {
        let vram = format!("{mib}MiB");
        let options: Vec<_> = ["--vram", &*vram, "--wait", "60s"]
            .into_iter()
            .chain(options.iter().copied())
            .collect();
        let mut lease = self.lease(&options, &["sh", "-c", TAKE]);
        let mut child = lease.env("MIB", mib.to_string()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Job { child, stdout }
    }

    /// Takes memory of a card without a lease.
    fn stranger(&self, card: &str, mib: u64) -> Job {
        let mut command = Command::new(INFERGATE);
        command.args(["simulate", "--address", "127.0.0.1:0", "--vram-mib"]);
        command.arg(mib.to_string()).arg("--vram-card");
        command.arg(self.path().join(card));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Job { child, stdout }
    }

    fn leases(&self, more: &[&str]) -> Output {
        let mut command = Command::new(INFERGATE);
        command.args(["gpu", "leases", "--cards"]).arg(self.path());
        command.args(more).output().unwrap()
    }

    fn ledger(&self) -> Value {
        serde_json::from_slice(&self.leases(&["--json"]).stdout).unwrap()
    }

    /// Looks at the ledger until it is as `state` says.
    fn until(&self, what: &str, state: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let ledger = self.ledger();
            if state(&ledger) {
                return ledger;
            }
            assert!(begin.elapsed() < LIMIT, "{what}: {ledger}");
            std::thread::yield_now();
        }
    }
}

/// A job, killed when it is dropped.
struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Job {
    /// Reads its output until its memory is taken; what it wrote to standard error when it was refused.
    fn takes(&mut self) -> Result<(), String> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if line.contains("taken") {
                return Ok(());
            }
            line.clear();
        }
        let mut why = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut why).unwrap();
        Err(why)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status();
        assert!(sent.unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Jobs of a thread, one after the other: every second ends by SIGTERM, the others by SIGKILL.
fn run_jobs(cards: &Cards, seed: u64, rounds: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let mib = PAGE_MIB * rng.u64(1..=120);
        let gpus = if rng.u32(0..4) == 0 { "2" } else { "1" };
        let mut job = cards.job(mib, &["--gpus", gpus]);
        let taken = job.takes();
        assert_eq!(
            taken,
            Ok(()),
            "job {seed}, round {round}: {mib} MiB on {gpus}"
        );
        if rng.bool() {
            job.signal("TERM");
            assert_eq!(job.exit_code(), Some(0), "the status is the command's");
        } else {
            job.signal("KILL");
            assert_eq!(job.exit_code(), None);
        }
    }
}

#[test]
fn every_allocation_of_20_jobs_with_a_lease_succeeds_on_two_cards() {
    let rounds = std::env::var("INFERGATE_LEASE_ROUNDS");
    let rounds = rounds.map_or(4, |text| text.parse().unwrap());
    let cards = Cards::new(&["sim0", "sim1"]);
    std::thread::scope(|scope| {
        for seed in 0..JOBS {
            let cards = &cards;
            scope.spawn(move || run_jobs(cards, seed, rounds));
        }
    });
    let whole = cards.job(PAGE_MIB * 250, &["--gpus", "2"]).takes();
    assert_eq!(whole, Ok(()), "nothing is left behind");
}

#[test]
fn the_memory_of_a_killed_holder_is_anothers_within_1500_ms() {
    let cards = Cards::new(&["sim0"]);
    let mut first = cards.job(PAGE_MIB * 200, &[]);
    first.takes().unwrap();
    let mut second = cards.job(PAGE_MIB * 200, &[]);
    cards.until("the second waits", |ledger| {
        ledger["claims"].as_array().unwrap().len() == 1
    });
    first.signal("KILL");
    let killed = Instant::now();
    second.takes().unwrap();
    let took = killed.elapsed();
    assert!(took <= Duration::from_millis(1500), "{took:?}");
    let ledger = cards.ledger();
    assert_eq!(ledger["leases"][0]["holder"]["pid"], second.child.id());
    assert_eq!(ledger["claims"], serde_json::json!([]));
}

#[test]
fn a_wait_that_ends_without_room_is_75_and_a_need_beyond_the_devices_69() {
    let cards = Cards::new(&["sim0"]);
    let mut first = cards.job(PAGE_MIB * 200, &[]);
    first.takes().unwrap();
    let run = |options: &[&str]| cards.lease(options, &["true"]).output().unwrap();
    let late = run(&["--vram", "10GiB", "--wait", "150ms"]);
    assert_eq!(late.status.code(), Some(75), "{}", stderr(&late));
    assert!(
        stderr(&late).contains("no room within"),
        "{}",
        stderr(&late)
    );
    let at_once = run(&["--vram", "10GiB", "--wait", "0s"]);
    assert_eq!(at_once.status.code(), Some(75), "{}", stderr(&at_once));
    let hopeless = run(&["--vram", "24GiB"]);
    assert_eq!(hopeless.status.code(), Some(69), "{}", stderr(&hopeless));
    assert!(
        stderr(&hopeless).contains("24064 MiB"),
        "{}",
        stderr(&hopeless)
    );
    assert_eq!(run(&["--vram", "1GiB"]).status.code(), Some(0));
    let mut elsewhere = Command::new(INFERGATE);
    elsewhere.args(["lease", "--vram", "1GiB", "--cards", "/no/such/cards"]);
    let elsewhere = elsewhere.args(["--", "true"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(69), "{}", stderr(&elsewhere));
}

#[test]
fn a_command_sees_its_devices_and_its_status_is_returned() {
    let cards = Cards::new(&["sim0", "sim1"]);
    let script = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $INFERGATE_LEASE; exit 7";
    let two = ["--vram", "1GiB", "--gpus", "2"];
    let run = cards.lease(&two, &["sh", "-c", script]).output().unwrap();
    assert_eq!(run.status.code(), Some(7), "{}", stderr(&run));
    let printed = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(printed.starts_with("sim0,sim1 PCI_BUS_ID g-"), "{printed}");
    let missing = cards.lease(&two, &["/no/such/command"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    // Those of the first one end with the next look at the cards.
    let ledger = cards.ledger();
    let mut left = ledger["leases"].as_array().unwrap().iter();
    assert!(left.all(|lease| lease["state"] == "reclaiming"), "{ledger}");
}

#[test]
fn a_program_without_a_lease_is_seen_and_leases_are_not_granted_over_it() {
    let cards = Cards::new(&["sim0"]);
    let mut stranger = cards.stranger("sim0", PAGE_MIB * 150);
    stranger.takes().unwrap();
    let run = |vram: &str| {
        let options = ["--vram", vram, "--wait", "0s"];
        let run = cards.lease(&options, &["true"]).output().unwrap();
        run.status.code()
    };
    assert_eq!(run("12GiB"), Some(75));
    assert_eq!(run("9600MiB"), Some(0));
    let mut too_much = cards.stranger("sim0", PAGE_MIB * 107);
    let why = too_much.takes().unwrap_err();
    assert!(why.contains("CUDA error: out of memory"), "{why}");
    assert_eq!(too_much.exit_code(), Some(1));
}

#[test]
fn a_lease_is_listed_and_not_released_while_its_holder_lives() {
    let cards = Cards::new(&["sim0"]);
    let mut job = cards.job(PAGE_MIB * 10, &["--name", "train-7"]);
    job.takes().unwrap();
    let listed = String::from_utf8(cards.leases(&[]).stdout).unwrap();
    assert!(
        listed.contains("train-7") && listed.contains("alive"),
        "{listed}"
    );
    let ledger = cards.ledger();
    assert_eq!(ledger["leases"][0]["state"], "held");
    let id = ledger["leases"][0]["id"].as_str().unwrap().to_owned();
    let release = |id: &str| cards.leases(&["release", id]);
    let refused = release(&id);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("end it first"),
        "{}",
        stderr(&refused)
    );
    job.signal("KILL");
    job.exit_code();
    let listed = String::from_utf8(cards.leases(&[]).stdout).unwrap();
    assert!(listed.contains("dead"), "{listed}");
    assert_eq!(release(&id).status.code(), Some(0));
    assert_eq!(cards.ledger()["leases"], serde_json::json!([]));
    assert_eq!(
        release(&id).status.code(),
        Some(1),
        "there is none any more"
    );
}

#[test]
fn who_waits_without_a_claim_takes_what_is_free_behind_those_that_claim() {
    let cards = Cards::new(&["sim0"]);
    let mut first = cards.job(PAGE_MIB * 200, &[]);
    first.takes().unwrap();
    let mut claiming = cards.job(PAGE_MIB * 240, &[]);
    let waits = |ledger: &Value| ledger["claims"].as_array().unwrap().len() == 1;
    cards.until("the second waits", waits);
    let options = ["--vram", "96MiB", "--wait", "0s", "--min-free-only"];
    let behind = cards.lease(&options, &["true"]).output().unwrap();
    assert_eq!(behind.status.code(), Some(75), "the claim comes first");
    first.signal("TERM");
    claiming.takes().unwrap();
    let free = cards.lease(&options, &["true"]).output().unwrap();
    assert_eq!(free.status.code(), Some(0), "{}", stderr(&free));
}
