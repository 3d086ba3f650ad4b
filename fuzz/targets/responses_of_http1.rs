#![no_main]

use infergate::fuzz_targets::{responses_of_http1, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(responses_of_http1, bytes));
