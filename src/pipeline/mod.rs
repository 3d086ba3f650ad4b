//! Request pipeline: one inference request from its account to its event, in named steps.
//!
//! Not the connection (`downstream`) and not a decision (the core). [`run`] is the place to start.

mod admission;
mod attempt;
mod billing;
mod body_check;
mod connection;
mod context;
mod fallback;
mod forwarding;
mod relay;
mod request_body;
pub mod request_head;
pub mod respond;
mod routing;
mod run;
mod task;

pub use admission::interim;
pub use connection::DownstreamConnection;
pub use context::{RequestContext, RequestError};
pub use request_head::{AuthenticatedRequest, ForwardArrivalError, RequestedOperation};
pub use run::{enter, run, settle_account};
