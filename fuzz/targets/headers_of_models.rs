#![no_main]

use infergate::fuzz_targets::{headers_of_models, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(headers_of_models, bytes));
