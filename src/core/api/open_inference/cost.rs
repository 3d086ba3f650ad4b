//! Costs that a model reports in tensors of its answer, named `COST_METRIC_` and the metric.
//!
//! Not a price. A cost is the sum of its tensor, whatever the shape: a value for each of a batch is a cost of the batch.
//! Bounds: [`COSTS_MAX`] metrics of an answer.

use infergate_tasks::json::{parse_list, parse_number};

/// Begin of the names of cost tensors.
const PREFIX: &str = "COST_METRIC_";
/// Metrics that one answer may report; models report one to three.
const COSTS_MAX: usize = 32;
/// Lists within lists of a tensor in JSON.
const NESTING_MAX: usize = 8;
/// The largest cost: up to here every whole number is an `f64`.
const COST_MAX: f64 = 9_007_199_254_740_992.0;

/// Returns the metric that a tensor of this name reports; none for a tensor of the client's.
pub(super) fn metric_of(tensor: &str) -> Option<&str> {
    tensor.strip_prefix(PREFIX)
}

/// Costs of one response so far: those of the tensors of all its parts, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedCosts(Vec<(String, f64)>);

impl ReportedCosts {
    /// Adds the sum of a tensor. What is no quantity is left out.
    pub fn add(&mut self, metric: &str, sum: f64) {
        if metric.is_empty() || !(0.0..=COST_MAX).contains(&sum) {
            return;
        }
        let has_room = self.0.len() < COSTS_MAX;
        let known = self.0.iter_mut().find(|(name, _)| name == metric);
        match known {
            Some((_, total)) => *total = (*total + sum).min(COST_MAX),
            None if has_room => self.0.push((metric.to_owned(), sum)),
            None => {}
        }
    }

    /// Adds all costs of another part of the response.
    pub fn add_all(&mut self, other: &ReportedCosts) {
        for (metric, sum) in &other.0 {
            self.add(metric, *sum);
        }
    }

    /// Returns whether no cost was reported.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the cost of a metric.
    pub fn get(&self, metric: &str) -> Option<f64> {
        let found = self.0.iter().find(|(name, _)| name == metric);
        found.map(|(_, sum)| *sum)
    }

    /// Returns metrics and costs, in the order of their first reports.
    pub fn iter(&self) -> impl Iterator<Item = &(String, f64)> {
        self.0.iter()
    }
}

/// Kind of number in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
}

impl NumberType {
    fn of(datatype: &str) -> Option<NumberType> {
        Some(match datatype {
            "BOOL" => NumberType::Bool,
            "INT8" => NumberType::Int8,
            "INT16" => NumberType::Int16,
            "INT32" => NumberType::Int32,
            "INT64" => NumberType::Int64,
            "UINT8" => NumberType::Uint8,
            "UINT16" => NumberType::Uint16,
            "UINT32" => NumberType::Uint32,
            "UINT64" => NumberType::Uint64,
            "FP16" => NumberType::Fp16,
            "BF16" => NumberType::Bf16,
            "FP32" => NumberType::Fp32,
            "FP64" => NumberType::Fp64,
            _ => return None,
        })
    }

    const fn bytes(self) -> usize {
        match self {
            NumberType::Bool | NumberType::Int8 | NumberType::Uint8 => 1,
            NumberType::Int16 | NumberType::Uint16 | NumberType::Fp16 | NumberType::Bf16 => 2,
            NumberType::Int32 | NumberType::Uint32 | NumberType::Fp32 => 4,
            NumberType::Int64 | NumberType::Uint64 | NumberType::Fp64 => 8,
        }
    }

    /// The number in the first bytes of `held`, least significant byte first.
    fn read(self, held: [u8; 8]) -> f64 {
        let word = u64::from_le_bytes(held);
        match self {
            NumberType::Bool | NumberType::Uint8 => f64::from(word as u8),
            NumberType::Int8 => f64::from(word as u8 as i8),
            NumberType::Int16 => f64::from(word as u16 as i16),
            NumberType::Int32 => f64::from(word as u32 as i32),
            NumberType::Int64 => word as i64 as f64,
            NumberType::Uint16 => f64::from(word as u16),
            NumberType::Uint32 => f64::from(word as u32),
            NumberType::Uint64 => word as f64,
            NumberType::Fp16 => half(word as u16),
            NumberType::Bf16 => f64::from(f32::from_bits(u32::from(word as u16) << 16)),
            NumberType::Fp32 => f64::from(f32::from_bits(word as u32)),
            NumberType::Fp64 => f64::from_bits(word),
        }
    }
}

/// A number of IEEE 754 half precision.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// Sum of a tensor in binary, whose bytes come in pieces.
#[derive(Clone, Debug, PartialEq)]
pub struct CostSum {
    metric: String,
    /// None where it holds no numbers: such a cost is none.
    number: Option<NumberType>,
    held: [u8; 8],
    filled: usize,
    total: f64,
}

impl CostSum {
    pub(super) fn new(metric: &str, datatype: &str) -> CostSum {
        CostSum {
            metric: metric.to_owned(),
            number: NumberType::of(datatype),
            held: [0; 8],
            filled: 0,
            total: 0.0,
        }
    }

    /// Adds the next bytes of the tensor.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(number) = self.number else { return };
        for &byte in bytes {
            self.held[self.filled] = byte;
            self.filled += 1;
            if self.filled == number.bytes() {
                self.total += number.read(std::mem::take(&mut self.held));
                self.filled = 0;
            }
        }
    }

    /// Adds the cost of the whole tensor to `costs`. Half a number is no cost.
    pub fn finish(self, costs: &mut ReportedCosts) {
        if self.number.is_some() && self.filled == 0 {
            costs.add(&self.metric, self.total);
        }
    }
}

/// Sum of a tensor in JSON: a number, or lists of them; none where it has anything else.
pub(super) fn sum_of_json(json: &str) -> Option<f64> {
    sum_within(json, NESTING_MAX)
}

fn sum_within(json: &str, levels: usize) -> Option<f64> {
    match json {
        "true" => return Some(1.0),
        "false" => return Some(0.0),
        _ => {}
    }
    if !json.starts_with('[') {
        return parse_number(json);
    }
    let levels = levels.checked_sub(1)?;
    let mut total = 0.0;
    for item in parse_list(json)? {
        total += sum_within(item, levels)?;
    }
    Some(total)
}
