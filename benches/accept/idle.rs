//! Wake-ups of a gateway that is asked nothing, a few seconds after its last request.
//! Not a benchmark of requests: it counts how often threads of the process went to sleep by themselves.
//!
//! Other load on the machine changes nothing in it.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::client::ChatRequest;
use crate::kit::gateway::Account;
use crate::kit::{Fallible, procfs};
use crate::stand::{MODEL, PERMITS, Scale, TestBed};
use crate::table::Table;

const ACCOUNT: &str = "acme";
/// After the last request, so that nothing of it is left.
const SETTLING: Duration = Duration::from_secs(3);
/// Two health checks lie in it.
const WINDOW: Duration = Duration::from_secs(10);
const PER_SECOND_GOAL: f64 = 5.0;

pub fn run(runtime: &Runtime, _: Scale, table: &mut Table) -> Fallible<()> {
    let accounts = vec![Account::new(ACCOUNT)];
    let stand = TestBed::open("idle", runtime, accounts, PERMITS, "fair", 16)?;
    let ask = ChatRequest::plain(ACCOUNT, MODEL, 1);
    runtime.block_on(stand.client.send(&ask));
    std::thread::sleep(SETTLING);
    let pid = stand.gateway.process.pid();
    let (before, began) = (sleeps(pid)?, Instant::now());
    std::thread::sleep(WINDOW);
    let sleeps = sleeps(pid)?.saturating_sub(before);
    let per_second = sleeps as f64 / began.elapsed().as_secs_f64();
    table.add(
        "idle",
        "wake-ups of an idle gateway",
        format!("≤ {PER_SECOND_GOAL} a second"),
        format!("{per_second:.1}"),
        per_second <= PER_SECOND_GOAL,
    );
    table.keep(stand.close()?);
    Ok(())
}

/// Voluntary context switches of all threads so far: each slept, and woke before.
fn sleeps(pid: u32) -> Fallible<u64> {
    Ok(procfs::wake_ups(pid)?.values().sum())
}
