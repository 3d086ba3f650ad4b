//! Usage of a request, its price in neurons, and the daily quota; no I/O.
//!
//! Counts are read from reports of model servers ([`Usage`]), summed by the shell and priced by a
//! formula ([`Charge`]).

mod charge;
mod check;
mod headers;
mod metrics;
mod quota;
mod settle;
mod usage;

pub use charge::{
    BillingOutcome, CHARGE_MAX_DEFAULT, CHARGE_MAX_NEURONS, Charge, ChargeLine,
    METRIC_NAME_MAX_BYTES, METRICS_MAX, Metric, MetricSource, QUANTITY_MAX, UsageReport, price,
};
pub use check::LINES_MAX;
pub use headers::{NEURONS, cost_headers};
pub use infergate_tasks::estimate::{TextCount, estimate};
pub use metrics::{MetricModes, Metrics};
pub use quota::{
    PEER_USAGES_MAX, Quota, QuotaExhaustion, QuotaReservation, QuotaSnapshot, UnixSecs,
    reserve_estimate,
};
pub use settle::{MetricComparison, Settlement, add_parts_of_input, add_seconds_of_job, settle};
pub use usage::Usage;

#[cfg(test)]
mod tests;
