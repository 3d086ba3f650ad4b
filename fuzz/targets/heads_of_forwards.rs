#![no_main]

use infergate::fuzz_targets::{heads_of_forwards, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(heads_of_forwards, bytes));
