//! `headers`: which headers pass between clients and model servers besides those that always do.
//!
//! Not the selection itself, which the header filter makes.

use std::sync::Arc;

use http::header::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::header_filter;

/// Headers that pass between clients and model servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Headers {
    /// Names, in lower case, of further headers that pass both ways between clients and the operator's
    /// own model servers; external endpoints never get them. Credentials for this gateway, fields of one
    /// connection and names of the gateway's own cannot be listed.
    #[schemars(length(max = 64))]
    pub pass: Vec<String>,
}

impl Headers {
    /// [`Headers::pass`] as names.
    pub fn names(&self) -> Arc<[HeaderName]> {
        let names = self
            .pass
            .iter()
            .filter(|name| header_name_error(name).is_none());
        names
            .filter_map(|name| HeaderName::try_from(name).ok())
            .collect()
    }
}

/// Reason for which `name` cannot be listed; none when it can.
pub fn header_name_error(name: &str) -> Option<String> {
    let Ok(parsed) = HeaderName::try_from(name) else {
        return Some(format!("{name:?} is not the name of a header"));
    };
    if parsed.as_str() != name {
        return Some(format!(
            "{name:?} has capitals: write {:?}",
            parsed.as_str()
        ));
    }
    header_filter::is_reserved(&parsed).then(|| {
        format!(
            "`{name}` never passes: it carries credentials, belongs to one connection or is the gateway's own to set"
        )
    })
}
