//! Direction of a WebSocket: bytes are read, checked and passed on.
//!
//! Back-pressure is the bound of the buffer: while the receiver takes nothing, the sender is read no further.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, BytesMut};
use infergate_core::websocket::{FrameChecker, FrameFault, FrameSender};
use tokio::io::AsyncReadExt;

use crate::http1::spare;
use crate::upstream::Duplex;

/// Bytes of one direction that are held, beside one read: more would only wait for a slow receiver.
const LANE_BYTES_MAX: usize = 16 * 1024;

/// Event of a direction that its relay decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneStop {
    /// A close frame of the sender has been passed on.
    Closed,
    /// The sender has ended its connection.
    SenderGone,
    /// The receiver takes nothing any more.
    ReceiverGone,
    /// A frame of the sender is broken.
    Fault(FrameFault),
}

/// Direction of a WebSocket.
pub(super) struct Lane {
    checker: FrameChecker,
    /// Received, and not yet passed on.
    buffer: BytesMut,
    /// Bytes at the front of the buffer that may pass.
    cleared: usize,
    /// Bytes that were passed on.
    passed: u64,
    fault: Option<FrameFault>,
    needs_flush: bool,
    /// The close frame of the sender has been passed on: what follows is discarded.
    is_closed: bool,
    /// Bytes have moved since the last look.
    has_moved: bool,
}

impl Lane {
    /// Creates a direction with the bytes that came behind the head.
    pub(super) fn new(sender: FrameSender, received: BytesMut) -> Lane {
        let mut lane = Lane {
            checker: FrameChecker::new(sender),
            buffer: received,
            cleared: 0,
            passed: 0,
            fault: None,
            needs_flush: false,
            is_closed: false,
            has_moved: false,
        };
        lane.check();
        lane
    }

