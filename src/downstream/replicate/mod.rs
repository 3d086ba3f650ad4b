//! Requests of the Replicate API: jobs are created, shown, listed and canceled; the catalogue around them is shown.
//!
//! Not the jobs themselves, which are the durable path's.

mod answer;
mod catalog;
mod create;
mod deployments;
mod dispatch;
mod files;
mod input_check;
mod objects;
mod stream;

pub(super) use catalog::listed;
pub(super) use files::download_signed;
pub(super) use objects::base_url;
