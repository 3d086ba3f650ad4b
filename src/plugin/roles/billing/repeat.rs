//! Repeats one price in a hundred on a fresh instance.
//!
//! Changes no charge that was made. Prices that depend on what an instance remembers are found by it: the
//! difference counts as `invalid` and is logged, and no instance of the revision is used again. Prices to
//! repeat are selected by count, not by chance. Repetition runs beside the requests, where at most a few wait
//! ([`BackgroundQueue`](crate::plugin::runtime::background::BackgroundQueue)); the others are left out and counted. Called after
//! each price.

use std::sync::atomic::Ordering;

use infergate_core::AccountId;
use infergate_core::billing::{BillingOutcome, Charge, Metric, UsageReport};
use infergate_core::model::{Tariff, Trust};

use crate::plugin::failure::Failure;
use crate::plugin::runtime::call::Caller;
use crate::plugin::runtime::revision::Revision;
use crate::telemetry::plugin_metrics::RepricingResult;

/// Repetition rate: the prices of a revision for each one that is repeated.
pub const REPEATED_ONE_IN: u64 = 100;
/// The rule that a price breaks which another instance does not confirm.
const RULE: &str = "repeat";

/// Arguments of a price call, and its answer.
struct RecordedPrice {
    account: AccountId,
    request_id: Box<str>,
    tariff: Tariff,
    model: Box<str>,
    trust: Trust,
    ending: BillingOutcome,
    streamed: bool,
    metrics: Vec<Metric>,
    queue_ms: u64,
    infer_ms: u64,
    charge: Charge,
}

impl RecordedPrice {
    fn report(&self) -> UsageReport<'_> {
        UsageReport {
            model: &self.model,
            trust: self.trust,
            ending: self.ending,
            streamed: self.streamed,
            metrics: &self.metrics,
            queue_ms: self.queue_ms,
            infer_ms: self.infer_ms,
        }
    }
}

impl Revision {
    /// Queues the repetition of a price, where it is the hundredth.
    pub fn repeat(
        &self,
        caller: Caller<'_>,
        tariff: &Tariff,
        report: &UsageReport<'_>,
        charge: &Charge,
    ) {
        if !self.reuses_instances() {
            return;
        }
        let before = self.tally.prices.fetch_add(1, Ordering::Relaxed);
        if !(before + 1).is_multiple_of(REPEATED_ONE_IN) {
            return;
        }
        let recorded = RecordedPrice {
            account: caller.account.clone(),
            request_id: caller.request_id.into(),
            tariff: tariff.clone(),
            model: report.model.into(),
            trust: report.trust,
            ending: report.ending,
            streamed: report.streamed,
            metrics: report.metrics.to_vec(),
            queue_ms: report.queue_ms,
            infer_ms: report.infer_ms,
            charge: charge.clone(),
        };
        if !self.run_in_background(move |revision| revision.repeat_now(&recorded)) {
            self.metrics().record_repricing(RepricingResult::Dropped);
        }
    }

    fn repeat_now(&self, recorded: &RecordedPrice) {
        let hook = self.billing_hook("price");
        let again = self.call_fresh(hook, |store, exports| {
            self.call_price(store, exports, &recorded.tariff, &recorded.report())
        });
        let result = compare(&recorded.charge, &again);
        self.metrics().record_repricing(result);
        // Several may have been on their way: one is enough.
        if result != RepricingResult::Different || !self.reuses_instances() {
            return;
        }
        self.disable_reuse();
        tracing::error!(
            plugin = &*self.parts.identity.name,
            sha256 = &*self.parts.identity.sha256,
            request_id = &*recorded.request_id,
            charged = recorded.charge.total,
            again = again.map_or(f64::NAN, |charge| charge.total),
            "a price depends on what an instance remembers: none of this plugin is used twice from now on"
        );
        let caller = Caller {
            account: &recorded.account,
            request_id: &recorded.request_id,
        };
        self.report_invalid(hook, caller, RULE);
    }
}

/// A failure that a busy machine can cause is no evidence about the price.
fn compare(charge: &Charge, again: &Result<Charge, Failure>) -> RepricingResult {
    match again {
        Ok(again) if again == charge => RepricingResult::Same,
        Err(Failure::Unavailable(_) | Failure::Deadline) => RepricingResult::Unknown,
        Ok(_) | Err(_) => RepricingResult::Different,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_answer_is_a_difference_and_not_a_busy_machine() {
        let one = Charge {
            total: 1.0,
            ..Charge::default()
        };
        let two = Charge {
            total: 2.0,
            ..Charge::default()
        };
        let busy = Failure::Unavailable("every instance is busy");
        for (again, found) in [
            (Ok(one.clone()), RepricingResult::Same),
            (Ok(two), RepricingResult::Different),
            (
                Err(Failure::Trapped("x".into())),
                RepricingResult::Different,
            ),
            (Err(Failure::Deadline), RepricingResult::Unknown),
            (Err(busy), RepricingResult::Unknown),
        ] {
            assert_eq!(compare(&one, &again), found, "{again:?}");
        }
    }
}
