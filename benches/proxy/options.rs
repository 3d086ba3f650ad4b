//! Command line of the bench.
//! Not a general parser: five words and their values.
//!
//! `--seconds` is the length of one measured window, `--rounds` how often each scenario is repeated.

use crate::kit::Fallible;

/// Length of a window, so that five rounds of T1, T4 and T7 end within four minutes.
const QUICK_SECONDS: f64 = 1.5;
/// Length of a window, so that five rounds of everything end within thirty minutes.
const FULL_SECONDS: f64 = 2.0;

/// Options of the command line.
pub struct Options {
    /// Only the scenarios of T1, T4 and T7.
    pub quick: bool,
    pub rounds: usize,
    seconds: Option<f64>,
    only: Option<Vec<String>>,
    /// End with an error when a target is missed even by its best round.
    pub check: bool,
}

impl Options {
    pub fn parse(words: &[&str]) -> Fallible<Self> {
        let mut options = Self {
            quick: false,
            rounds: 5,
            seconds: None,
            only: None,
            check: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match *word {
                // cargo adds this one by itself.
                "--bench" => {}
                "--quick" => options.quick = true,
                "--check" => options.check = true,
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.seconds = Some(value()?.parse()?),
                "--only" => {
                    options.only = Some(value()?.split(',').map(str::to_lowercase).collect());
                }
                _ => {
                    return Err(format!(
                        "unknown argument {word}; known: --quick --rounds N --seconds S --only t1,t4 --check"
                    )
                    .into());
                }
            }
        }
        Ok(options)
    }

    /// Returns whether the scenarios of a target are to run.
    pub fn includes(&self, target: &str) -> bool {
        match &self.only {
            Some(only) => only.iter().any(|name| name == target),
            None => !self.quick || matches!(target, "t1" | "t4" | "t7"),
        }
    }

    pub fn window_ms(&self) -> u64 {
        let seconds = self.seconds.unwrap_or(match self.quick {
            true => QUICK_SECONDS,
            false => FULL_SECONDS,
        });
        (seconds * 1_000.0) as u64
    }
}
