//! Reading a policy's settings: every problem at once, each with its place.

use infergate_tasks::policy::{SettingsReader, site_number};
use serde_json::{Map, Value};

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    /// The setting's key.
    pub path: String,
    /// The problem and its remedy.
    pub message: String,
}

/// The settings of one policy while they are read.
pub(super) struct PolicySettings<'a> {
    given: &'a Map<String, Value>,
    known: Vec<&'static str>,
    problems: Vec<SettingProblem>,
}

impl<'a> PolicySettings<'a> {
    pub(super) fn of(given: &'a Map<String, Value>) -> PolicySettings<'a> {
        PolicySettings {
            given,
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Returns `policy`, or all problems; keys that were not read are problems.
    pub(super) fn finish<T>(mut self, policy: T) -> Result<T, Vec<SettingProblem>> {
        for key in self.given.keys() {
            if !self.known.contains(&key.as_str()) {
                let known = match self.known.as_slice() {
                    [] => "it has none".to_owned(),
                    known => format!("it has {}", known.join(", ")),
                };
                self.problems.push(SettingProblem {
                    path: key.clone(),
                    message: format!("the policy has no such setting: {known}"),
                });
            }
        }
        if self.problems.is_empty() {
            Ok(policy)
        } else {
            Err(self.problems)
        }
    }
}

impl SettingsReader for PolicySettings<'_> {
    fn optional_number(&mut self, key: &'static str, (min, max): (u32, u32)) -> Option<u32> {
        self.known.push(key);
        let value = self.given.get(key).filter(|value| !value.is_null())?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (min..=max).contains(number));
        if number.is_none() {
            self.problems.push(SettingProblem {
                path: key.to_owned(),
                message: format!("expected a whole number from {min} to {max}, found {value}"),
            });
        }
        number
    }

    fn optional_site(&mut self, key: &'static str) -> Option<u32> {
        self.known.push(key);
        let value = self.given.get(key).filter(|value| !value.is_null())?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let name = value.as_str().filter(|name| !name.is_empty());
        let site = number.or_else(|| name.map(site_number));
        if site.is_none() {
            self.problems.push(SettingProblem {
                path: key.to_owned(),
                message: format!("expected a site's name or number, found {value}"),
            });
        }
        site
    }

    fn word(&mut self, key: &'static str, words: &'static [&'static str]) -> usize {
        self.known.push(key);
        let Some(value) = self.given.get(key).filter(|value| !value.is_null()) else {
            return 0;
        };
        let found = words.iter().position(|word| value == word);
        if found.is_none() {
            self.problems.push(SettingProblem {
                path: key.to_owned(),
                message: format!("expected one of {}, found {value}", words.join(", ")),
            });
        }
        found.unwrap_or(0)
    }
}
