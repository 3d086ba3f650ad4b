//! The binary: arguments → role → `app`.

use std::process::ExitCode;

fn main() -> ExitCode {
    infergate::cli::run()
}
