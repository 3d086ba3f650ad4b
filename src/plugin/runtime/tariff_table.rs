//! Tariffs that a guest was handed, by number: a price call names one of them instead of its texts.
//!
//! Calls no guest and prices nothing. A tariff is handed over with the model, the trust and the metrics that a
//! request was priced with; a request that differs in one of them needs another number. Bounded by
//! [`TARIFFS_MAX`]: beyond, the number that was given first is given again. Lives in the store of its guest, so that
//! it is gone with it.

use std::sync::Arc;

use infergate_core::billing::{MetricSource, UsageReport};
use infergate_core::model::{Tariff, Trust};

/// Tariffs of one guest. An account that calls more models, or whose models report ever other metrics, has
/// tariffs handed over again.
pub const TARIFFS_MAX: usize = 64;

/// Tariffs of one guest, in the order of their numbers.
#[derive(Default)]
pub struct TariffTable {
    handed: Vec<HandedTariff>,
    /// Number that is given next, once all are taken.
    oldest: usize,
    /// Number that was found last: most accounts use one.
    latest: usize,
    /// Memory of all of them, about.
    bytes: usize,
}

/// A tariff, as the guest knows it.
struct HandedTariff {
    model: Box<str>,
    trust: Trust,
    cost_per_infer: f64,
    coefficients: Vec<(Arc<str>, f64)>,
    criteria: Vec<(Arc<str>, Arc<str>)>,
    metrics: Vec<(Arc<str>, MetricSource)>,
}

impl TariffTable {
    /// Number under which the guest has this tariff for such a request.
    pub fn find(&mut self, tariff: &Tariff, report: &UsageReport<'_>) -> Option<u32> {
        let fits = |handed: &HandedTariff| handed.fits(tariff, report);
        if !self.handed.get(self.latest).is_some_and(fits) {
            self.latest = self.handed.iter().position(fits)?;
        }
        u32::try_from(self.latest).ok()
    }

    /// Number for the next tariff.
    pub fn next_number(&self) -> u32 {
        let number = match self.handed.len() {
            TARIFFS_MAX => self.oldest,
            count => count,
        };
        number as u32
    }

    /// Notes that the guest has taken this tariff under [`TariffTable::next_number`].
    pub fn record(&mut self, tariff: &Tariff, report: &UsageReport<'_>) {
        let handed = HandedTariff::of(tariff, report);
        self.bytes += handed.bytes();
        self.latest = self.next_number() as usize;
        match self.handed.get_mut(self.latest) {
            Some(former) => {
                self.bytes -= former.bytes();
                *former = handed;
                self.oldest = (self.oldest + 1) % TARIFFS_MAX;
            }
            None => self.handed.push(handed),
        }
    }

    /// Memory of the table, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl HandedTariff {
    fn of(tariff: &Tariff, report: &UsageReport<'_>) -> HandedTariff {
        let coefficients = tariff.coefficients.iter();
        let criteria = tariff.criteria.iter();
        let metrics = report.metrics.iter();
        HandedTariff {
            model: report.model.into(),
            trust: report.trust,
            cost_per_infer: tariff.cost_per_infer,
            coefficients: coefficients
                .map(|(metric, neurons)| (Arc::clone(metric), *neurons))
                .collect(),
            criteria: criteria
                .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
                .collect(),
            metrics: metrics
                .map(|metric| (Arc::clone(&metric.name), metric.source))
                .collect(),
        }
    }

    /// True when the guest would be handed the same. Texts of the configuration are the same pointers.
    fn fits(&self, tariff: &Tariff, report: &UsageReport<'_>) -> bool {
        let same = |one: &Arc<str>, other: &Arc<str>| Arc::ptr_eq(one, other) || one == other;
        let counts = [
            (self.metrics.len(), report.metrics.len()),
            (self.coefficients.len(), tariff.coefficients.len()),
            (self.criteria.len(), tariff.criteria.len()),
        ];
        counts.iter().all(|(known, given)| known == given)
            && self.cost_per_infer.to_bits() == tariff.cost_per_infer.to_bits()
            && self.trust == report.trust
            && *self.model == *report.model
            && self
                .metrics
                .iter()
                .zip(report.metrics)
                .all(|((name, source), metric)| {
                    *source == metric.source && same(name, &metric.name)
                })
            && self.coefficients.iter().zip(&tariff.coefficients).all(
                |((name, neurons), (metric, given))| {
                    neurons.to_bits() == given.to_bits() && same(name, metric)
                },
            )
            && self
                .criteria
                .iter()
                .zip(&tariff.criteria)
                .all(|((key, value), (name, given))| same(key, name) && same(value, given))
    }

