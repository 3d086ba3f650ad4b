//! `plugin watch`: build, check, test and reload, again whenever the source changes.
//!
//! Runs the other commands, and asks a gateway by the admin listener; no logic of its own. Every [`POLL`] the
//! times and sizes of at most [`FILES_MAX`] files are read. A build starts once they stay the same for one
//! such interval. The signal of Ctrl-C ends it with exit code 0.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::check::{self, CheckArgs};
use super::outcome::CommandOutcome;
use super::target::PluginSelector;
use super::test::{self, TestArgs};
use super::wording::seconds;
use crate::telemetry::Clock;

/// `--help` of it.
pub const EXAMPLES: &str = "\
Each round builds the plugin as `plugin build` does, then runs `plugin check` and `plugin test`. What is
good is in dist/NAME.wasm, where a gateway with `dev: true` finds it; with --reload that gateway is asked
at once, and what it says is printed. A round with problems reloads nothing. Ctrl-C ends it.

Exit codes: 0 it was ended, 1 it could not begin.

Examples:
  infergate plugin watch                              the project in this folder
  infergate plugin watch my-prices --reload 127.0.0.1:9090
                                                      and the gateway with that admin listener";

/// Between two looks at the source.
const POLL: Duration = Duration::from_millis(300);
/// Files that are looked at; a project has tens.
const FILES_MAX: usize = 10_000;
/// Folders below each other.
const DEPTH_MAX: usize = 8;
/// Folders written by tools are no source.
const MADE: [&str; 3] = ["target", "dist", "node_modules"];
/// A gateway answers a reload within three minutes at the latest.
const RELOAD_LIMIT: Duration = Duration::from_secs(190);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// Arguments of `plugin watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// The plugin's folder.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Admin listener of a gateway that is to reload after each good round.
    #[arg(long, value_name = "ADDRESS:PORT")]
    reload: Option<String>,
}

