//! Parsers of what strangers send, fed with seeds that are changed at random; `just fuzz` does the same with a guide.
//!
//! Some thousands of inputs each; `INFERGATE_FUZZ_SECS` asks for so many seconds each instead, by other random numbers every
//! time. The seed is printed, and `INFERGATE_FUZZ_SEED` repeats it. Parsers of the core have such tests beside them.

use std::path::{Path, PathBuf};

use infergate_core::Millis;

use crate::fuzz_targets as targets;
use crate::telemetry::Clock;

/// Inputs of each parser in a usual run.
const INPUTS: usize = 20_000;
/// Longest input: what grows without a bound would show with less.
const INPUT_BYTES_MAX: usize = 4_096;
/// Changes of one input.
const CHANGES_MAX: u64 = 6;

/// Pieces that parsers look for, put in anywhere.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\0",
    b"\"",
    b"\\u0000",
    b"{}",
    b"[[[[",
    b": ",
    b"0\r\n\r\n",
    b"ffffffffffffffff",
    b"18446744073709551616",
    b"-1",
    b"--",
    b";",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n",
    b"data: ",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"&a *a",
];

/// Random numbers (xorshift64*, <https://doi.org/10.1145/2845077>).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        number as usize % bound.max(1)
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        let rest = bytes.len() - at;
        let some = self.below(rest.min(16) + 1);
        match self.below(8) {
            0 if rest > 0 => bytes[at] ^= 1 << self.below(8),
            1 if rest > 0 => bytes[at] = self.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + some)),
            4 => {
                let again = bytes[at..at + some].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let from = self.below(other.len() + 1);
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let word = WORDS[self.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
        }
        bytes.truncate(INPUT_BYTES_MAX);
    }
}

/// Input that is being parsed, printed if that fails.
struct Input<'a>(&'a [u8], usize);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("cut at {}: \"{}\"", self.1, self.0.escape_ascii());
        }
    }
}

/// Files of `fuzz/{folder}`, by name.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz")
        .join(folder);
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Feeds a parser with each seed of `target`, then with changed ones.
fn feed(target: &str, parse: fn(&[u8], usize)) {
    let seeds = files(&format!("seeds/{target}"));
    let seeds: Vec<Vec<u8>> = seeds
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let clock = Clock::start();
    let limit = variable("INFERGATE_FUZZ_SECS").map(Millis::from_secs);
    let by_time = limit.map(|_| clock.unix_secs());
    let seed = variable("INFERGATE_FUZZ_SEED").or(by_time).unwrap_or(1);
    println!("INFERGATE_FUZZ_SEED={seed}");
    let mut random = Random(seed);
    for seed in &seeds {
        for cut in 0..=seed.len() {
            let _shown = Input(seed, cut);
            parse(seed, cut);
        }
    }
    let start = clock.now();
    let mut inputs = 0;
    while limit.map_or(inputs < INPUTS, |limit| clock.now() < start + limit) {
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        for _ in 0..=random.below(CHANGES_MAX as usize) {
            random.change(&mut input, other);
        }
        let cut = random.below(input.len() + 1);
        let _shown = Input(&input, cut);
        parse(&input, cut);
        inputs += 1;
    }
    println!("{inputs} inputs");
}

/// A test for each parser, and the list of them.
macro_rules! fed {
    ($($target:ident),* $(,)?) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];
        $(
            #[test]
            fn $target() {
                feed(stringify!($target), targets::$target);
            }
        )*
    };
}

fed!(
    answers_of_tensors,
    bodies_of_requests,
    configurations,
    datagrams_of_gossip,
    events_of_servers,
    forms_as_they_come,
    forms_of_files,
    frames_of_websockets,
    headers_of_balancers,
    headers_of_models,
    headers_of_sound,
    headers_that_pass,
    heads_of_forwards,
    members_of_json,
    requests_of_http1,
    responses_of_http1,
    results_of_tensors,
    values_of_gossip,
);

/// Each target of these tests is fuzzed too.
#[test]
fn each_parser_has_a_target_with_seeds() {
    let stem = |file: &PathBuf| file.file_stem().unwrap().to_str().unwrap().to_owned();
    let manifest =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml"));
    let manifest = manifest.unwrap();
    for folder in ["seeds", "targets"] {
        let found: Vec<String> = files(folder).iter().map(stem).collect();
        assert_eq!(found, TARGETS, "{folder}");
    }
    for (target, file) in TARGETS.iter().zip(files("targets")) {
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "{target}"
        );
        let text = std::fs::read_to_string(file).unwrap();
        assert!(
            text.contains(&format!("run({target}, bytes)")),
            "{target}: {text}"
        );
        assert!(!files(&format!("seeds/{target}")).is_empty());
    }
}
