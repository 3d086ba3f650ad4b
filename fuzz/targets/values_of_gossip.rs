#![no_main]

use infergate::fuzz_targets::{values_of_gossip, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(values_of_gossip, bytes));
