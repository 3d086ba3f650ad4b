#![no_main]

use infergate::fuzz_targets::{forms_of_files, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(forms_of_files, bytes));
