//! The commands: their options, and the code that each of them runs.
//!
//! The work is done in the commands' own files, in `app` and in `simulate`.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::admin::AdminArgs;
use super::output::{print, problem};
use super::{diff, explain, gpu, jobs, key, lease, logs, plugin};
use crate::gpu::process;
use crate::plugin as plugin_host;
use crate::telemetry::printable;
use crate::{app, config, simulate};

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("INFERGATE_GIT_HASH"),
    ")"
);

const EXAMPLES: &str = "\
Examples:
  infergate demo                               try it: gateway and two simulated GPU containers
  infergate config init                        write infergate.yaml: one model server, to begin with
  infergate config example                     every key, commented
  infergate check infergate.yaml               every problem at once, with line and key
  infergate serve --config infergate.yaml      run it; the file is reloaded when it changes
  infergate upgrade --config infergate.yaml    replace the gateway that runs by this program
  infergate config diff infergate.yaml         what the file would change in the gateway that runs
  infergate explain last                       what happened to the newest request and why
  infergate jobs queues                        durable jobs: what waits and runs, and how old it is
  infergate lease --vram 20GiB -- python3 train.py   share a card with models and other jobs
  infergate logs qwen-7b -f                    what a model's process writes
  infergate gpu estimate model.gguf            how much device memory a model needs, and why
  kill -HUP $(pidof infergate)                 reload by hand
  curl -X POST http://127.0.0.1:9090/reload    the same, answering with what changed

Exit codes: 0 good, 1 problems found or a forced stop, 2 wrong arguments or a configuration that does
not load at start; each command's --help says more.";

/// A gateway in front of GPU containers: routes, admits, streams and fails over inference traffic.
#[derive(Parser)]
#[command(name = "infergate", version = VERSION, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve traffic as a configuration file says, and follow the file when it changes.
    #[command(
        after_help = "Signals: SIGHUP reloads. SIGTERM and SIGINT drain and exit 0; a \
        second one exits 1 at once.\nThe log goes to standard error; level and format are `log` in the file, \
        addresses `listen`: there are no options for them.\nExit codes: 0 drained, 1 forced, 2 the configuration does \
        not load or an address is taken."
    )]
    Serve {
        /// The configuration file (YAML).
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
    /// Replace the gateway that runs by this program, without refusing a request.
    #[command(
        after_help = "The gateway that runs is found by `state_dir` of the file. It starts this program as its successor, \
        with its own environment, hands its listening sockets over and ends with its last request. Whatever is wrong with \
        the successor, the gateway that runs serves on.\n\
        Exit codes: 0 the successor serves, 1 it does not, and why.\n\
        Example: infergate upgrade --config /etc/infergate/infergate.yaml"
    )]
    Upgrade {
        /// The configuration file (YAML) of the successor.
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check a configuration file and load its plugins: prints every problem with its key path and
    /// line.
    #[command(
        after_help = "Warnings alone are good. It listens nowhere and asks no model server.\n\
        Exit codes: 0 good, 1 problems.\nExample: infergate check infergate.yaml"
    )]
    Check {
        /// The configuration file (YAML).
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print the problems as JSON.
        #[arg(long)]
        json: bool,
        /// Warn of variables that are not set and files that are not there instead of failing: for a
        /// check where the secrets are not.
        #[arg(long)]
        allow_missing: bool,
    },
    /// Write a configuration to begin with, compare one with what runs, or print its JSON Schema or an
    /// example with every key.
    Config {
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Tell what happened to a request and why: when, where it waited, which endpoints were considered,
    /// what it cost.
    #[command(
        after_help = "Exit codes: 0 shown, 1 no such request is kept, 2 the gateway does not answer.\nExamples:\n  \
        infergate explain                                   the last 100 requests, a line each\n  \
        infergate explain last                              the newest of them\n  \
        infergate explain 9f86d081884c7d659a2feaa0c55ad015  the `x-request-id` of an answer, or `request_id` in the event file\n\n\
        A node tells of the requests that came to it, and asks the nodes that it has forwarded them to."
    )]
    Explain {
        /// The request's id, 32 hex digits, or `last`. Without it the last requests are listed.
        #[arg(value_name = "ID")]
        id: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
        /// The configuration file whose `listen.admin` is asked.
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print what the gateway answers, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// List and change the durable jobs of a gateway: cancel, requeue, pause and purge queues.
    #[command(after_help = jobs::HELP)]
    Jobs(jobs::JobsArgs),
    /// Run a command with a lease on the memory of a device: waits until there is room.
    #[command(after_help = lease::HELP)]
    Lease(lease::LeaseArgs),
    /// Show what a model's process has written, follow it, or show the process before.
    #[command(after_help = logs::HELP)]
    Logs(logs::ModelLogArgs),
    /// The device memory of models, and the leases on it: estimate, show, free.
    #[command(after_help = gpu::HELP)]
    Gpu(gpu::GpuArgs),
    /// Make API keys.
    #[command(after_help = "Example: infergate key new")]
    Key {
        #[command(subcommand)]
        what: KeyCommand,
    },
    /// Run the gateway in front of two simulated GPU containers, with curl lines to paste.
    #[command(
        after_help = "The ports of config/quickstart.yaml are used: 8080 for clients, 9090 \
        for the admin listener, 9001 and 9002 for the simulated containers; others where they are \
        taken. Its files are in a temporary folder and go when it ends."
    )]
    Demo {
        /// Three simulated models that share one simulated card, loaded when they are asked for.
        #[arg(long)]
        gpu: bool,
    },
    /// Run a simulated GPU container, for demos and tests.
    #[command(
        after_help = "Example: infergate simulate --address 127.0.0.1:9001 --dialect openai \
        --concurrency 4 --tokens-per-sec 50"
    )]
    Simulate(simulate::Config),
    /// Write plugins: build them from source.
    Plugin {
        #[command(subcommand)]
        what: plugin::PluginCommand,
    },
    /// Compile a plugin from standard input to standard output: what a gateway runs as a child.
    #[command(hide = true, name = plugin_host::COMPILER_COMMAND)]
    Compiler,
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example: infergate completions bash > /etc/bash_completion.d/infergate"
    )]
    Completions {
        /// bash, elvish, fish, powershell or zsh.
        shell: Shell,
    },
    /// Write the man pages of all commands into a folder, for packages.
    #[command(after_help = "Example: infergate man /usr/local/share/man/man1")]
    Man {
        /// The folder; it is made where it is missing.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Print a new key, and its hash for `accounts[].api_keys_sha256`.
    New,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// The JSON Schema, for editors: `# yaml-language-server: $schema=infergate.schema.json`.
    Schema,
    /// A commented file with every key.
    Example,
    /// Compare a file with the configuration that a gateway runs on, by key paths; secrets show as
    /// changed only. The gateway is not reloaded.
    #[command(
        after_help = "Exit codes: 0 no differences, 1 differences, 2 the file does not load or the gateway does not \
        answer.\nVariables of the file (`${NAME}`) come from this command's environment.\n\
        Example: infergate config diff infergate.yaml && echo it runs already"
    )]
    Diff {
        /// The configuration file (YAML).
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        admin: AdminArgs,
        /// Print the differences as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a small file that can be served as it is; a file that is there stays as it is.
    #[command(after_help = "Example: infergate config init && infergate check infergate.yaml")]
    Init {
        /// The file to make.
        #[arg(value_name = "FILE", default_value = "infergate.yaml")]
        file: PathBuf,
    },
}

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    // Before anything of a gateway is made: a keeper stays small.
    if let Some(code) = process::keep() {
        return code;
    }
    match Cli::parse().command {
        Command::Serve { config } => app::serve(&config),
        Command::Upgrade { config } => app::upgrade(&config),
        Command::Check {
            file,
            json,
            allow_missing: true,
        } => report(&file, json, app::check_allowing_missing(&file)),
        Command::Check { file, json, .. } => report(&file, json, app::check(&file)),
        Command::Config {
            what: ConfigCommand::Schema,
        } => {
            let schema = serde_json::to_string_pretty(&config::schema());
            print(&format!("{}\n", schema.expect("a schema is plain JSON")))
        }
        Command::Config {
            what: ConfigCommand::Example,
        } => print(config::EXAMPLE),
        Command::Config {
            what: ConfigCommand::Init { file },
        } => init(&file),
        Command::Config {
            what: ConfigCommand::Diff { file, admin, json },
        } => diff::run(&file, &admin, json),
        Command::Explain {
            id,
            admin,
            config,
            json,
        } => explain::run(id.as_deref(), &admin, config.as_deref(), json),
        Command::Jobs(args) => jobs::run(&args),
        Command::Lease(args) => lease::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Gpu(args) => gpu::run(&args),
        Command::Key {
            what: KeyCommand::New,
        } => match key::new() {
            Ok(text) => print(&text),
            Err(why) => {
                problem(&format!("error: {why}"));
                ExitCode::FAILURE
            }
        },
        Command::Demo { gpu: false } => app::demo(),
        Command::Demo { gpu: true } => app::demo_gpu(),
        Command::Simulate(config) => app::simulate(config),
        Command::Compiler => plugin_host::compiler(),
        Command::Plugin { what } => plugin::run(what),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "infergate", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man { folder } => write_man_pages(&folder),
    }
}

