#![no_main]

use infergate::fuzz_targets::{members_of_json, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(members_of_json, bytes));
