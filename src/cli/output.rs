//! Output of the commands, cleaned of control characters.

use std::io::Write;
use std::process::ExitCode;

use crate::telemetry::{printable, printable_lines};

/// Writes to standard output, cleaned of what a component or a file could do to a terminal; a reader that closed early (`| head`) is no error.
pub fn print(text: &str) -> ExitCode {
    print_on(text);
    ExitCode::SUCCESS
}

/// Writes as above, and returns whether the reader is still there.
pub fn print_on(text: &str) -> bool {
    let text = printable_lines(text);
    std::io::stdout().write_all(text.as_bytes()).is_ok()
}

/// Writes a line to standard error, cleaned as above.
pub fn problem(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}
