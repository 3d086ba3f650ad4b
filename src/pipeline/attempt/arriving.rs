//! Wait for the head of a response while the body of its request goes on as it comes.

use std::pin::{Pin, pin};
use std::time::Duration;

use infergate_core::admission::bodies::BodyPace;
use infergate_core::{Millis, Refusal};
use tokio::time::{Instant, sleep_until, timeout};

use super::progress::{HeadWait, wait_for_head};
use crate::pipeline::arriving_body::{ArrivingBody, BodyProgress};
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
/// for the head begins when all of it has come; it has as long to take each piece.
///
/// # Errors
/// The client is gone or too slow, the deadline passed while it was waited for, or the rest of the form is broken.
// Boxed here: the state of a request has no room for what few have.
pub fn send_arriving<'a, D: Downstream>(
    mut sending: impl Future<Output = Sent> + Send + Unpin + 'a,
    (shared, downstream, ctx): (&'a Shared, &'a mut D, &'a mut RequestContext),
    mut body: Box<ArrivingBody>,
    ends: (Instant, Instant),
) -> Pin<Box<impl Future<Output = Result<HeadWait<Sent>, RequestError>> + Send + 'a>> {
    Box::pin(async move {
        let to = (shared, downstream, &mut *ctx);
        let sent = send_with(&mut sending, to, &mut body, ends).await;
        // Whatever came of it: what is not billed, and whom the failure is laid on, goes by how far the body has come.
        ctx.arriving = Some(body);
        sent
    })
}

/// End of the wait for the body and the response.
enum BodyWait {
    Sent(Sent),
    Passed(Result<PassedOn, RequestError>),
    Over,
}

async fn send_with(
    sending: &mut (impl Future<Output = Sent> + Send + Unpin),
    (shared, downstream, ctx): (&Shared, &mut impl Downstream, &mut RequestContext),
    body: &mut ArrivingBody,
    (end, deadline): (Instant, Instant),
) -> Result<HeadWait<Sent>, RequestError> {
    let head_wait = end.saturating_duration_since(Instant::now());
    let waited = {
        let mut over = pin!(sleep_until(deadline));
        let mut passing = pin!(pass_on(body, (shared, downstream, ctx), head_wait));
        tokio::select! {
            biased;
            sent = &mut *sending => BodyWait::Sent(sent),
            passed = &mut passing => BodyWait::Passed(passed),
            () = &mut over => BodyWait::Over,
        }
    };
    match waited {
        BodyWait::Sent(mut sent) => {
            if let Ok(response) = &mut sent
                && response.head().status.is_success()
            {
                let to = (shared, downstream, ctx);
                finish_body(response, to, body, (head_wait, deadline)).await?;
            }
            Ok(HeadWait::Completed(sent))
        }
        BodyWait::Passed(passed) => match passed? {
            PassedOn::Stalled => Ok(HeadWait::Deadline),
            PassedOn::Whole => {
                let end = (Instant::now() + head_wait).min(deadline);
                wait_for_head(sending, downstream, ctx, end, deadline).await
            }
        },
        BodyWait::Over => match body.progress() {
            BodyProgress::WaitsForClient => Err(Refusal::DeadlinePassed.into()),
            _ => Ok(HeadWait::Deadline),
        },
    }
}

/// Passes the rest on to a server that has begun to answer, so that it can end its answer.
async fn finish_body(
    response: &mut UpstreamResponse,
    to: (&Shared, &mut impl Downstream, &mut RequestContext),
    body: &mut ArrivingBody,
    (head_wait, deadline): (Duration, Instant),
) -> Result<(), RequestError> {
    let mut over = pin!(sleep_until(deadline));
    let mut passing = pin!(pass_on(body, to, head_wait));
    let mut writing = pin!(response.write_rest());
    let mut has_passed = false;
    loop {
        tokio::select! {
            biased;
            () = &mut writing => return Ok(()),
            passed = &mut passing, if !has_passed => match passed? {
                PassedOn::Whole => has_passed = true,
                // Its answer is all there will be.
                PassedOn::Stalled => return Ok(()),
            },
            () = &mut over => return Err(Refusal::DeadlinePassed.into()),
        }
    }
}

/// End of the passing of a body.
enum PassedOn {
    Whole,
    /// The server has taken nothing for its time.
    Stalled,
}

/// Reads the rest and passes it on, a piece when the server takes one. Dropping the future loses nothing.
///
/// # Errors
/// The client left or is too slow, or the rest is not as it must be.
async fn pass_on(
    body: &mut ArrivingBody,
    (shared, downstream, ctx): (&Shared, &mut impl Downstream, &mut RequestContext),
    head_wait: Duration,
) -> Result<PassedOn, RequestError> {
    let now = || shared.clock.now();
    let idle = Millis::from_secs(ctx.snapshot.timeouts.request_body_idle_secs);
    let floor = ctx
        .snapshot
        .limits
        .body_min_kib_per_sec
        .max(KIB_PER_SEC_MIN);
    let window = idle.min(PACE_WINDOW_MAX);
    let mut pace = BodyPace::new(now(), window, floor);
    // The pace that is asked of clients is that of the time in which the server waits for them.
    let mut unasked = Millis::ZERO;
    while let Some(way) = body.way() {
        body.set_progress(BodyProgress::WaitsForServer);
        let asked = now();
        let place = tokio::select! {
            biased;
            place = timeout(head_wait, way.reserve()) => place,
            () = downstream.closed() => return Err(client_left(ctx)),
        };
        let Ok(place) = place else {
            return Ok(PassedOn::Stalled);
        };
        let place = place.map_err(|_| Refusal::Internal)?;
        body.set_progress(BodyProgress::WaitsForClient);
        unasked = Millis(unasked.0 + now().since(asked).0);
        let piece = timeout(Duration::from_millis(window.0), downstream.read_piece()).await;
        let Ok(Some(piece)) = piece.map_err(|_| Refusal::RequestTimeout)? else {
            return Err(client_left(ctx));
        };
        if !pace.record(piece.len() as u64, Millis(now().since(unasked).0)) {
            return Err(Refusal::RequestTimeout.into());
        }
        body.record(&piece, shared.clock.recent_micros())?;
        place.send(piece);
    }
    Ok(PassedOn::Whole)
}

fn client_left(ctx: &mut RequestContext) -> RequestError {
    ctx.record_client_gone();
    RequestError::Aborted
}
