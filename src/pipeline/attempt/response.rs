//! Response of a model server of this node, from its head to the return of its connection and permit.
//!
//! Not the reading of chunks, which is the relay's.

use http::StatusCode;

use crate::pipeline::attempt::local::LocalAttempt;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::{Relay, RelayResult};
use crate::pipeline::websocket;
use crate::state::{Account, Shared};
use crate::upstream::{ResponseTransformer, UpstreamResponse};

/// Response that a model server of this node has started.
pub struct LocalResponse {
    /// Attempt that got it, with the permit.
    pub attempt: LocalAttempt,
    /// Head, and the connection for the rest.
    pub response: UpstreamResponse,
    /// Reader of the body.
    pub transformer: ResponseTransformer,
    /// Tokens charged ahead.
    pub charged_tokens: u32,
}

impl LocalResponse {
    /// Sends the response to the client; connection, permit and tokens go back.
    ///
    /// # Errors
    /// The client left, or the response broke off.
    pub fn relay<'a>(
        self,
        shared: &'a Shared,
        downstream: &'a mut impl Downstream,
        ctx: &'a mut RequestContext,
        account: &'a Account,
    ) -> impl Future<Output = Result<(), RequestError>> + Send {
        let LocalResponse {
            mut attempt,
            mut response,
            mut transformer,
            charged_tokens,
        } = self;
        let report = attempt.take_report();
        let mut attempt = Some(attempt);
        // Captured: as arguments of an `async fn` they would take their room twice.
        async move {
            // Called with the server's last byte, which may be long before the client's.
            let mut release = |relayed: RelayResult, ctx: &mut RequestContext| {
                if let Some(attempt) = attempt.take() {
                    attempt.release(shared, relayed, ctx, account, charged_tokens);
                }
            };
            if response.head().status == StatusCode::SWITCHING_PROTOCOLS {
                let parts = (&mut response, &mut transformer, report);
                let relay = websocket::relay(shared, downstream, ctx, parts, account, &mut release);
                // Boxed: other responses have no room for its state.
                return Box::pin(relay).await;
            }
            let relay = Relay::new(shared, downstream, ctx, &mut response, &mut release);
            let (relayed, ended) = relay.run(&mut transformer).await;
            // The connection before the permit, so that the next request finds the connection warm.
            shared.client.finish(response).await;
            release(relayed, ctx);
            ended
        }
    }
}