/// Times and sizes of the source.
type FileStates = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// Runs it until a signal ends it.
pub fn run(args: &WatchArgs) -> Result<CommandOutcome, String> {
    if !args.dir.is_dir() {
        return Err(format!("{}: there is no such folder", args.dir.display()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot wait for signals: {error}"))?;
    let refused = |error| format!("cannot wait for signals: {error}");
    runtime.block_on(async {
        let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()];
        let ends = [
            signal(interrupt).map_err(refused)?,
            signal(terminate).map_err(refused)?,
        ];
        watch(args, ends).await;
        Ok::<(), String>(())
    })?;
    Ok(CommandOutcome {
        text: "ended\n".to_owned(),
        good: true,
    })
}

async fn watch(args: &WatchArgs, [mut interrupt, mut terminate]: [Signal; 2]) {
    let mut ticks = tokio::time::interval(POLL);
    // A round takes longer than a tick.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut done: Option<FileStates> = None;
    let mut latest = look(&args.dir);
    loop {
        if done.as_ref() != Some(&latest) {
            print_line(&round(args));
            print_line("waits for a change; Ctrl-C ends it\n");
            done = Some(latest);
        }
        latest = loop {
            let before = look(&args.dir);
            tokio::select! {
                biased;
                _ = interrupt.recv() => return,
                _ = terminate.recv() => return,
                _ = ticks.tick() => {}
            }
            // An editor may be in the middle of writing.
            let now = look(&args.dir);
            if now == before {
                break now;
            }
        };
    }
}

/// Builds, checks, tests and reloads; what came of it.
fn round(args: &WatchArgs) -> String {
    let began = Clock::start();
    let mut text = String::new();
    let good = steps(args, &mut text).unwrap_or_else(|why| {
        text += &format!("error: {why}\n");
        false
    });
    let word = if good { "good" } else { "not good" };
    format!("{text}{word} after {}\n", seconds(began.micros()))
}

/// Runs the steps; true when all succeeded. Each step is left out where one before it found problems.
fn steps(args: &WatchArgs, text: &mut String) -> Result<bool, String> {
    *text += &super::build::run(&args.dir, None, false)?.text;
    let which = PluginSelector {
        target: args.dir.clone(),
        world: None,
        fixtures: None,
        limits: None,
    };
    let checked = check::run(&CheckArgs::plain(which.clone()))?;
    *text += &checked.text;
    if !checked.good {
        return Ok(false);
    }
    let has_fixtures = !which.read()?.fixtures.is_empty();
    if has_fixtures {
        let tested = test::run(&TestArgs::plain(which))?;
        *text += &tested.text;
        if !tested.good {
            return Ok(false);
        }
    }
    let Some(admin) = &args.reload else {
        return Ok(true);
    };
    let (status, answer) = post_reload(admin).map_err(|why| format!("{admin}: {why}"))?;
    *text += &reloaded(status, &answer);
    Ok(status == 200)
}

/// Describes the answer of a gateway.
fn reloaded(status: u16, answer: &Value) -> String {
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    if status != 200 {
        let mut text = format!("the gateway did not reload (status {status})\n");
        for problem in list("problems") {
            let (path, message) = (&problem["path"], &problem["message"]);
            let words = [path, message].map(|word| word.as_str().unwrap_or_default());
            text += &format!("  {}: {}\n", words[0], words[1]);
        }
        return text;
    }
    let compiling: Vec<String> = list("compiling")
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    match compiling.as_slice() {
        [] => format!("reloaded: generation {}\n", answer["generation"]),
        names => format!(
            "reloaded: generation {}; still compiling {}\n",
            answer["generation"],
            names.join(", ")
        ),
    }
}

/// `POST /reload` of an admin listener: status and answer.
fn post_reload(admin: &str) -> Result<(u16, Value), String> {
    let error_text = |error: std::io::Error| error.to_string();
    let admin = admin.trim_start_matches("http://").trim_end_matches('/');
    let mut addresses = admin.to_socket_addrs().map_err(error_text)?;
    let address = addresses.next().ok_or("it has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(error_text)?;
    stream
        .set_read_timeout(Some(RELOAD_LIMIT))
        .map_err(error_text)?;
    let request = format!(
        "POST /reload HTTP/1.1\r\nHost: {admin}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(error_text)?;
    let mut answer = Vec::new();
    stream
        .take(ANSWER_MAX_BYTES)
        .read_to_end(&mut answer)
        .map_err(error_text)?;
    parsed(&String::from_utf8_lossy(&answer)).ok_or("this is no gateway's admin listener".into())
}

/// Status and JSON body of an answer; what frames the body is passed over.
fn parsed(answer: &str) -> Option<(u16, Value)> {
    let status = answer.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let json = body.get(body.find('{')?..)?;
    let mut values = serde_json::Deserializer::from_str(json).into_iter();
    Some((status.parse().ok()?, values.next()?.ok()?))
}

fn look(dir: &Path) -> FileStates {
    let mut look = FileStates::new();
    look_into(dir, 0, &mut look);
    look
}

fn look_into(dir: &Path, depth: usize, look: &mut FileStates) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Ok(about) = entry.metadata() else {
            continue;
        };
        let is_made = name.starts_with('.') || MADE.contains(&&*name) || name == "Cargo.lock";
        if is_made || look.len() >= FILES_MAX {
            continue;
        }
        if is_output(&about) {
            continue;
        }
        match about.is_dir() {
            true if depth < DEPTH_MAX => look_into(&entry.path(), depth + 1, look),
            true => {}
            false => {
                let changed = (about.modified().ok(), about.len());
                look.insert(entry.path(), changed);
            }
        }
    }
}

/// True for the file that this command writes to: its own output is no change of the source.
fn is_output(about: &fs::Metadata) -> bool {
    let of = |path| fs::metadata(path).is_ok_and(|own| is_same(&own, about));
    of("/dev/stdout") || of("/dev/stderr")
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn print_line(text: &str) {
    crate::cli::output::print(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_source_is_seen_and_what_tools_make_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("src/lib.rs", "a");
        let first = look(folder.path());
        assert_eq!(first.len(), 1);
        for made in [
            "target/x",
            "dist/p.wasm",
            "node_modules/y",
            ".git/z",
            "Cargo.lock",
        ] {
            write(made, "b");
        }
        assert_eq!(look(folder.path()), first);
        write("src/lib.rs", "ab");
        let second = look(folder.path());
        assert_ne!(second, first);
        write("tests/one.json", "{}");
        assert_ne!(look(folder.path()), second);
        fs::remove_file(folder.path().join("tests/one.json")).unwrap();
        assert_eq!(look(folder.path()), second);
    }

    #[test]
    fn what_a_gateway_answers_is_told_to_the_author() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\n \"generation\": 3, \"compiling\": [\"p\"]}\n";
        let (status, answer) = parsed(answer).unwrap();
        let printed = reloaded(status, &answer);
        assert_eq!(printed, "reloaded: generation 3; still compiling p\n");
        let refused = "HTTP/1.1 422 No\r\n\r\n2f\r\n{\"problems\":[{\"path\":\"plugins[0].file\",\"message\":\"bad\"}]}\r\n0\r\n\r\n";
        let (status, answer) = parsed(refused).unwrap();
        let printed = reloaded(status, &answer);
        assert!(
            printed.contains("422") && printed.contains("plugins[0].file: bad"),
            "{printed}"
        );
        assert_eq!(parsed("SSH-2.0\r\n"), None);
    }
}
