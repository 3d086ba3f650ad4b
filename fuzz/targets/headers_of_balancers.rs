#![no_main]

use infergate::fuzz_targets::{headers_of_balancers, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(headers_of_balancers, bytes));
