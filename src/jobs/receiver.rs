//! Receiver of a job's response: the pipeline's client in place of a connection.
//!
//! Not a store: what it gathers is the run's until the end is written. It leaves when the run is to stop.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::live::LiveOutput;
use super::output::OutputCollector;
use super::signals::StopCause;
use super::store_clock::StoreClock;
use crate::http1::Fields;
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};

/// Receiver of one run.
pub struct JobDownstream {
    target: String,
    headers: Fields,
    stop: watch::Receiver<StopCause>,
    /// Output for followers, with the clock of its events.
    live: (Arc<LiveOutput>, StoreClock),
    /// Output so far.
    pub output: OutputCollector,
    /// Status of the response; 0 before there is one.
    pub status: u16,
    /// The output was larger than it may be.
    pub is_too_large: bool,
    /// The server served other weights before.
    pub weights_changed: bool,
}

impl JobDownstream {
    /// Creates the receiver of a run of this request line.
    pub fn new(
        (target, headers): (String, Fields),
        stop: watch::Receiver<StopCause>,
        output: OutputCollector,
        live: (Arc<LiveOutput>, StoreClock),
    ) -> JobDownstream {
        live.0.set_pieces(output.pieces());
        JobDownstream {
            target,
            headers,
            stop,
            live,
            output,
            status: 0,
            is_too_large: false,
            weights_changed: false,
        }
    }

    /// Returns why the run is to stop.
    pub fn stop_cause(&self) -> StopCause {
        *self.stop.borrow()
    }
}

impl Downstream for JobDownstream {
    fn request_head(&self) -> RequestHead<'_> {
        RequestHead {
            method: "POST",
            target: &self.target,
            headers: &self.headers,
        }
    }

    fn can_stream(&self) -> bool {
        true
    }

    async fn closed(&mut self) {
        // The reading holds a lock, which must not be kept over a wait.
        let is_stopped = {
            let stopped = self.stop.wait_for(|cause| *cause != StopCause::None).await;
            stopped.is_ok()
        };
        if !is_stopped {
            // The sender lives as long as the run.
            std::future::pending().await
        }
    }

    async fn start(&mut self, head: ResponseHead) -> Result<(), DownstreamClosed> {
        self.status = head.status.as_u16();
        self.output.begin(head.get("content-type"));
        Ok(())
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        if self.stop_cause() != StopCause::None {
            return Err(DownstreamClosed);
        }
        match self.output.push(&chunk) {
            Ok(added) => {
                if let Some(added) = added {
                    let (live, clock) = &self.live;
                    live.push(&added.0, clock.now());
                }
                Ok(())
            }
            Err(_) => {
                self.is_too_large = true;
                Err(DownstreamClosed)
            }
        }
    }

    async fn finish(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.write(chunk).await
    }
}
