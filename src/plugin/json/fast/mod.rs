//! Acceptance of a body by a schema in one pass over its text, without an index.
//!
//! Never a refusal: [`SchemaPlan::accepts`] is true where the validator would accept the body, and false where
//! the pass cannot tell. The caller then asks the validator, which finds the place and the words. A pass
//! allocates at most one list, of hashes, and visits a value once, however many subschemas look at it.

mod compile;
mod names;
mod number;
mod pass;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use pass::INDEXABLE;
pub(crate) use plan::SchemaPlan;
