//! Price of a model and counting of its responses: the billing keys under `models[]`.
//!
//! Values only; `billing` computes with them. Amounts are neurons, quantities in the metric's own unit.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A linear price: `cost_per_infer + Σ coefficient × metric`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tariff {
    /// Neurons of every request that is charged.
    #[schemars(range(min = 0))]
    pub cost_per_infer: f64,
    /// Neurons per unit of a metric, by the metric's name (`input_tokens`, `output_tokens`, …).
    pub coefficients: BTreeMap<Arc<str>, f64>,
    /// Free keys a billing plugin may look at, such as `resolution: 1080p`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub criteria: BTreeMap<Arc<str>, Arc<str>>,
    /// Charge for a request that ended early after a server started work.
    pub charge_cut: ChargeCut,
    /// Charges a request, as one that was cut, when its server or a plugin failed before any byte of the
    /// response reached the client. A repeated attempt is never charged.
    pub charge_failed: bool,
}

/// Bytes of a tariff as header text, at most: 64 metrics with long names are fewer.
pub const TARIFF_TEXT_BYTES_MAX: usize = 8 * 1024;

/// Writes a tariff, or that there is none, as the value of a header: JSON in ASCII. None beyond
/// [`TARIFF_TEXT_BYTES_MAX`]. Equal tariffs have equal texts.
pub fn tariff_text(tariff: Option<&Tariff>) -> Option<String> {
    let json = serde_json::to_string(&tariff).ok()?;
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // Only strings have other characters, and JSON writes those so as well.
        match c.is_ascii() {
            true => text.push(c),
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    (text.len() <= TARIFF_TEXT_BYTES_MAX).then_some(text)
}

/// Reads what [`tariff_text`] writes.
///
/// # Errors
/// Text that is not a tariff.
pub fn read_tariff_text(text: &str) -> Result<Option<Tariff>, serde_json::Error> {
    serde_json::from_str(text)
}

/// Charge for a request whose client left, or whose deadline passed, after it was sent to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChargeCut {
    /// `cost_per_infer`, the input, and the output that was seen until then. Unseen output is not
    /// estimated.
    #[default]
    Seen,
    /// No charge.
    None,
}

/// The configuration admits only finite numbers, so that equality is reflexive.
impl Eq for Tariff {}

/// Source of the billed figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// The model server's own.
    #[default]
    Trust,
    /// The gateway's estimate. Figures of the server are not used, nor those that a task reads in its
    /// response; figures that a task computes from the input are.
    Estimate,
    /// The server's, and the event records whether the estimate agrees.
    Compare,
}

/// Sum of the reports of one metric of a request: a server's usage on a stream, and the reports of a
/// task on its events. The same rule holds for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MetricMode {
    /// Each report is the total so far: the largest counts. A total does not shrink, so that is the
    /// last one, and one that comes late or is left at 0 takes nothing away.
    Cumulative,
    /// Each report is the amount since the one before: they are summed.
    Incremental,
}

/// The plugins of a model, by their names in `plugins`, or names of built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelPlugins {
    /// Checks the input and shapes payload and response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Arc<str>>,
    /// Turns metrics into neurons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<Arc<str>>,
    /// Orders the endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tariff_as_header_text_is_ascii_and_reads_back_the_same() {
        let tariff = Tariff {
            cost_per_infer: 0.1 + 0.2,
            coefficients: BTreeMap::from([("output_tokens".into(), 0.07515)]),
            criteria: BTreeMap::from([("größe".into(), "\u{1f680} \"x\"\n".into())]),
            charge_cut: ChargeCut::None,
            charge_failed: true,
        };
        let text = tariff_text(Some(&tariff)).unwrap();
        let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
        assert!(text.bytes().all(is_plain), "{text}");
        let read = read_tariff_text(&text).unwrap().unwrap();
        assert_eq!(read.criteria, tariff.criteria);
        assert_eq!(read.charge_cut, tariff.charge_cut);
        assert!((read.cost_per_infer - tariff.cost_per_infer).abs() < 1e-15);
        assert_eq!(tariff_text(None).as_deref(), Some("null"));
        assert_eq!(read_tariff_text("null").unwrap(), None);
        assert!(read_tariff_text("{\"cost\":1}").is_err());
    }

    #[test]
    fn a_tariff_that_no_header_holds_has_no_text() {
        let long: Arc<str> = "x".repeat(TARIFF_TEXT_BYTES_MAX).into();
        let tariff = Tariff {
            criteria: BTreeMap::from([("k".into(), long)]),
            ..Tariff::default()
        };
        assert_eq!(tariff_text(Some(&tariff)), None);
    }
}
