#![no_main]

use infergate::fuzz_targets::{answers_of_tensors, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(answers_of_tensors, bytes));
