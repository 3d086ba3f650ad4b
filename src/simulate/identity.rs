//! Marks by which a response shows that it is simulated.
//!
//! Not a promise to clients of the gateway, which never see a simulator in production.

/// Marks every response of the simulator, errors included.
pub const SIMULATOR_HEADER: &str = "x-infergate-simulator";

/// Value in place of a real server's build name.
pub const FINGERPRINT: &str = "infergate-simulator";
