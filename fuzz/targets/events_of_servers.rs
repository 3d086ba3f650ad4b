#![no_main]

use infergate::fuzz_targets::{events_of_servers, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(events_of_servers, bytes));
