//! `plugin wit` and `plugin doc`: the interfaces that are built in, as WIT and as Markdown.

use std::path::PathBuf;

use clap::Args;

use super::outcome::CommandOutcome;
use super::target::world;
use crate::cli::tooling::host::{wit_docs, world_text};
use crate::plugin::{World, wit};

/// `--help` of wit.
pub const EXAMPLES: &str = "\
Examples:
  infergate plugin wit --world billing-formula   what a formula exports and may import
  infergate plugin wit --out wit                 as files, with the host's package below deps
  infergate plugin doc > interfaces.md           the reference of all of it";

/// Arguments of `plugin wit`.
#[derive(Args, Debug)]
pub struct WitArgs {
    /// Only the interfaces of this world.
    #[arg(long, value_name = "WORLD", value_parser = world)]
    world: Option<World>,
    /// Write the packages as files into this folder, as bindings generators read them.
    #[arg(long, value_name = "DIR", conflicts_with = "world")]
    out: Option<PathBuf>,
}

/// Runs wit.
pub fn run(args: &WitArgs) -> Result<CommandOutcome, String> {
    let text = match &args.out {
        None => world_text(args.world),
        Some(folder) => {
            wit::write(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            format!("{}: both packages\n", folder.display())
        }
    };
    Ok(CommandOutcome { text, good: true })
}

/// Runs doc.
pub fn doc() -> Result<CommandOutcome, String> {
    Ok(CommandOutcome {
        text: wit_docs()?,
        good: true,
    })
}
