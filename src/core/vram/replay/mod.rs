//! Replay of a recorded day: what another policy, other settings of it or another card would have done.
//!
//! Reads no file: lines are arguments. A [`Recording`] is read line by line from lifecycle events, and [`replay`] plays
//! its demand in virtual time against the pool that a gateway runs. Requests of a recording are counts, so that their
//! moments, accounts and times with a permit are those of the line that counts them.
//!
//! ```text
//! lines  ←  tally
//! lines, summary  ←  recording  ←  model  ←  host
//! ```

mod host;
mod lines;
mod model;
mod recording;
mod summary;
mod tally;
#[cfg(test)]
mod tests;

pub use host::{ReplayOptions, replay};
pub use lines::{DEMAND_EVENT, DemandLine, DeviceLine, HOST_EVENT, HostLine, ModelLine, RuleLine};
pub use recording::{LINE_BYTES_MAX, Recording, RecordingError, RecordingReader, TraceLineError};
pub use summary::{RunFigures, WaitTimes};
pub use tally::DemandTally;