    /// Bytes that were passed on.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// A close frame of the sender has been passed on.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether bytes have moved since the last look.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Moves what can be moved, until something has to be decided.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sender: &mut dyn Duplex,
        receiver: &mut dyn Duplex,
    ) -> Poll<LaneStop> {
        loop {
            if self.poll_write(cx, receiver).is_err() {
                return Poll::Ready(LaneStop::ReceiverGone);
            }
            if let Some(fault) = self.fault {
                return Poll::Ready(LaneStop::Fault(fault));
            }
            if self.checker.is_closed() {
                self.buffer.truncate(self.cleared);
                if self.cleared == 0 && !self.needs_flush && !self.is_closed {
                    self.is_closed = true;
                    return Poll::Ready(LaneStop::Closed);
                }
            }
            if self.buffer.len() >= LANE_BYTES_MAX {
                return Poll::Pending;
            }
            spare::make_room(&mut self.buffer, spare::READ_BYTES);
            // The buffer may have more room than was asked for.
            let mut room = (&mut self.buffer).limit(spare::READ_BYTES);
            let read = pin!(sender.read_buf(&mut room)).poll(cx);
            match read {
                Poll::Pending => {
                    spare::give_back(&mut self.buffer);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(LaneStop::SenderGone),
                Poll::Ready(Ok(_)) => {
                    self.has_moved = true;
                    self.check();
                }
            }
        }
    }

    fn check(&mut self) {
        let (checked, fault) = self.checker.check(&self.buffer[self.cleared..]);
        self.cleared += checked.passed;
        self.fault = self.fault.or(fault);
    }

    /// Writes what the receiver takes of the bytes that may pass.
    fn poll_write(&mut self, cx: &mut Context<'_>, receiver: &mut dyn Duplex) -> io::Result<()> {
        while self.cleared > 0 {
            let bytes = &self.buffer[..self.cleared];
            match Pin::new(&mut *receiver).poll_write(cx, bytes) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => {
                    self.buffer.advance(written);
                    self.cleared -= written;
                    self.passed += written as u64;
                    self.needs_flush = true;
                    self.has_moved = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if self.needs_flush {
            match Pin::new(receiver).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.needs_flush = false,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Takes the bytes for the receiver that may still pass, with `frame` behind them. The frame is left out where the
    /// receiver is within another one, or has a close frame.
    pub(super) fn take_last(&mut self, frame: Option<&[u8]>) -> BytesMut {
        let mut last = self.buffer.split_to(self.cleared);
        self.cleared = 0;
        self.passed += last.len() as u64;
        let is_free = self.checker.is_between_frames() && !self.checker.is_closed();
        if let Some(frame) = frame.filter(|_| is_free) {
            last.extend_from_slice(frame);
        }
        last
    }

    /// Reads on until the sender has closed, and discards it: at most `bytes_max`. Behind a broken frame only the end of
    /// the connection is a close.
    pub(super) async fn discard(&mut self, sender: &mut dyn Duplex, bytes_max: usize) {
        let mut read = 0;
        while read < bytes_max && !self.checker.is_closed() {
            match self.fault {
                Some(_) => self.buffer.clear(),
                None => self.buffer.advance(self.cleared),
            }
            self.cleared = 0;
            spare::make_room(&mut self.buffer, spare::READ_BYTES);
            match sender.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(more) => read += more,
            }
            if self.fault.is_none() {
                self.check();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Far ends of sender and receiver, and the near ones.
    fn ends(room: usize) -> (DuplexStream, DuplexStream, DuplexStream, DuplexStream) {
        let (far_sender, sender) = duplex(1 << 20);
        let (far_receiver, receiver) = duplex(room);
        (far_sender, sender, far_receiver, receiver)
    }

    async fn run(
        lane: &mut Lane,
        sender: &mut DuplexStream,
        receiver: &mut DuplexStream,
    ) -> LaneStop {
        std::future::poll_fn(|cx| lane.poll(cx, sender, receiver)).await
    }

    #[tokio::test]
    async fn a_receiver_that_takes_nothing_stops_the_reading_of_the_sender() {
        let (mut far_sender, mut sender, mut far_receiver, mut receiver) = ends(1024);
        let payload = vec![7; 100_000];
        far_sender
            .write_all(&[0x82, 127, 0, 0, 0, 0, 0, 1, 0x86, 0xa0])
            .await
            .unwrap();
        far_sender.write_all(&payload).await.unwrap();
        drop(far_sender);
        let mut lane = Lane::new(FrameSender::Server, BytesMut::new());
        assert!(
            futures_util::poll!(Box::pin(run(&mut lane, &mut sender, &mut receiver))).is_pending()
        );
        assert!(lane.buffer.len() <= LANE_BYTES_MAX + 2 * spare::READ_BYTES);
        let mut seen = Vec::new();
        while seen.len() < 1024 {
            far_receiver.read_buf(&mut seen).await.unwrap();
        }
        assert_eq!(seen[10..], payload[..seen.len() - 10]);
    }

    #[tokio::test]
    async fn bytes_before_a_broken_frame_pass_and_those_behind_a_close_do_not() {
        let (_far_sender, mut sender, _far_receiver, mut receiver) = ends(1024);
        let received = BytesMut::from(&b"\x81\x01a\x88\x00\x81\x01b"[..]);
        let mut lane = Lane::new(FrameSender::Server, received);
        assert_eq!(
            run(&mut lane, &mut sender, &mut receiver).await,
            LaneStop::Closed
        );
        assert_eq!((lane.passed(), lane.take_last(Some(b"x")).len()), (5, 0));
        let mut lane = Lane::new(FrameSender::Server, BytesMut::from(&b"\x81\x01a\xff"[..]));
        let stop = run(&mut lane, &mut sender, &mut receiver).await;
        assert_eq!(stop, LaneStop::Fault(FrameFault::ReservedBit));
        assert_eq!(
            (lane.passed(), &lane.take_last(Some(b"x"))[..]),
            (3, &b"x"[..])
        );
    }
}
