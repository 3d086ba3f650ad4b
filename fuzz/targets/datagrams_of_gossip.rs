#![no_main]

use infergate::fuzz_targets::{datagrams_of_gossip, run};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(datagrams_of_gossip, bytes));
