//! Usage of a request, its price in neurons, and the daily quota; no I/O.
//!
//! Counts are read from reports of model servers ([`Usage`]), summed by the shell and priced by a
//! formula ([`Charge`]).

mod charge;
mod check;
mod estimate;
mod headers;
mod metrics;
mod quota;
mod settle;
mod usage;

pub use charge::{
    CHARGE_MAX_DEFAULT, CHARGE_MAX_NEURONS, Charge, Ending, Line, METRIC_NAME_MAX_BYTES,
    METRICS_MAX, Metric, QUANTITY_MAX, Report, Source, price,
};
pub use check::LINES_MAX;
pub use estimate::{TextCount, estimate};
pub use headers::{NEURONS, cost_headers};
pub use metrics::{MetricModes, Metrics};
pub use quota::{
    Exhausted, Quota, QuotaSnapshot, Reservation, TOLD_MAX, UnixSecs, reserve_estimate,
};
pub use settle::{Comparison, Settled, add_parts_of_input, settle};
pub use usage::Usage;

#[cfg(test)]
mod tests;
