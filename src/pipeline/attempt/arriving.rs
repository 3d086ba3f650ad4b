//! Wait for the head of a response while the body of its request goes on as it comes.

use std::pin::{Pin, pin};
use std::time::Duration;

use infergate_core::admission::bodies::BodyPace;
use infergate_core::{Millis, Refusal};
use tokio::time::{Instant, sleep_until, timeout};

use super::progress::{HeadWait, wait_for_head};
use crate::pipeline::arriving_body::ArrivingBody;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::state::Shared;
use crate::upstream::{SendError, UpstreamResponse};

/// Slowest client for which a permit is held, KiB/s over [`PACE_WINDOW_MAX`]. Slower ones are read whole before they get one, as far
/// as their first bytes tell.
const KIB_PER_SEC_MIN: u64 = 128;
const PACE_WINDOW_MAX: Millis = Millis::from_secs(10);

/// Result of a request to a server.
type Sent = Result<UpstreamResponse, SendError>;

/// Waits for the head of a response, as [`wait_for_head`] does, and passes the rest of the body on meanwhile. The server's time
/// for the head begins when all of it has come.
///
/// # Errors
/// Those of the rest of the body; the deadline, before all of it has come; the client is gone.
// Boxed here: the state of a request has no room for what few have.
pub fn send_arriving<'a, D: Downstream>(
    mut sending: impl Future<Output = Sent> + Send + Unpin + 'a,
    (shared, downstream, ctx): (&'a Shared, &'a mut D, &'a mut RequestContext),
    mut body: Box<ArrivingBody>,
    (end, deadline): (Instant, Instant),
) -> Pin<Box<impl Future<Output = Result<HeadWait<Sent>, RequestError>> + Send + 'a>> {
    Box::pin(async move {
        let head_wait = end.saturating_duration_since(Instant::now());
        let mut sent = {
            let mut over = pin!(sleep_until(deadline));
            let mut passing = pin!(pass_on(&mut body, shared, downstream, ctx));
            tokio::select! {
                biased;
                sent = &mut sending => Some(sent),
                passed = &mut passing => {
                    passed?;
                    None
                }
                () = &mut over => return Err(Refusal::DeadlinePassed.into()),
            }
        };
        if let Some(Ok(response)) = &mut sent
            && response.head().status.is_success()
        {
            finish_body(response, (shared, downstream, ctx), &mut body, deadline).await?;
        }
        ctx.arriving = Some(body);
        match sent {
            Some(sent) => Ok(HeadWait::Completed(sent)),
            None => {
                let end = (Instant::now() + head_wait).min(deadline);
                wait_for_head(sending, downstream, ctx, end, deadline).await
            }
        }
    })
}

/// Passes the rest on to a server that has begun to answer, so that it can end its answer.
async fn finish_body(
    response: &mut UpstreamResponse,
    (shared, downstream, ctx): (&Shared, &mut impl Downstream, &mut RequestContext),
    body: &mut ArrivingBody,
    deadline: Instant,
) -> Result<(), RequestError> {
    let mut over = pin!(sleep_until(deadline));
    let mut passing = pin!(pass_on(body, shared, downstream, ctx));
    let mut writing = pin!(response.write_rest());
    let mut has_come = false;
    loop {
        tokio::select! {
            biased;
            () = &mut writing => return Ok(()),
            passed = &mut passing, if !has_come => {
                passed?;
                has_come = true;
            }
            () = &mut over => return Err(Refusal::DeadlinePassed.into()),
        }
    }
}

/// Reads the rest and passes it on, a piece when the server takes one. Dropping the future loses nothing.
///
/// # Errors
/// The client left or is too slow, or the rest is not as it must be.
async fn pass_on(
    body: &mut ArrivingBody,
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<(), RequestError> {
    let now = || shared.clock.now();
    let idle = Millis::from_secs(ctx.snapshot.timeouts.request_body_idle_secs);
    let floor = ctx
        .snapshot
        .limits
        .body_min_kib_per_sec
        .max(KIB_PER_SEC_MIN);
    let mut pace = BodyPace::new(now(), idle.min(PACE_WINDOW_MAX), floor);
    // The pace that is asked of clients is that of the time in which the server waits for them.
    let mut unasked = Millis::ZERO;
    while let Some(way) = body.way() {
        let asked = now();
        let place = tokio::select! {
            biased;
            place = way.reserve() => place.map_err(|_| Refusal::Internal)?,
            () = downstream.closed() => return Err(client_left(ctx)),
        };
        unasked = Millis(unasked.0 + now().since(asked).0);
        let piece = timeout(Duration::from_millis(idle.0), downstream.read_piece()).await;
        let Ok(Some(piece)) = piece.map_err(|_| Refusal::RequestTimeout)? else {
            return Err(client_left(ctx));
        };
        if !pace.record(piece.len() as u64, Millis(now().since(unasked).0)) {
            return Err(Refusal::RequestTimeout.into());
        }
        body.record(&piece)?;
        place.send(piece);
    }
    Ok(())
}

fn client_left(ctx: &mut RequestContext) -> RequestError {
    ctx.record_client_gone();
    RequestError::Aborted
}
