//! What the task plugins share: reading the input, reading a server's answer, generated text.
//!
//! It is no plugin and knows no task: which members one has, and which names a server may give them,
//! stands in the plugin. Nothing here keeps state between calls; every function is total on any bytes.

pub mod answer;
mod base64;
mod describe;
pub mod embeddings;
pub mod input;
pub mod json;
pub mod labels;
pub mod stream;
pub mod text;

/// No metric is larger: the largest whole number that every JSON reader agrees on (2^53).
const METRIC_MAX: f64 = 9_007_199_254_740_992.0;

pub use answer::{Shaped, finish};
pub use describe::{Schemas, defaults, describe, hooks};
pub use input::{Input, untouched};
