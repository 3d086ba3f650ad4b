#![no_main]

use infergate::fuzz_targets::{results_of_tensors, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(results_of_tensors, bytes));
