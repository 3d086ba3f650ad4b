//! The file of ceilings: one section read, judged by, or written anew with its comments kept.
//!
//! Not a TOML library: a line is a `[section]`, `name = number` with a comment behind it, a comment, or empty.
//! `benches/count/ceilings.py` reads the same file.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Shares by which a figure may pass its ceiling, and fall below it before the ceiling has to follow.
const PASSED_SHARE: f64 = 0.03;
const FALLEN_SHARE: f64 = 0.05;
/// Difference that says nothing: a timer that allocates once in ten requests or events.
const NOISE: f64 = 0.1;

/// How a figure compares with its ceiling.
pub enum Verdict {
    Held,
    Fallen,
    Passed,
}

/// Names and ceilings of a section.
pub struct Ceilings(Vec<(String, f64)>);

impl Ceilings {
    /// Reads a section of the file.
    pub fn read(section: &str) -> Ceilings {
        let text = std::fs::read_to_string(path()).expect("the file of ceilings is read");
        let mut current = "";
        let mut ceilings = Vec::new();
        for line in text.lines() {
            if let Some(name) = section_of(line) {
                current = name;
            } else if current == section
                && let Some((name, figure, _)) = entry(line)
            {
                ceilings.push((name.to_owned(), figure));
            }
        }
        Ceilings(ceilings)
    }

    /// Verdict on a figure, and its ceiling.
    pub fn judge(&self, name: &str, figure: f64) -> (Verdict, f64) {
        let of_name = self.0.iter().find(|(other, _)| other == name);
        let (_, ceiling) = of_name.expect("every scenario has a ceiling");
        let verdict = if figure > ceiling + NOISE.max(ceiling * PASSED_SHARE) {
            Verdict::Passed
        } else if figure < ceiling - NOISE.max(ceiling * FALLEN_SHARE) {
            Verdict::Fallen
        } else {
            Verdict::Held
        };
        (verdict, *ceiling)
    }
}

/// Writes `figures` over those of the section; all other lines stay as they are.
pub fn write(section: &str, figures: &[(&str, f64)]) {
    let text = std::fs::read_to_string(path()).expect("the file of ceilings is read");
    let mut current = "";
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        current = section_of(line).unwrap_or(current);
        let replaced = entry(line).filter(|_| current == section);
        let figure = replaced.and_then(|(name, _, comment)| {
            let (name, figure) = figures.iter().find(|(other, _)| *other == name)?;
            Some((name, figure, comment))
        });
        let _ = match figure {
            Some((name, figure, comment)) => writeln!(written, "{name} = {figure}{comment}"),
            None => writeln!(written, "{line}"),
        };
    }
    std::fs::write(path(), written).expect("the file of ceilings is written");
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/ceilings.toml")
}

fn section_of(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.strip_suffix(']')
}

/// Name, figure, and the rest of the line.
fn entry(line: &str) -> Option<(&str, f64, &str)> {
    let (name, value) = line.split_once(" = ")?;
    let end = value.find([' ', '#']).unwrap_or(value.len());
    let figure = value[..end].replace('_', "").parse().ok()?;
    Some((name, figure, &value[end..]))
}
