//! Prices in numbers: usage and charge as formulas see them, and their places in the memory of the guest.
//!
//! Knows no formula. `price` is exported by hand: bindings would allocate the lines of each charge and free them in a
//! second call. Here the charge of an instance has one place, which the next price takes again.

use std::sync::{Mutex, PoisonError};

use crate::bindings::pricing::exports::infergate::plugin::pricing as wit;
use crate::{Billing, BillingError, Outcome, Tariff};

/// Numbers that the gateway gives to tariffs: more are its fault.
const TARIFFS_MAX: u32 = 64;

/// Usage of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage<'a> {
    /// End of the request.
    pub outcome: Outcome,
    /// The response was a stream.
    pub streamed: bool,
    /// Milliseconds spent waiting.
    pub queue_ms: u64,
    /// Milliseconds with a permit.
    pub infer_ms: u64,
    /// Totals over the whole response, in the order of the tariff's `metrics`; zeros may follow.
    pub quantities: &'a [f64],
}

/// A part of a charge.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Line {
    /// Index of a metric of the tariff.
    pub metric: u32,
    /// Its quantity.
    pub quantity: f64,
    /// Its price.
    pub neurons: f64,
}

/// The price of a request; empty when the formula gets it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charge {
    /// `base` plus all lines, finite and not negative.
    pub total: f64,
    /// Independent of any metric.
    pub base: f64,
    /// Parts by metric, at most 256.
    pub lines: Vec<Line>,
    /// Metrics that the client may see: bit 0 is the tariff's first one.
    pub visible: u64,
}

impl Charge {
    /// Adds neurons that depend on no metric.
    pub fn add_base(&mut self, neurons: f64) {
        self.base += neurons;
        self.total += neurons;
    }

    /// Adds a line of a metric, by its index.
    pub fn add_line(&mut self, metric: u32, quantity: f64, neurons: f64) {
        self.total += neurons;
        self.lines.push(Line {
            metric,
            quantity,
            neurons,
        });
    }

    /// Shows a metric to the client.
    pub fn show(&mut self, metric: u32) {
        self.visible |= 1_u64.checked_shl(metric).unwrap_or(0);
    }

    fn clear(&mut self) {
        self.total = 0.0;
        self.base = 0.0;
        self.lines.clear();
        self.visible = 0;
    }
}

/// Tariffs of an instance, as its formula keeps them, and its latest charge.
pub struct Formula<P: Billing>(Mutex<FormulaState<P>>);

struct FormulaState<P: Billing> {
    /// By number.
    terms: Vec<Option<P::Terms>>,
    charge: Charge,
    error: String,
    answer: [u64; 5],
}

/// Scalars of a call, as the canonical ABI flattens them: `quantities` is a case with eight words.
#[derive(Clone, Copy, Debug)]
pub struct FlatUsage {
    pub outcome: u32,
    pub streamed: u32,
    pub queue_ms: u64,
    pub infer_ms: u64,
}

impl<P: Billing> Formula<P> {
    /// Without any tariff.
    pub const fn new() -> Formula<P> {
        Formula(Mutex::new(FormulaState {
            terms: Vec::new(),
            charge: Charge {
                total: 0.0,
                base: 0.0,
                lines: Vec::new(),
                visible: 0,
            },
            error: String::new(),
            answer: [0; 5],
        }))
    }

    /// Takes a tariff under its number.
    pub fn set_tariff(&self, plugin: &P, number: u32, tariff: &Tariff) -> Result<(), BillingError> {
        if number >= TARIFFS_MAX {
            return Err(BillingError::Broken("no such number of a tariff".into()));
        }
        let terms = plugin.terms(tariff)?;
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = number as usize;
        if state.terms.len() <= at {
            state.terms.resize_with(at + 1, || None);
        }
        state.terms[at] = Some(terms);
        Ok(())
    }

    /// Prices a request; the address of the answer, which the next call takes again.
    pub fn price(
        &self,
        plugin: Result<&P, String>,
        number: u32,
        usage: FlatUsage,
        quantities: &[f64],
    ) -> *const u64 {
        let usage = Usage {
            outcome: outcome(usage.outcome),
            streamed: usage.streamed != 0,
            queue_ms: usage.queue_ms,
            infer_ms: usage.infer_ms,
            quantities,
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let priced = plugin
            .map_err(BillingError::Broken)
            .and_then(|plugin| state.price(plugin, number, &usage));
        state.answer = match priced {
            Ok(()) => state.charge.words(),
            Err(error) => state.error_words(error),
        };
        state.answer.as_ptr()
    }
}

impl<P: Billing> Default for Formula<P> {
    fn default() -> Formula<P> {
        Formula::new()
    }
}

impl<P: Billing> FormulaState<P> {
    fn price(&mut self, plugin: &P, number: u32, usage: &Usage<'_>) -> Result<(), BillingError> {
        let Some(Some(terms)) = self.terms.get(number as usize) else {
            return Err(BillingError::Broken("no tariff of this number".into()));
        };
        self.charge.clear();
        plugin.price(terms, usage, &mut self.charge)
    }

