//! Reading a server's answer on while its client does not take what came before.
//!
//! Not the bound, which is the [`Backlog`]; [`ReaderPace`] finds clients that are too slow.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::poll;

use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::{ReadAhead, ReadRound, Relay, RelayResult, RelayStop, note};
use crate::state::{Backlog, ReaderPace};
use crate::upstream::{PushOutput, ResponseTransformer};

impl<D: Downstream> Relay<'_, D> {
    /// Returns the next bytes for the client: read ahead, then from the server.
    pub(super) async fn next(
        &mut self,
        transformer: &mut ResponseTransformer,
    ) -> Result<ReadRound, RelayStop> {
        if let Some(piece) = self.backlog.pop() {
            // The server spoke meanwhile: a wait that a sign of life had interrupted is over.
            self.silent_from = None;
            return Ok(ReadRound::More(piece));
        }
        match std::mem::replace(&mut self.ahead, ReadAhead::Reading) {
            ReadAhead::Reading => {
                self.pace = None;
                self.read_round(transformer).await
            }
            ReadAhead::Ended => Ok(ReadRound::End(Bytes::new())),
            ReadAhead::Stopped(stop) => Err(stop),
        }
    }

    /// Writes to the client, and reads the server on while the client does not take it.
    pub(super) async fn write(
        &mut self,
        transformer: &mut ResponseTransformer,
        bytes: Bytes,
        end: bool,
    ) -> Result<(), RequestError> {
        let Relay {
            downstream,
            ctx,
            response,
            out,
            deadline,
            timer,
            backlog,
            ahead,
            pace,
            bytes_sent: sent,
            release,
            ..
        } = self;
        let mut writing = pin!(downstream.send(bytes, end));
        // A client that keeps up costs no more than this.
        if let Poll::Ready(written) = poll!(writing.as_mut()) {
            return written.map_err(|_| RequestError::Aborted);
        }
        let idle = Duration::from_secs(ctx.snapshot.timeouts.stream_idle_secs);
        let floor = ctx.snapshot.limits.reader_min_bytes_per_sec();
        let unseen = AtomicU64::new(0);
        let sent = sent.as_deref().unwrap_or(&unseen);
        if end {
            // All is read: what is left is between the client and the gateway.
            release(RelayResult::Whole, ctx);
        }
        loop {
            let is_reading = matches!(ahead, ReadAhead::Reading) && !end;
            let reads = is_reading && backlog.reserve();
            if is_reading && !reads {
                let begin = || ReaderPace::begin(idle, floor, sent.load(Ordering::Relaxed));
                pace.get_or_insert_with(begin);
            }
            tokio::select! {
                biased;
                written = writing.as_mut() => return written.map_err(|_| RequestError::Aborted),
                () = timer.wait_until(*deadline) => return Err(RequestError::Aborted),
                chunk = response.chunk(), if reads => {
                    *ahead = read_ahead(chunk, transformer, out, backlog);
                    if matches!(ahead, ReadAhead::Ended) {
                        note(ctx, transformer);
                        release(RelayResult::Whole, ctx);
                    }
                }
                () = too_slow(pace, sent), if is_reading && !reads => {
                    tracing::debug!(request_id = &**ctx.request_id(), "the client reads too slowly");
                    return Err(RequestError::Aborted);
                }
            }
        }
    }
}

async fn too_slow(pace: &mut Option<ReaderPace>, sent: &AtomicU64) {
    match pace {
        Some(pace) => pace.wait_until_too_slow(sent).await,
        None => std::future::pending().await,
    }
}

/// Shapes what was read while the client was not reading, and keeps it for later.
fn read_ahead<E>(
    chunk: Result<Option<Bytes>, E>,
    transformer: &mut ResponseTransformer,
    out: &mut BytesMut,
    backlog: &mut Backlog,
) -> ReadAhead {
    let shaped = match chunk {
        Ok(Some(chunk)) => transformer.push(&chunk, out).map(|push| {
            if let PushOutput::First(len) = push {
                out.extend_from_slice(&chunk[..len]);
            }
            ReadAhead::Reading
        }),
        Ok(None) => transformer.finish(out).map(|()| ReadAhead::Ended),
        Err(_) => Ok(ReadAhead::Stopped(RelayStop::Broken)),
    };
    // Of its own size: a part of the buffer would keep the whole of it, which no bound has counted.
    backlog.push(Bytes::copy_from_slice(out));
    out.clear();
    shaped.unwrap_or_else(|error| ReadAhead::Stopped(error.into()))
}
