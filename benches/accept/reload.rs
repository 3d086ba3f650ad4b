//! Item 7: a thousand reloads, good and bad, under 200 requests a second.
//! Not a test of the configuration's messages: it looks at what the requests and the backend feel.
//!
//! Every change goes to the file first, where the watcher sees it too, and then through `POST /reload`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::client::{ChatRequest, Client};
use crate::crowd::{self, Sample};
use crate::kit::gateway::{Account, Settings};
use crate::kit::{Fallible, procfs};
use crate::overload::counts;
use crate::stand::{MODEL, PERMITS, Scale, TestBed};
use crate::table::Table;

const ACCOUNT: &str = "acme";
const RELOADS: usize = 1_000;
const PER_SECOND: f64 = 200.0;
/// Half of what eight permits can do at this rate, so a refusal is never the load's own doing.
const SERVICE_MS: u64 = 20;
/// Load before the first reload, after which memory is noted.
const SETTLING: Duration = Duration::from_secs(5);
/// Between two reloads, so that the watcher's debounce meets some of them alone.
const PAUSE: Duration = Duration::from_millis(20);
const GROWTH_GOAL_KIB: u64 = 5 * 1024;

/// Change made to the file.
#[derive(Clone, Copy)]
enum Change {
    Valid,
    Truncated,
    Removed,
    Renamed,
    AlgorithmFlip,
}

impl Change {
    const ALL: [Change; 5] = [
        Change::Valid,
        Change::Truncated,
        Change::Removed,
        Change::Renamed,
        Change::AlgorithmFlip,
    ];

    /// The answer of `POST /reload`.
    fn expected(self) -> u16 {
        match self {
            Change::Valid | Change::Renamed | Change::AlgorithmFlip => 200,
            Change::Truncated | Change::Removed => 422,
        }
    }
}

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let stand = TestBed::open(
        "reload",
        runtime,
        vec![Account::new(ACCOUNT)],
        PERMITS,
        "fair",
        16,
    )?;
    let reloads = scale.count(RELOADS);
    let stop = Arc::new(AtomicBool::new(false));
    let load = runtime.spawn(steady_load(stand.client.clone(), stop.clone()));

    std::thread::sleep(SETTLING);
    let pid = stand.gateway.process.pid();
    let before_kib = procfs::rss_kib(pid)?;
    let mut surprises = 0;
    for number in 0..reloads {
        let change = Change::ALL[number % Change::ALL.len()];
        apply(&stand, change, number)?;
        if stand.gateway.reload()? != change.expected() {
            surprises += 1;
        }
        std::thread::sleep(PAUSE);
    }
    stop.store(true, Ordering::Relaxed);
    let samples = runtime.block_on(load)?;
    let after_kib = procfs::rss_kib(pid)?;

    let failed = samples.iter().filter(|sample| sample.status != 200).count();
    table.add(
        "7",
        format!("{reloads} reloads, failed requests ({})", counts(&samples)),
        "0",
        failed.to_string(),
        failed == 0,
    );
    table.add(
        "7",
        "reloads answered otherwise than expected (200 good, 422 bad)",
        "0",
        surprises.to_string(),
        surprises == 0,
    );
    let high_water = stand.book.high_water();
    table.add(
        "7",
        "high-water mark at the backend",
        format!("≤ {PERMITS}"),
        high_water.to_string(),
        high_water <= u64::from(PERMITS),
    );
    let growth_kib = after_kib.saturating_sub(before_kib);
    table.add(
        "7",
        format!("RSS growth from {:.1} MB", before_kib as f64 / 1024.0),
        "≤ 5 MB",
        format!("{:.2} MB", growth_kib as f64 / 1024.0),
        growth_kib <= GROWTH_GOAL_KIB,
    );
    table.keep(stand.close()?);
    Ok(())
}

/// 200 requests a second, until it is told to stop and the last one is answered.
async fn steady_load(client: Client, stop: Arc<AtomicBool>) -> Vec<Sample> {
    let ask = ChatRequest::plain(ACCOUNT, MODEL, SERVICE_MS);
    let mut samples = Vec::new();
    let mut seed = 0;
    while !stop.load(Ordering::Relaxed) {
        seed += 1;
        let second = Duration::from_secs(1);
        samples.extend(crowd::arrivals(&client, &ask, PER_SECOND, second, seed).await);
    }
    samples
}

fn apply(stand: &TestBed, change: Change, number: usize) -> Fallible<()> {
    let file = &stand.gateway.config;
    let text = stand
        .gateway
        .yaml_of(&variant(stand.gateway.settings(), number));
    match change {
        Change::Valid | Change::AlgorithmFlip => std::fs::write(file, text)?,
        Change::Truncated => {
            // Twenty bytes before the end lie inside the last key's hash: the quote is never closed.
            std::fs::write(file, &text[..text.len() - 20])?;
        }
        Change::Removed => {
            // Editors that replace a file leave such a moment too.
            let _ = std::fs::remove_file(file);
        }
        Change::Renamed => {
            let beside = file.with_extension("new");
            std::fs::write(&beside, text)?;
            std::fs::rename(&beside, file)?;
        }
    }
    Ok(())
}

/// Algorithm, permits and weight differ from one reload to the next; permits never exceed `PERMITS`.
fn variant(settings: &Settings, number: usize) -> Settings {
    let mut changed = settings.clone();
    for model in &mut changed.models {
        model.algorithm = ["fair", "fifo", "priority", "token-fair"][number % 4];
        model.permits_per_endpoint = PERMITS - (number % 2) as u32 * 2;
    }
    for account in &mut changed.accounts {
        account.weight = 1 + (number % 3) as u32;
    }
    changed
}
