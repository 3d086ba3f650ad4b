//! Sleep of a server: its memory given up while it stays, as vLLM's `/sleep`, `/wake_up` and `/is_sleeping`.
//!
//! Not the taking of memory, which is `vram.rs`'s. A level makes no difference here: weights are none.

use std::sync::atomic::Ordering::Relaxed;

use http::Method;
use serde_json::{Value, json};

use super::state::SimulatorState;

/// Answers a route of sleep; none for every other route, and for a server that cannot sleep.
pub(super) async fn answer(
    state: &SimulatorState,
    method: &Method,
    path: &str,
) -> Option<(u16, Value)> {
    if !state.config.vram.sleepable {
        return None;
    }
    match (method.as_str(), path) {
        ("POST", "/sleep") => set_asleep(state, true).await,
        ("POST", "/wake_up") => set_asleep(state, false).await,
        // Weights are none, so that they are read again at once.
        ("POST", "/collective_rpc") | ("GET", "/is_sleeping") => {}
        _ => return None,
    }
    let is_asleep = *state.is_asleep.borrow();
    Some((200, json!({ "is_sleeping": is_asleep })))
}

/// Returns once the memory is given up or taken.
async fn set_asleep(state: &SimulatorState, is_asleep: bool) {
    state.is_asleep.send_replace(is_asleep);
    let mut settled = state.vram_settled.subscribe();
    // The server ends when it finds no memory to wake up in.
    let _ = settled
        .wait_for(|_| state.has_vram.load(Relaxed) != is_asleep)
        .await;
}
