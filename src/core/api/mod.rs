//! Wire ↔ [`Call`]: what a client asked for, in any dialect, and how an answer or a refusal is
//! written in that dialect. Bytes in, bytes out.
//!
//! It does not decide who may ask, nor where the call goes.

pub mod body;
pub mod call;
pub mod catalog;
pub mod opaque;
pub mod origin;
mod outputs;
pub mod prompt;
pub mod render;
pub mod route;
pub mod scan;
pub mod sse;
pub mod workers_ai;

pub use call::{Call, Edit, Face, Operation};
