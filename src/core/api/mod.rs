//! API dialects, bytes ↔ [`Call`]: parses a request of any dialect and writes responses and refusals
//! in that dialect.
//!
//! Neither authentication nor routing is decided here.

mod anthropic;
pub mod arriving_form;
mod barred;
pub mod body;
pub mod call;
pub mod chat_template;
pub mod cog;
pub mod dialect;
pub mod dialects;
pub mod form;
mod json;
pub mod json_text;
pub mod loopback;
pub mod open_inference;
pub mod openai;
pub mod openapi;
pub mod origin;
mod outputs;
pub mod passed;
mod passed_api;
pub mod prompt;
pub mod render;
pub mod replicate;
pub mod route;
pub mod scan;
pub mod sse;
mod tensor_request;
pub mod wav;
pub mod workers_ai;

pub use workers_ai::catalog;

pub use barred::{Barred, BarredFault, BarredNames};
pub use call::{ApiDialect, Call, Operation, RangeEdit};
