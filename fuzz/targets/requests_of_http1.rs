#![no_main]

use infergate::fuzz_targets::{requests_of_http1, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(requests_of_http1, bytes));
