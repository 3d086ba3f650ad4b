#![no_main]

use infergate::fuzz_targets::{frames_of_websockets, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(frames_of_websockets, bytes));
