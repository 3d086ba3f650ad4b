//! Request for a health check before the next tick, from the gates to the prober.
//!
//! No check is made here, and requests that come together are one.

use tokio::sync::Notify;

/// Notified when a server is to be checked before the next tick. A single one for all servers: a further
/// round costs a line for those that are not healthy.
static CHECK_REQUESTED: Notify = Notify::const_new();

/// Requests a check of servers that are not healthy at once.
pub(super) fn request_check() {
    CHECK_REQUESTED.notify_one();
}

/// Waits until servers are to be checked at once.
pub async fn check_requested() {
    CHECK_REQUESTED.notified().await;
}
