//! The registry of queue disciplines: one row for each algorithm of the configuration.
//!
//! Not their interface, which stands in `discipline.rs`.

use super::discipline::Discipline;
use super::fair::Fair;
use super::fifo::Fifo;
use super::priority::Priority;
use super::token_fair::TokenFair;
use crate::model::Algorithm;

/// Returns the discipline of an algorithm, without waiters.
pub(super) fn discipline_for(algorithm: Algorithm) -> Box<dyn Discipline> {
    match algorithm {
        Algorithm::Fifo => Box::new(Fifo::default()),
        Algorithm::Fair => Box::new(Fair::new()),
        Algorithm::Priority => Box::new(Priority::default()),
        Algorithm::TokenFair => Box::new(TokenFair::new()),
    }
}
