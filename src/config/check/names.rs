//! Names in the configuration: which are valid, and the anonymous account.
//!
//! Not who refers to a name, which the parts check.

use infergate_core::AccountId;

use crate::config::document::Cursor;

/// Returns true when requests without a key are served.
pub(super) fn anonymous_allowed(root: &Cursor<'_>) -> bool {
    root.text_of("anonymous") == Some("allow")
}

pub(super) fn is_anonymous(id: &str) -> bool {
    id == AccountId::ANONYMOUS
}

/// A name travels in URLs, header values, metric labels and log lines.
const NAME_BYTES_MAX: usize = 256;

/// Fault that makes `name` unfit as a name, if any.
pub(super) fn name_fault(name: &str, unfit: &[char]) -> Option<String> {
    if name.is_empty() {
        return Some("must not be empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("longer than {NAME_BYTES_MAX} bytes"));
    }
    if let Some(bad) = name
        .chars()
        .find(|c| !c.is_ascii_graphic() || unfit.contains(c))
    {
        return Some(format!(
            "{bad:?} cannot stand in a name: use letters, digits and -_.@:/"
        ));
    }
    None
}
