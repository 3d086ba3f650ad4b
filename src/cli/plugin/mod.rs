//! `infergate plugin …`: the commands for the authors of plugins, and for those who run them.
//!
//! Loads nothing into a gateway. Exit codes: 0 good, 1 problems found, 2 the command is not understood.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

mod bench;
pub mod build;
mod check;
mod fuzz;
mod inspect;
mod lock;
mod manifest;
mod new;
mod reference;
mod replay;
mod say;
mod target;
mod test;
mod watch;

use crate::telemetry::printable_lines;
use build::BuildOutput;

const BUILD_EXAMPLES: &str = "\
A folder with a Cargo.toml is built for wasm32-unknown-unknown and made a component; that needs rustup \
and nothing else. A folder with a package.json is built with componentize-qjs from npm. The result is \
dist/NAME.wasm in the workspace's folder, and the fixtures of the plugin beside it as dist/NAME.tests. \
Each step and how long it took is printed to standard error.

Examples:
  infergate plugin build my-prices                     one plugin
  infergate plugin build plugins --all                 every plugin of a cargo workspace
  infergate plugin build my-prices --out prices.wasm   to another place";

/// Commands for plugin authors.
#[derive(Subcommand)]
pub enum PluginCommand {
    /// Begin a plugin: a project that builds at once, with a working hook and two fixtures.
    #[command(after_help = new::EXAMPLES)]
    New(new::NewArgs),
    /// Build a plugin from its source: prints its size, imports and digest.
    #[command(after_help = BUILD_EXAMPLES)]
    Build {
        /// The plugin's folder.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Where to write it; with --all, the folder for all of them.
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

/// Output of a command, and whether it succeeded.
struct CommandOutcome {
    text: String,
    good: bool,
}

/// Runs one of the commands.
pub fn run(command: PluginCommand) -> ExitCode {
    let ended = match command {
        PluginCommand::New(args) => new::run(&args),
        PluginCommand::Build { dir, out, all } => run_build(&dir, out.as_deref(), all),
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
            super::print(&text);
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

fn run_build(dir: &Path, out: Option<&Path>, all: bool) -> Result<CommandOutcome, String> {
    let built = match all {
        true => build::build_all(dir, out),
        false => build::build(dir, out).map(|built| vec![built]),
    };
    let built = built.map_err(|error| error.to_string())?;
    let width = built.iter().map(|one| one.name.len()).max().unwrap_or(0);
    Ok(CommandOutcome {
        text: built.iter().map(|one| line(one, width)).collect(),
        good: true,
    })
}

/// `neurons  38.1 KiB  no imports  sha256 …  plugins/dist/neurons.wasm`
fn line(built: &BuildOutput, width: usize) -> String {
    let imports = match built.imports.as_slice() {
        [] => "no imports".to_owned(),
        imports => format!("imports {}", imports.join(", ")),
    };
    let here = std::env::current_dir().unwrap_or_default();
    let shown = built.path.strip_prefix(here).unwrap_or(&built.path);
    format!(
        "{:width$}  {:>7.1} KiB  {imports}  sha256 {}  {}\n",
        built.name,
        built.bytes as f64 / 1024.0,
        built.sha256,
        shown.display()
    )
}