    fn bytes(&self) -> usize {
        let coefficients = self.coefficients.iter().map(|(name, _)| name.len());
        let criteria = self.criteria.iter();
        let criteria = criteria.map(|(key, value)| key.len() + value.len());
        let metrics = self.metrics.iter().map(|(name, _)| name.len());
        let items = self.coefficients.len() + self.criteria.len() + self.metrics.len();
        let texts: usize = coefficients.chain(criteria).chain(metrics).sum();
        size_of::<HandedTariff>() + self.model.len() + texts + items * size_of::<[usize; 4]>()
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::billing::{BillingOutcome, Metric};

    use super::*;

    fn tariff(cost_per_infer: f64) -> Tariff {
        Tariff {
            cost_per_infer,
            coefficients: [(Arc::from("output_tokens"), 2.0)].into(),
            criteria: [(Arc::from("resolution"), Arc::from("720p"))].into(),
            ..Tariff::default()
        }
    }

    fn metric(name: &str, source: MetricSource) -> Metric {
        Metric {
            name: name.into(),
            value: 1.0,
            source,
        }
    }

    fn report<'a>(model: &'a str, metrics: &'a [Metric]) -> UsageReport<'a> {
        UsageReport {
            model,
            trust: Trust::Trust,
            ending: BillingOutcome::Completed,
            streamed: false,
            metrics,
            queue_ms: 0,
            infer_ms: 0,
        }
    }

    #[test]
    fn a_request_that_differs_in_anything_the_guest_was_handed_needs_another_number() {
        let metrics = [metric("output_tokens", MetricSource::Reported)];
        let plain = report("m", &metrics);
        let mut table = TariffTable::default();
        assert_eq!(table.find(&tariff(1.0), &plain), None);
        table.record(&tariff(1.0), &plain);
        assert_eq!(table.find(&tariff(1.0), &plain), Some(0));
        let of_another_text = metrics.clone().map(|one| Metric {
            name: one.name.to_string().into(),
            value: 9.0,
            ..one
        });
        let later = UsageReport {
            ending: BillingOutcome::CutByClient,
            streamed: true,
            queue_ms: 7,
            ..report("m", &of_another_text)
        };
        assert_eq!(table.find(&tariff(1.0), &later), Some(0));

        let estimated = [metric("output_tokens", MetricSource::Estimated)];
        let renamed = [metric("input_tokens", MetricSource::Reported)];
        let untrusted = UsageReport {
            trust: Trust::Estimate,
            ..report("m", &metrics)
        };
        for other in [
            report("n", &metrics),
            report("m", &[]),
            report("m", &estimated),
            report("m", &renamed),
            untrusted,
        ] {
            assert_eq!(table.find(&tariff(1.0), &other), None, "{other:?}");
        }
        let mut dearer = tariff(1.0);
        dearer.coefficients.insert("output_tokens".into(), 2.5);
        let mut larger = tariff(1.0);
        larger.criteria.insert("resolution".into(), "1080p".into());
        for other in [tariff(1.5), dearer, larger] {
            assert_eq!(table.find(&other, &plain), None, "{other:?}");
        }
    }

    #[test]
    fn beyond_its_bound_the_first_number_is_given_again() {
        let mut table = TariffTable::default();
        let plain = report("m", &[]);
        for cost in 0..TARIFFS_MAX {
            assert_eq!(table.next_number(), cost as u32);
            table.record(&tariff(cost as f64), &plain);
        }
        let full = table.bytes();
        for again in 0..3 {
            assert_eq!(table.next_number(), again);
            table.record(&tariff(1e3 + f64::from(again)), &plain);
            assert_eq!(table.find(&tariff(f64::from(again)), &plain), None);
            assert_eq!(
                table.find(&tariff(1e3 + f64::from(again)), &plain),
                Some(again)
            );
        }
        assert_eq!(table.find(&tariff(3.0), &plain), Some(3));
        assert_eq!(table.bytes(), full);
    }
}
