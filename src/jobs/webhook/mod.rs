//! Delivery of webhooks: what a job has to report goes to the receiver that its owner named.
//!
//! Not the outbox, which is the store's, nor the order of deliveries, which is the core's. Receivers are strangers:
//! nothing goes to an address that was not judged, and what they answer counts by its status alone.
//!
//! ```text
//! signing (keys, signatures)      guard (allowed receivers)      exchange (one request and its answer)
//! client (all three for one attempt)  ←  sender (ends, from the outbox)  and  notices (news of a run)
//!                                        delivery_queue (whose turn it is, of both)
//! ```

mod client;
mod delivery_queue;
mod exchange;
mod guard;
#[cfg(test)]
mod look_tests;
mod notices;
mod sender;
#[cfg(test)]
mod sender_tests;
mod signing;
#[cfg(test)]
mod ssrf_tests;
#[cfg(test)]
mod tests;

pub use client::{WebhookClient, WebhookClocks};
pub use guard::SystemResolver;
pub use notices::JobNotices;
pub use sender::WebhookSender;
