//! The estimate against files that are built in memory: known figures, other layouts, hostile bytes.
//!
//! `INFERGATE_FUZZ_SECS=600 cargo test -p infergate-core --lib vram::estimate` mutates each kind of file for so long,
//! `INFERGATE_FUZZ_COUNT=1000000` so many times; without them for 10,000 files, the same every time.

mod chain;
mod figures;
mod fixture;
mod hostile;
mod mutation;
mod safetensors;
