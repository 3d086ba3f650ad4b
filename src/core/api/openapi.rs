//! Description of the APIs as an OpenAPI document, compiled in.
//!
//! Requests are matched by the dialects and not by this document; a test compares both, so that no route is left out.
//! Specification: <https://spec.openapis.org/oas/v3.1.1.html>.

/// Path of the document.
pub const PATH: &str = "/openapi.json";

/// The document. A method without a name there, `QUERY`, stands as `x-query`.
pub const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests;
