//! Conformance of the embedded store.
