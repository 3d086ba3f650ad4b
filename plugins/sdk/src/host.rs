//! Services of the gateway for plugins, each only when the configuration file grants it.
//!
//! A call of a function here makes the component import its interface: `log`, `counters`, `tables`.
//! On a native target, as in a plugin's unit tests, the calls panic.

use crate::bindings::host::infergate::host;

pub use host::log::Level;

/// Writes a line to the gateway's log. Lines over the rate limit are counted and dropped.
pub fn log(level: Level, message: &str) {
    host::log::emit(level, message);
}

/// False when a line of this level would be dropped.
pub fn logs(level: Level) -> bool {
    host::log::enabled(level)
}

/// Adds to the counter at this position of the plugin's `counters`.
pub fn count(counter: u32, delta: u64) {
    host::counters::add(counter, delta);
}

/// The value of a key in the table at this position of the plugin's `tables`.
pub fn look_up(table: u32, key: &str) -> Option<Vec<u8>> {
    host::tables::get(table, key)
}

/// Sends a panic's message and place to the log: what `export_*!(Plugin, log)` calls. Without it the
/// trap's backtrace names the function, but not the reason.
#[doc(hidden)]
pub fn report_panics() {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| log(Level::Error, &info.to_string())));
    });
}
