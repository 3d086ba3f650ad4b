#![no_main]

use infergate::fuzz_targets::{headers_that_pass, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(headers_that_pass, bytes));
