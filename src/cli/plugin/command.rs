//! Subcommands of `infergate plugin`, as clap reads them, and the call of each.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::outcome::CommandOutcome;
use super::{bench, build, check, fuzz, inspect, lock, new, reference, replay, test, watch};
use crate::cli::output::print;
use crate::telemetry::printable_lines;

/// Commands for plugin authors.
#[derive(Subcommand)]
pub enum PluginCommand {
    /// Begin a plugin: a project that builds at once, with a working hook and two fixtures.
    #[command(after_help = new::EXAMPLES)]
    New(new::NewArgs),
    /// Build a plugin from its source: prints its size, imports and digest.
    #[command(after_help = build::EXAMPLES)]
    Build {
        /// The plugin's folder.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// File to write; with --all, the folder for all of them.
        #[arg(long, value_name = "PATH")]
        out: Option<PathBuf>,
        /// Build every plugin of the cargo workspace in the folder.
        #[arg(long)]
        all: bool,
    },
    /// Build, check and test a plugin whenever its source changes, and have a gateway reload it.
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Say whether a gateway would take a component, and if not, what to do.
    #[command(after_help = check::EXAMPLES)]
    Check(check::CheckArgs),
    /// Show what a component is, says, needs and costs.
    #[command(after_help = inspect::EXAMPLES)]
    Inspect(inspect::InspectArgs),
    /// Run a plugin's fixtures, each on a fresh and on a used instance.
    #[command(after_help = test::EXAMPLES)]
    Test(test::TestArgs),
    /// Measure a plugin's fixtures, and compare with an earlier time.
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::BenchArgs),
    /// Make one recorded call again, with names in the backtrace.
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Call a plugin with arguments by chance, until something is wrong.
    #[command(after_help = fuzz::EXAMPLES)]
    Fuzz(fuzz::FuzzArgs),
    /// Write down which bytes are meant, by their digests.
    #[command(after_help = lock::LOCK_EXAMPLES)]
    Lock(lock::LockArgs),
    /// Check that components are the ones that were locked.
    #[command(after_help = lock::VERIFY_EXAMPLES)]
    Verify(lock::VerifyArgs),
    /// Print the interfaces as WIT.
    #[command(after_help = reference::EXAMPLES)]
    Wit(reference::WitArgs),
    /// Print a reference of the interfaces, in Markdown.
    #[command(after_help = reference::EXAMPLES)]
    Doc,
}

/// Runs one of the commands.
pub fn run(command: PluginCommand) -> ExitCode {
    let ended = match command {
        PluginCommand::New(args) => new::run(&args),
        PluginCommand::Build { dir, out, all } => build::run(&dir, out.as_deref(), all),
        PluginCommand::Watch(args) => watch::run(&args),
        PluginCommand::Check(args) => check::run(&args),
        PluginCommand::Inspect(args) => inspect::run(&args),
        PluginCommand::Test(args) => test::run(&args),
        PluginCommand::Bench(args) => bench::run(&args),
        PluginCommand::Replay(args) => replay::run(&args),
        PluginCommand::Fuzz(args) => fuzz::run(&args),
        PluginCommand::Lock(args) => lock::run(&args),
        PluginCommand::Verify(args) => lock::verify(&args),
        PluginCommand::Wit(args) => reference::run(&args),
        PluginCommand::Doc => reference::doc(),
    };
    match ended {
        Ok(CommandOutcome { text, good }) => {
            print(&text);
            if good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "error: {}", printable_lines(&why));
            ExitCode::FAILURE
        }
    }
}