    /// The error case of the result: its kind, and a text that stays until the next call.
    fn error_words(&mut self, error: BillingError) -> [u64; 5] {
        let (kind, text) = match error {
            BillingError::UnknownMetric(text) => (0, text),
            BillingError::BadValue(text) => (1, text),
            BillingError::Broken(text) => (2, text),
        };
        self.error = text;
        let at = address(self.error.as_ptr());
        [1, kind | at << 32, self.error.len() as u64, 0, 0]
    }
}

impl Charge {
    /// The good case of the result, as the canonical ABI lays it out.
    fn words(&self) -> [u64; 5] {
        let lines = address(self.lines.as_ptr()) | (self.lines.len() as u64) << 32;
        [
            0,
            self.total.to_bits(),
            self.base.to_bits(),
            lines,
            self.visible,
        ]
    }
}

/// An address of a guest has 32 bits.
fn address<T>(at: *const T) -> u64 {
    u64::from(at as usize as u32)
}

/// The host has checked the case.
fn outcome(case: u32) -> Outcome {
    match case {
        0 => Outcome::Completed,
        1 => Outcome::CutByClient,
        2 => Outcome::CutByBackend,
        3 => Outcome::CutByDeadline,
        _ => Outcome::Failed,
    }
}

/// Export `price` of the bindings, for their trait: never called, because `export_billing!` exports
/// [`Formula::price`] under that name.
pub fn unexported() -> Result<wit::Charge, BillingError> {
    Err(BillingError::Broken("`price` is exported by hand".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coefficient, Metric, Plugin, Settings, Source, Trust, price};

    struct Twice;

    impl Plugin for Twice {
        fn configure(_: &mut Settings) -> Twice {
            Twice
        }
    }

    impl Billing for Twice {
        type Terms = price::Linear;

        fn terms(&self, tariff: &Tariff) -> Result<price::Linear, BillingError> {
            match tariff.coefficients.is_empty() {
                true => Err(BillingError::UnknownMetric("x".into())),
                false => Ok(price::Linear::new(tariff)),
            }
        }

        fn price(
            &self,
            terms: &price::Linear,
            usage: &Usage<'_>,
            charge: &mut Charge,
        ) -> Result<(), BillingError> {
            if usage.streamed {
                return Err(BillingError::BadValue("streamed".into()));
            }
            terms.add_to(charge, usage, 2.0);
            Ok(())
        }
    }

    fn tariff(metrics: &[&str]) -> Tariff {
        let metric = |name: &&str| Metric {
            name: (*name).into(),
            source: Source::ModelReported,
        };
        let coefficient = |(metric, neurons): (&str, f64)| Coefficient {
            metric: metric.into(),
            neurons,
        };
        Tariff {
            model: "m".into(),
            trust: Trust::Trust,
            cost_per_infer: 1.0,
            coefficients: [("b", 3.0), ("a", 0.5)].map(coefficient).into(),
            criteria: Vec::new(),
            metrics: metrics.iter().map(metric).collect(),
        }
    }

    fn usage(streamed: u32) -> FlatUsage {
        FlatUsage {
            outcome: 0,
            streamed,
            queue_ms: 0,
            infer_ms: 0,
        }
    }

    /// The words of an answer, of which the formula keeps a copy.
    fn priced(formula: &Formula<Twice>, number: u32, streamed: u32, given: &[f64]) -> [u64; 5] {
        formula.price(Ok(&Twice), number, usage(streamed), given);
        formula
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .answer
    }

    #[test]
    fn a_charge_is_laid_out_as_the_canonical_abi_wants_it() {
        let formula = Formula::<Twice>::new();
        let metrics = tariff(&["x", "a", "b"]);
        formula
            .set_tariff(&Twice, 1, &metrics)
            .expect("it has coefficients");
        let words = priced(&formula, 1, 0, &[9.0, 4.0, 2.0]);
        assert_eq!(words[0], 0);
        assert_eq!(words[1..3], [18.0_f64.to_bits(), 2.0_f64.to_bits()]);
        assert_eq!((words[3] >> 32, words[4]), (2, 0b110));
        let state = formula.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |metric, quantity, neurons| Line {
            metric,
            quantity,
            neurons,
        };
        assert_eq!(state.charge.lines, [line(1, 4.0, 4.0), line(2, 2.0, 12.0)]);
        assert_eq!(size_of::<Line>(), 24);
    }

    #[test]
    fn an_error_keeps_its_kind_and_its_text() {
        let formula = Formula::<Twice>::new();
        formula
            .set_tariff(&Twice, 0, &tariff(&[]))
            .expect("it has coefficients");
        let words = priced(&formula, 0, 1, &[]);
        assert_eq!((words[0], words[1] & 0xff, words[2]), (1, 1, 8));
        assert_eq!(priced(&formula, 3, 0, &[])[..1], [1]);
        let mut empty = tariff(&[]);
        empty.coefficients.clear();
        for (number, tariff) in [(0, &empty), (64, &tariff(&[]))] {
            assert!(formula.set_tariff(&Twice, number, tariff).is_err());
        }
        // The tariff that was refused has not replaced the one before.
        assert_eq!(priced(&formula, 0, 0, &[])[..2], [0, 2.0_f64.to_bits()]);
    }
}
