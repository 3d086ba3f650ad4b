#![no_main]

use infergate::fuzz_targets::{configurations, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(configurations, bytes));
