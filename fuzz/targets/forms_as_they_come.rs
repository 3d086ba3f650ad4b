#![no_main]

use infergate::fuzz_targets::{forms_as_they_come, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(forms_as_they_come, bytes));
