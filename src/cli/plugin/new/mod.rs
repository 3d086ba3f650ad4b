//! `plugin new`: a new project from templates.

mod files;
mod project;

pub use project::{EXAMPLES, NewArgs, run};
