//! The plugin's `settings` of the configuration file, read key by key with every problem kept.
//!
//! Without a schema: the keys that a plugin reads are its settings, all others are unknown. The text is
//! parsed when the first key is read, so that a plugin without settings contains no parser.

use std::ops::RangeInclusive;

use infergate_tasks::policy::{SettingsReader, site_number};
use serde_json::{Map, Value};

use crate::{Plugin, Problem};

/// The settings, while they are read. A key that is null counts as not given.
pub struct Settings {
    text: String,
    unread: Option<Map<String, Value>>,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl Settings {
    /// A plugin from its settings, or all problems of them.
    pub fn read<T: Plugin>(text: &str) -> Result<T, Vec<Problem>> {
        let mut settings = Settings {
            text: text.into(),
            unread: None,
            known: Vec::new(),
            problems: Vec::new(),
        };
        let plugin = T::configure(&mut settings);
        settings.report_unknown();
        match settings.problems.is_empty() {
            true => Ok(plugin),
            false => Err(settings.problems),
        }
    }

    fn report_unknown(&mut self) {
        let Some(unread) = self.unread.take() else {
            let marks = self.text.bytes().filter(|byte| !byte.is_ascii_whitespace());
            if !(self.text.is_empty() || marks.eq(*b"{}")) {
                self.problem("", "this plugin takes no settings");
            }
            return;
        };
        let message = ["no such setting: there is ", &self.known.join(", ")].concat();
        for key in unread.keys() {
            self.problem(&pointer(key), &message);
        }
    }

    /// Records a problem at a place in the settings (RFC 6901), such as `/steps`.
    pub fn problem(&mut self, pointer: &str, message: &str) {
        self.problems.push(Problem {
            path: pointer.into(),
            message: message.into(),
        });
    }

    /// The value of a key as it stands; asking for it makes the key known.
    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        if self.unread.is_none() {
            let text = if self.text.is_empty() {
                "{}"
            } else {
                &self.text
            };
            let parsed = serde_json::from_str(text);
            if parsed.is_err() {
                self.problem("", "expected a JSON object");
            }
            self.unread = parsed.ok().or_else(|| Some(Map::new()));
        }
        self.known.push(key);
        let value = self.unread.as_mut()?.shift_remove(key);
        value.filter(|value| !value.is_null())
    }

    /// A value converted by `read`, or a problem with the expected form.
    fn read_as<V>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<V>,
    ) -> Option<V> {
        let value = self.take(key)?;
        let read = read(&value);
        if read.is_none() {
            let found = value.to_string();
            self.problem(
                &pointer(key),
                &["expected ", expected, ", found ", &found].concat(),
            );
        }
        read
    }

    /// A whole number from a range, when given.
    pub fn maybe_whole(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let (first, last) = (range.start().to_string(), range.end().to_string());
        let expected = ["a whole number from ", &first, " to ", &last].concat();
        self.read_as(key, &expected, |value| {
            let number = u32::try_from(value.as_u64()?).ok()?;
            range.contains(&number).then_some(number)
        })
    }

    /// A whole number from a range.
    pub fn whole(&mut self, key: &'static str, range: RangeInclusive<u32>, default: u32) -> u32 {
        self.maybe_whole(key, range).unwrap_or(default)
    }

    /// A site by its name or number, when given.
    pub fn maybe_site(&mut self, key: &'static str) -> Option<u32> {
        self.read_as(key, "a site's name or number", |value| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let name = value.as_str().filter(|name| !name.is_empty());
            number.or_else(|| name.map(site_number))
        })
    }

    /// A number from 0.
    pub fn number(&mut self, key: &'static str, default: f64) -> f64 {
        let from_0 = |value: &Value| value.as_f64().filter(|number| *number >= 0.0);
        let number = self.read_as(key, "a number from 0", from_0);
        number.unwrap_or(default)
    }

    /// Yes or no.
    pub fn switch(&mut self, key: &'static str, default: bool) -> bool {
        let switch = self.read_as(key, "true or false", Value::as_bool);
        switch.unwrap_or(default)
    }

    /// A text, when given.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        self.read_as(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// The position of one of `words`; the first when not given.
    pub fn word(&mut self, key: &'static str, words: &[&str]) -> usize {
        let expected = ["one of ", &words.join(", ")].concat();
        let find = |value: &Value| words.iter().position(|word| value == word);
        self.read_as(key, &expected, find).unwrap_or(0)
    }
}

/// For the standard policies.
impl SettingsReader for Settings {
    fn optional_number(&mut self, key: &'static str, (min, max): (u32, u32)) -> Option<u32> {
        self.maybe_whole(key, min..=max)
    }

    fn optional_site(&mut self, key: &'static str) -> Option<u32> {
        self.maybe_site(key)
    }

    fn word(&mut self, key: &'static str, words: &'static [&'static str]) -> usize {
        Settings::word(self, key, words)
    }
}

fn pointer(key: &str) -> String {
    ["/", &key.replace('~', "~0").replace('/', "~1")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Steps(u32, usize);

    impl Plugin for Steps {
        fn configure(settings: &mut Settings) -> Steps {
            Steps(
                settings.whole("steps", 1..=64, 8),
                settings.word("measure", &["auto", "rtt"]),
            )
        }
    }

    struct Plain;

    impl Plugin for Plain {
        fn configure(_: &mut Settings) -> Plain {
            Plain
        }
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        assert_eq!(Settings::read("{}"), Ok(Steps(8, 0)));
        assert_eq!(Settings::read(""), Ok(Steps(8, 0)));
        let given = r#"{"steps": null, "measure": "rtt"}"#;
        assert_eq!(Settings::read(given), Ok(Steps(8, 1)));
    }

    #[test]
    fn every_problem_is_told_at_once_with_its_key() {
        let given = r#"{"steps": 0, "step": 1, "measure": 7}"#;
        let problems = Settings::read::<Steps>(given).unwrap_err();
        let told: Vec<_> = problems.iter().map(|p| (&*p.path, &*p.message)).collect();
        assert_eq!(
            told,
            [
                ("/steps", "expected a whole number from 1 to 64, found 0"),
                ("/measure", "expected one of auto, rtt, found 7"),
                ("/step", "no such setting: there is steps, measure"),
            ]
        );
    }

    #[test]
    fn a_plugin_that_asks_for_nothing_takes_nothing() {
        assert!(Settings::read::<Plain>(" { } ").is_ok());
        assert!(Settings::read::<Plain>(r#"{"a": 1}"#).is_err());
    }
}
