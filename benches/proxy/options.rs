//! Command line of the bench.
//! Not a general parser: a few words and their values.

use crate::kit::Fallible;

/// Rounds of a scenario; fewer say too little on a machine with neighbours.
const ROUNDS: usize = 12;
const WINDOW_MS: u64 = 250;

/// Text of `--help`.
pub const HELP: &str = "\
Cost of a request: infergate against an empty Pingora proxy, hyper and installed peers.

usage: cargo bench --bench proxy -- [OPTIONS]

  --quick         only small, streams and refusals (5 minutes); everything takes about 15
  --only A,B      only these groups of scenarios:
                    small     2 KB requests; one connection; beside vllm-router with its middleware
                    bodies    32 KB, 100 KB, 256 KB, 1 MB
                    streams   server-sent events, paced and in bursts
                    refusals  429 and 401
                    latency   open loop at half the rate of an empty Pingora proxy, and at 1,000/s
                    forward   a request that another node serves
                    calls     system calls of a request (needs strace)
                    idle      wake-ups a second
                    memory    idle, a stream, a connection, 10^6 requests
                    sizes     two threads; many accounts, models and endpoints
  --latency       the same as --only latency
  --rounds N      interleaved rounds of each scenario (12)
  --window-ms MS  length of one measured window (250; open loops take four times as long)
  --markdown      prints nothing but the tables of the README on standard output
  --check         ends with an error when a must is missed even by the smallest figures
  --help          prints this text

INFERGATE_BIN=PATH measures another binary than the one cargo has just built. Peers are found on the PATH
and in target/tools/peers/bin, where scripts/bench-peers installs them; absent ones are named and skipped.";

/// Groups of scenarios that may be chosen.
const GROUPS: &[&str] = &[
    "small", "bodies", "streams", "refusals", "latency", "forward", "calls", "idle", "memory",
    "sizes",
];
const QUICK_GROUPS: &[&str] = &["small", "streams", "refusals"];

/// Options of the command line.
pub struct Options {
    pub rounds: usize,
    pub window_ms: u64,
    groups: Vec<String>,
    /// Print the tables of the README and nothing else.
    pub markdown: bool,
    /// End with an error when a must is missed even by the smallest figures.
    pub check: bool,
}

impl Options {
    /// None when the help was asked for.
    pub fn parse(words: &[&str]) -> Fallible<Option<Self>> {
        let owned = |groups: &[&str]| groups.iter().map(|name| (*name).to_owned()).collect();
        let mut options = Self {
            rounds: ROUNDS,
            window_ms: WINDOW_MS,
            groups: owned(GROUPS),
            markdown: false,
            check: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match *word {
                // cargo adds this one by itself.
                "--bench" => {}
                "--help" | "-h" => return Ok(None),
                "--quick" => options.groups = owned(QUICK_GROUPS),
                "--latency" => options.groups = owned(&["latency"]),
                "--markdown" => options.markdown = true,
                "--check" => options.check = true,
                "--rounds" => options.rounds = value()?.parse::<usize>()?.max(1),
                "--window-ms" => options.window_ms = value()?.parse::<u64>()?.max(1),
                "--only" => options.groups = groups_of(value()?)?,
                _ => {
                    return Err(format!("unknown argument {word}; --help lists the options").into());
                }
            }
        }
        Ok(Some(options))
    }

    /// Returns whether the scenarios of a group are to run.
    pub fn includes(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }
}

fn groups_of(list: &str) -> Fallible<Vec<String>> {
    let names: Vec<String> = list.split(',').map(str::to_lowercase).collect();
    match names.iter().find(|name| !GROUPS.contains(&name.as_str())) {
        Some(unknown) => Err(format!("no group {unknown}; there are {}", GROUPS.join(", ")).into()),
        None => Ok(names),
    }
}
