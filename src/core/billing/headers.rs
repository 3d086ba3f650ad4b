//! Costs that a model server reports in its response headers: `cf-ai-neurons`, and
//! `cf-ai-cost-metric-name-N` with `cf-ai-cost-metric-value-N`.
//!
//! Treated as any other report. The total is the metric [`NEURONS`]: a tariff with
//! `coefficients: { neurons: 1 }` bills the figure of such a server.

use super::charge::METRICS_MAX;

/// The metric of `cf-ai-neurons`.
pub const NEURONS: &str = "neurons";

const PREFIX: &str = "cf-ai-cost-metric-";

/// The costs among these headers: names in any case, each with its value. A pair that is not whole
/// or no number is left out. At most [`METRICS_MAX`].
pub fn cost_headers<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<(String, f64)> {
    let mut total = None;
    let mut names: Vec<(u32, String)> = Vec::new();
    let mut values: Vec<(u32, f64)> = Vec::new();
    for (header, value) in headers {
        let header = header.to_ascii_lowercase();
        let Some(text) = std::str::from_utf8(value).ok().map(str::trim) else {
            continue;
        };
        if header == "cf-ai-neurons" {
            total = text.parse().ok();
        } else if let Some(number) = numbered(&header, "name-")
            && names.len() < METRICS_MAX
        {
            names.push((number, text.to_owned()));
        } else if let Some(number) = numbered(&header, "value-")
            && values.len() < METRICS_MAX
            && let Ok(value) = text.parse()
        {
            values.push((number, value));
        }
    }
    names.sort();
    let value_of = |number| values.iter().find(|(of, _)| *of == number);
    let pairs = names
        .into_iter()
        .filter_map(|(number, name)| Some((name, value_of(number)?.1)));
    let total = total.map(|neurons| (NEURONS.to_owned(), neurons));
    total.into_iter().chain(pairs).take(METRICS_MAX).collect()
}

fn numbered(header: &str, kind: &str) -> Option<u32> {
    let number = header.strip_prefix(PREFIX)?.strip_prefix(kind)?;
    number.parse().ok()
}
