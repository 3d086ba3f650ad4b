#![no_main]

use infergate::fuzz_targets::{bodies_of_requests, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bodies_of_requests, bytes));
