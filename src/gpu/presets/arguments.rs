//! Arguments of a server as an operator writes them: values of options, and options that are not theirs to set.
//!
//! Reads `--option value` and `--option=value`; which options there are is the rows' matter.

use super::preset::{Preset, ReservedOption};

/// Returns the value of the last option of these names.
pub fn option_value<'a>(arguments: &[&'a str], names: &[&str]) -> Option<&'a str> {
    let is_meant = |at: &usize| names.contains(&option(arguments[*at]).0);
    let last = (0..arguments.len()).rev().find(is_meant)?;
    value_at(arguments, last)
}

/// Use of an option that is reserved.
#[derive(Debug)]
pub struct ReservedUse<'a> {
    /// Place among the arguments.
    pub at: usize,
    /// Option as it is written.
    pub name: &'a str,
    /// Reason.
    pub why: &'static str,
}

/// Returns the uses of options that a preset reserves.
pub fn reserved_uses<'a>(preset: &Preset, arguments: &[&'a str]) -> Vec<ReservedUse<'a>> {
    let mut uses = Vec::new();
    for (at, argument) in arguments.iter().enumerate() {
        let (name, _) = option(argument);
        let is_meant = |reserved: &&ReservedOption| reserved.names.contains(&name);
        let Some(reserved) = preset.reserved.iter().find(is_meant) else {
            continue;
        };
        if reserved.allowed.is_none() || value_at(arguments, at) != reserved.allowed {
            let why = reserved.why;
            uses.push(ReservedUse { at, name, why });
        }
    }
    uses
}

fn value_at<'a>(arguments: &[&'a str], at: usize) -> Option<&'a str> {
    match option(arguments[at]).1 {
        Some(value) => Some(value),
        None => arguments.get(at + 1).copied(),
    }
}

/// Name of an option, with the value behind its `=`.
fn option(argument: &str) -> (&str, Option<&str>) {
    match argument.split_once('=') {
        Some((name, value)) if name.starts_with('-') => (name, Some(value)),
        _ => (argument, None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::preset;
    use super::*;

    #[test]
    fn the_last_value_of_an_option_counts() {
        let arguments = ["-ub", "512", "--ubatch-size=1024", "x", "-ctk"];
        let names = ["-ub", "--ubatch-size"];
        assert_eq!(option_value(&arguments, &names), Some("1024"));
        assert_eq!(option_value(&arguments, &["-ctk"]), None);
        assert_eq!(option_value(&arguments, &["-ctv"]), None);
    }

    #[test]
    fn options_that_break_the_accounting_are_named() {
        let uses = |name: &str, arguments: &[&str]| -> Vec<usize> {
            let uses = reserved_uses(preset(name).unwrap(), arguments);
            uses.iter().map(|found| found.at).collect()
        };
        assert_eq!(uses("llama-server", &["--fit", "on"]), [0]);
        assert_eq!(uses("llama-server", &["--fit=on", "-fa", "on"]), [0]);
        assert!(uses("llama-server", &["--fit", "off", "-ub", "256"]).is_empty());
        assert_eq!(uses("llama-server", &["-fa", "on", "--port", "1"]), [2]);
        assert_eq!(uses("vllm", &["--gpu-memory-utilization=0.9"]), [0]);
        assert_eq!(uses("sglang", &["--mem-fraction-static", "0.9"]), [0]);
        assert_eq!(uses("tgi", &["-p", "80"]), [0]);
        assert_eq!(uses("tei", &["--hostname", "::"]), [0]);
        assert_eq!(uses("simulate", &["--vram-mib", "5"]), [0]);
    }
}
