//! Answer of a route of the Replicate API.
//!
//! Not written here: the routes send it.

/// Answer of a route: status, body, and further header lines.
pub(super) struct RouteAnswer {
    /// HTTP status.
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
    /// Further lines of the head.
    pub lines: Vec<(&'static str, String)>,
}

impl RouteAnswer {
    /// Success with a body.
    pub fn ok(body: Vec<u8>) -> RouteAnswer {
        RouteAnswer {
            status: 200,
            body,
            lines: Vec::new(),
        }
    }
}
