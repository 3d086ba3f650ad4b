//! Outcome of a command: its output, and whether it succeeded.
//!
//! Printed by `command.rs` alone.

/// Output of a command, and whether it succeeded.
pub struct CommandOutcome {
    pub text: String,
    pub good: bool,
}
