//! The binary: arguments → role → `app`.

use std::process::ExitCode;

/// Most small allocations are those of the HTTP session below us; what is known of the choice:
/// `docs/decisions/005-mimalloc.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    infergate::cli::run()
}