fn init(file: &Path) -> ExitCode {
    let made =
        File::create_new(file).and_then(|mut made| made.write_all(config::STARTER.as_bytes()));
    let name = file.display();
    match made {
        Ok(()) => print(&format!(
            "{name} is written: one model server on 127.0.0.1:8000, clients on 127.0.0.1:8080.\n\
             Next: infergate check {name}; infergate serve --config {name}\n"
        )),
        Err(error) => {
            let error = match error.kind() {
                ErrorKind::AlreadyExists => {
                    "it exists and stays as it is; name another file".to_owned()
                }
                _ => error.to_string(),
            };
            problem(&format!("error: {name}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn write_man_pages(folder: &Path) -> ExitCode {
    // Without `help` below each command, whose pages would say nothing.
    let command = Cli::command().disable_help_subcommand(true);
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    match written {
        Ok(()) => print(&format!("{}: man pages are written\n", folder.display())),
        Err(error) => {
            problem(&format!("error: {}: {error}", folder.display()));
            ExitCode::FAILURE
        }
    }
}

fn report(file: &Path, json: bool, checked: app::CheckedFile) -> ExitCode {
    let (problems, code) = match checked.outcome {
        Ok(loaded) => (loaded.warnings, ExitCode::SUCCESS),
        Err(problems) => (problems, ExitCode::FAILURE),
    };
    let good = code == ExitCode::SUCCESS;
    if json {
        let mut text = serde_json::json!({ "ok": good, "problems": problems });
        if let Some(host) = checked.host {
            text["gpu"] = host.json();
        }
        print(&format!("{text}\n"));
        return code;
    }
    for problem in &problems {
        let kind = if good { "warning" } else { "error" };
        let problem = printable(&problem.to_string()).into_owned();
        print(&format!("{}: {kind}: {problem}\n", file.display()));
    }
    if let Some(host) = checked.host {
        print(&host.text());
    }
    match good {
        true => print(&format!("{}: good\n", file.display())),
        false => print(&format!(
            "{}: {} problem(s)\n",
            file.display(),
            problems.len()
        )),
    };
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
