//! Tools for plugin authors: the host as the commands `infergate plugin …` use it.
//!
//! No part of a running gateway: nothing outside of the CLI uses it.

mod arg_generator;
mod component_info;
pub mod encode;
pub(crate) mod host;
mod keywords;
#[cfg(test)]
mod tests;
mod wit_docs;
