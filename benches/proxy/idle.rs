//! Wake-ups of a gateway that nobody asks: voluntary context switches of all its threads.
//! Not its CPU time, which is too little to read.
//!
//! Both gateways are used first. Called by the driver.

use std::time::{Duration, Instant};

use crate::contest::{Measurements, load};
use crate::hall::Processes;
use crate::kit::{Fallible, procfs};
use crate::options::Options;
use crate::scenarios::plan_for;
use crate::targets::{label, single};

/// Time between the last request and the first look, while connections close.
const SETTLING: Duration = Duration::from_secs(3);
/// Length of the count; it lies within the minute in which a ranking is kept up.
const COUNTED: Duration = Duration::from_secs(10);

/// Counts the wake-ups of the gateway without plugins and of that with them, one after the other.
pub fn count(hall: &Processes, options: &Options, contest: &mut Measurements) -> Fallible<()> {
    for label in [label::INFERGATE, label::WITH_PLUGINS] {
        let Some(contender) = hall.find(label) else {
            continue;
        };
        load(&plan_for(hall, contender, options))?;
        std::thread::sleep(SETTLING);
        let pid = *contender.pids.first().ok_or("a contender has a process")?;
        let (before, began) = (procfs::wake_ups(pid)?, Instant::now());
        std::thread::sleep(COUNTED);
        let (after, seconds) = (procfs::wake_ups(pid)?, began.elapsed().as_secs_f64());
        let mut total = 0.0;
        for (thread, count) in after {
            let earlier = before.get(&thread).copied().unwrap_or(0);
            let per_second = count.saturating_sub(earlier) as f64 / seconds;
            total += per_second;
            if per_second >= 0.05 {
                eprintln!("{label}, thread {thread}: {per_second:.1} wake-ups a second");
            }
        }
        contest.record(single::WAKE_UPS, label, total)?;
    }
    Ok(())
}
