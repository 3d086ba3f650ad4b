//! Names that nodes of the cluster may have: patterns in which `*` stands for any part of a name.
//!
//! Certificates are not known here. Names are compared without regard to case, as DNS does.

use std::sync::Arc;

/// The patterns of `cluster.node_names`; without any, every name is one of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeNames(Vec<Arc<str>>);

impl NodeNames {
    /// Builds the patterns of the configuration.
    pub fn new(patterns: &[Arc<str>]) -> NodeNames {
        NodeNames(patterns.to_vec())
    }

    /// Returns whether a node of the cluster may have this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| fits(pattern, name))
    }
}

/// Returns what is wrong with a pattern, if anything.
pub fn pattern_fault(pattern: &str) -> Option<&'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'*');
    match pattern {
        "" => Some("no name: remove it"),
        text if !text.bytes().all(fits) => {
            Some("no pattern of names: use letters, digits, `.`, `_`, `-`, and `*` for any part")
        }
        _ => None,
    }
}

/// O(length of both) for each `*`.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        // No `*` in it.
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_part_of_a_name_and_no_pattern_for_every_name() {
        let names = |patterns: &[&str]| {
            let patterns: Vec<Arc<str>> = patterns.iter().map(|text| Arc::from(*text)).collect();
            NodeNames::new(&patterns)
        };
        assert!(names(&[]).has("anything"));
        let fleet = names(&["gpu-*.fleet", "edge", "a*b*c"]);
        for name in ["gpu-.fleet", "GPU-17.Fleet", "edge", "abc", "aXbXc", "abbc"] {
            assert!(fleet.has(name), "{name}");
        }
        for name in ["gpu-1.fleet.evil", "xgpu-1.fleet", "edge2", "ac", "acb", ""] {
            assert!(!fleet.has(name), "{name}");
        }
        assert!(names(&["*"]).has("x") && names(&["a*"]).has("a"));
        assert!(!names(&["ab*ba"]).has("aba"), "no byte is used twice");
        assert!(pattern_fault("gpu-*").is_none());
        assert!(pattern_fault("").is_some() && pattern_fault("gpu/1").is_some());
    }
}
