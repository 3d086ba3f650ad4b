//! Tasks: the worlds `task-schema` and `task-schema-streaming`.

pub(crate) mod body;
pub(crate) mod guest;
pub(crate) mod session;
pub(crate) mod slot;
