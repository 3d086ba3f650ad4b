//! Full cycles of the embedded job store: submit, take and finish, each kept before it is answered.
//!
//! Not over HTTP: `tests/jobs/speed.py` is. The store lies on the machine's own disk. Figures and targets:
//!
//! | figure | target |
//! |---|---|
//! | cycles a second with 64 submitters at once | ≥ 5,000 |
//! | processor time of the process for one job | ≤ 40 µs |
//!
//! `cargo bench --bench jobs -- [--jobs N] [--dir FOLDER]`

// A bench lives on the clock and starts its own tasks; the product's rules about both are for requests.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use infergate::parts::{
    Clock, EmbeddedSettings, EmbeddedStore, EndRecord, EndRenderer, JobSignals, JobStore, Metrics,
    NewStoredJob, StoreClock, StoredEnd,
};
use infergate_core::Millis;
use infergate_core::job::{
    DeployableKey, JobClass, JobDefinition, JobId, JobKind, JobLimits, JobOutcome, JobState,
    NewJob, QueueLimits, RunEnd, StoreTime, SubmitResult, TakeRequest, WorkerId, WriteResult,
};
use infergate_core::model::{FairBy, FlowMode};

#[path = "kit/procfs.rs"]
#[allow(dead_code, reason = "the other benches use the rest")]
mod procfs;

/// Errors end a bench with one line; nobody matches on them.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SUBMITTERS: u64 = 64;
const FLOWS: u64 = 8;
const REQUEST_BYTES: usize = 1024;
const RESULT_BYTES: usize = 1638;
const TAKEN_AT_ONCE: usize = 32;
const TAKERS: u64 = 2;
const CYCLES_MIN: f64 = 5000.0;
const MICROS_MAX: f64 = 40.0;

/// Ends that no worker writes: there are none here.
struct NoEnds;

impl EndRenderer for NoEnds {
    fn render(&self, _: &JobOutcome, _: &[u8]) -> EndRecord {
        EndRecord::default()
    }
}

fn job(number: u64, now: StoreTime) -> NewStoredJob {
    let hour = now + Millis(3_600_000);
    let account = format!("a{}", number % FLOWS);
    NewStoredJob {
        job: NewJob {
            definition: JobDefinition {
                id: JobId::new(None, now, u128::from(number)),
                kind: JobKind::Prediction,
                deployable: "vp-bench".into(),
                account: account.as_str().into(),
                model: "m".into(),
                flow: "".into(),
                class: JobClass::Normal,
                weight: 1,
                fair_by: FairBy::Time,
                created: now,
                limits: JobLimits {
                    deadline: None,
                    lifetime: hour,
                    run_timeout_ms: 600_000,
                },
                start_until: hour,
                attempts_max: 3,
                cancel_grace_ms: 10_000,
                bytes: REQUEST_BYTES as u64,
                has_webhook: false,
            },
            flows: FlowMode::Account,
            limits: QueueLimits {
                queue_max: 1_000_000,
                queue_max_per_account: 1_000_000,
                bytes_max: 1 << 30,
            },
        },
        payload: vec![b'x'; REQUEST_BYTES].into(),
        key: None,
    }
}

/// Takes and finishes until as many jobs have ended.
async fn work(
    store: Arc<EmbeddedStore>,
    worker: WorkerId,
    ended: Arc<AtomicU64>,
    jobs: u64,
) -> Fallible<()> {
    let deployable: DeployableKey = "vp-bench".into();
    let mut turn = 0;
    while ended.load(Ordering::Relaxed) < jobs {
        turn += 1;
        let request = TakeRequest {
            deployable: deployable.clone(),
            count: TAKEN_AT_ONCE,
            turn,
            preferred_flow: None,
        };
        let runs = store.take(&worker, request).await?;
        if runs.is_empty() {
            tokio::time::sleep(Duration::from_micros(500)).await;
            continue;
        }
        let ends = runs.iter().map(|run| {
            let end = StoredEnd {
                end: RunEnd {
                    id: run.taken.definition.id,
                    epoch: run.taken.progress.epoch,
                    state: JobState::Succeeded,
                    reason: None,
                },
                record: EndRecord {
                    result: vec![b'y'; RESULT_BYTES].into(),
                    event: b"{}\n".to_vec().into(),
                },
            };
            store.finish(&worker, end)
        });
        for written in futures_util::future::join_all(ends).await {
            if written? != WriteResult::Done {
                return Err("an end was not written".into());
            }
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

async fn cycles(folder: &Path, jobs: u64) -> Fallible<(f64, f64)> {
    let clock = StoreClock::start(Clock::start());
    let settings = Arc::new(EmbeddedSettings::default());
    settings.keep_ms.store(60_000, Ordering::Relaxed);
    let metrics = Arc::clone(Metrics::new("0", "0", 0.0).jobs());
    let signals = Arc::new(JobSignals::default());
    let store = EmbeddedStore::open(folder, clock, settings, signals, Arc::new(NoEnds), metrics)?;
    let store = Arc::new(store);
    let ended = Arc::new(AtomicU64::new(0));
    let numbers = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    let (begun, begun_cpu) = (Instant::now(), procfs::process_cpu_ns(std::process::id())?);
    for _ in 0..SUBMITTERS {
        let (store, numbers) = (Arc::clone(&store), Arc::clone(&numbers));
        tasks.spawn(async move {
            loop {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                if number >= jobs {
                    return Ok(());
                }
                if store.submit(job(number, clock.now())).await? != SubmitResult::Created {
                    return Err("a job was not stored".into());
                }
            }
        });
    }
    for number in 0..TAKERS {
        let worker = WorkerId::new("bench", number as u32);
        tasks.spawn(work(Arc::clone(&store), worker, Arc::clone(&ended), jobs));
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let secs = begun.elapsed().as_secs_f64();
    let cpu_ns = procfs::process_cpu_ns(std::process::id())? - begun_cpu;
    Ok((jobs as f64 / secs, cpu_ns as f64 / 1000.0 / jobs as f64))
}

fn main() -> Fallible<()> {
    let mut jobs = 50_000;
    let mut folder = PathBuf::from("target");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // cargo adds this one by itself.
            "--bench" => {}
            "--jobs" => jobs = words.next().ok_or("--jobs needs a value")?.parse()?,
            "--dir" => folder = words.next().ok_or("--dir needs a value")?.into(),
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    println!("{}", procfs::machine());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut rows = Vec::new();
    for _ in 0..3 {
        let place = tempfile::TempDir::new_in(&folder)?;
        rows.push(runtime.block_on(cycles(place.path(), jobs))?);
    }
    let most = rows.iter().map(|row| row.0).fold(0.0, f64::max);
    let least = rows.iter().map(|row| row.1).fold(f64::INFINITY, f64::min);
    for (cycles, micros) in &rows {
        println!("{jobs} jobs: {cycles:.0} cycles/s, {micros:.1} µs of processor time a job");
    }
    let fits = most >= CYCLES_MIN && least <= MICROS_MAX;
    println!(
        "best of {}: {most:.0} cycles/s (at least {CYCLES_MIN}), {least:.1} µs (at most {MICROS_MAX})",
        rows.len()
    );
    match fits {
        true => Ok(()),
        false => Err("not everything is met".into()),
    }
}
