//! `infergate plugin …`: the commands for the authors of plugins, and for those who run them.
//!
//! Loads nothing into a gateway. Exit codes: 0 good, 1 problems found, 2 the command is not understood.

mod bench;
pub mod build;
mod check;
mod command;
mod fuzz;
mod inspect;
mod lock;
mod manifest;
mod new;
mod outcome;
mod reference;
mod replay;
mod target;
mod test;
mod watch;
mod wording;

pub use command::{PluginCommand, run};
