//! Upgrade: this process is followed by another one without a client noticing.
//!
//! The process that serves starts its successor, hands its sockets over and drains once the successor serves; until then
//! it serves on, whatever becomes of the successor.
//!
//! ```text
//! infergate upgrade → command ─ socket in state_dir → offer → predecessor ─ socket pair → successor
//!                                                              sockets, messages, permits: what goes between them
//! ```

mod command;
mod messages;
mod offer;
mod permits;
mod predecessor;
mod sockets;
mod successor;
mod upgrades;

pub use command::upgrade;
pub use offer::{UpgradeOffer, offer_upgrades};
pub use sockets::{NamedSocket, SOCKETS_MAX, SocketName, SocketSet};
pub use successor::{Predecessor, Turn};
pub use upgrades::Upgrades;
