//! Logic of the 14 model tasks, the routing policies, the linear price and the usage estimator.
//!
//! Written once and compiled twice: natively in the gateway's core and to WebAssembly in the shipped plugins.
//! No I/O, clock or randomness; `no_std` with `alloc`, so that the compiler holds that. Every function is
//! total on any bytes. Plugin authors may call it too: `infergate plugin new` writes this crate into a
//! project.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod base64;
pub mod estimate;
pub mod json;
pub mod policy;
pub mod price;
pub mod task;
