//! Settings of a policy as it reads them, independent of where they come from and how problems are reported.

/// Reads settings one by one. Implemented by the gateway and by the SDK, which collect every problem, unknown keys
/// included.
pub trait SettingsReader {
    /// A whole number from `min` to `max`, when given. Null is not given.
    fn optional_number(&mut self, key: &'static str, range: (u32, u32)) -> Option<u32>;

    /// A site by its name or number, when given.
    fn optional_site(&mut self, key: &'static str) -> Option<u32>;

    /// Position of the value in `words`; the first when not given.
    fn word(&mut self, key: &'static str, words: &'static [&'static str]) -> usize;

    /// A whole number from `min` to `max`; `default` when not given.
    fn number(&mut self, key: &'static str, range: (u32, u32), default: u32) -> u32 {
        self.optional_number(key, range).unwrap_or(default)
    }
}
