//! Request pipeline: one inference request from its account to its event, in named steps.
//!
//! Not a connection: a response goes to a [`Downstream`]. Not a decision, which is the core's. [`run()`] is the
//! place to start.

mod admission;
mod arriving_body;
mod attempt;
mod billing;
mod body_check;
mod context;
mod downstream;
mod entry;
mod error;
mod fallback;
mod forwarding;
mod lora;
mod origin;
mod permit_request;
mod relay;
mod request;
mod request_body;
pub mod request_head;
pub mod respond;
mod routing;
mod run;
mod stored_input;
mod suspension;
mod task;
mod terms;
mod upstream;
mod websocket;

pub use admission::interim;
pub use arriving_body::ArrivingBody;
pub use billing::OwedCharge;
pub use context::RequestContext;
pub use downstream::{Downstream, DownstreamClosed, RequestHead, ResponseHead};
pub use entry::{enter, settle_account};
pub use error::RequestError;
pub use origin::JobHeader;
pub use request::InferenceRequest;
pub use request_head::{AuthenticatedRequest, ForwardArrivalError, RequestedOperation};
pub use run::run;
pub use stored_input::check_stored_input;
