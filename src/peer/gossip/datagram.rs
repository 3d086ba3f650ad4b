//! Datagrams of the gossip, signed: what does not bear the right signature is not looked at.
//!
//! It knows nothing of what is told. A datagram is `HMAC-SHA256 (32 bytes) ‖ message`; the key is the
//! cluster's secret. A recorded datagram may be sent again: it tells nothing newer than what is
//! known, and versions only rise. Bound: [`DATAGRAM_BYTES_MAX`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use hmac::{Hmac, Mac};
use infergate_core::Millis;
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::net::UdpSocket;

use crate::telemetry::Clock;

/// What UDP over IPv4 takes.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Of the signature.
const TAG_BYTES: usize = 32;
/// So that a signature made here is none of anything else that is signed with the same secret.
const PURPOSE: &[u8] = b"infergate gossip 1\0";
/// Between two log lines about datagrams that were not taken.
const COMPLAINT_EVERY: Millis = Millis::from_secs(60);
/// After a failed receive, so that a socket that is broken does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// Signs and checks with the cluster's secret.
#[derive(Clone)]
pub struct Signer {
    mac: Hmac<Sha256>,
}

impl Signer {
    /// Without a secret every datagram of another Infergate is believed.
    pub fn new(secret: &str) -> Signer {
        let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes());
        let mut mac = mac.expect("HMAC takes keys of every length");
        mac.update(PURPOSE);
        Signer { mac }
    }

    /// Puts the signature into the first bytes of `datagram`, which are left free for it.
    fn sign(&self, datagram: &mut [u8]) {
        let (tag, message) = datagram.split_at_mut(TAG_BYTES);
        let made = self.mac.clone().chain_update(message).finalize();
        tag.copy_from_slice(&made.into_bytes());
    }

    /// The message of a datagram that bears the right signature.
    fn open<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (tag, message) = datagram.split_at_checked(TAG_BYTES)?;
        let made = self.mac.clone().chain_update(message);
        made.verify_slice(tag).is_ok().then_some(message)
    }
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug)]
enum Refused {
    Signature,
    Malformed,
}

/// Datagrams that were not taken, since the start.
#[derive(Default)]
pub struct RefusedCounts {
    signature: AtomicU64,
    malformed: AtomicU64,
}

impl RefusedCounts {
    /// Without the right signature, and with one but not understood.
    pub fn read(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.signature), count(&self.malformed))
    }
}

/// A socket that is bound and waits to be used, once.
pub struct SignedTransport {
    /// Guards the socket until it is taken.
    socket: Mutex<Option<UdpSocket>>,
    signer: Signer,
    refused: Arc<RefusedCounts>,
    clock: Clock,
}

impl SignedTransport {
    /// Over `socket`.
    pub fn new(
        socket: UdpSocket,
        signer: Signer,
        refused: Arc<RefusedCounts>,
        clock: Clock,
    ) -> SignedTransport {
        SignedTransport {
            socket: Mutex::new(Some(socket)),
            signer,
            refused,
            clock,
        }
    }
}

#[async_trait]
impl Transport for SignedTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.socket.lock().take();
        let socket = socket.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        Ok(Box::new(SignedSocket {
            socket,
            signer: self.signer.clone(),
            sent: Vec::new(),
            received: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(),
            refused: Arc::clone(&self.refused),
            clock: self.clock,
            complained: None,
        }))
    }
}

struct SignedSocket {
    socket: UdpSocket,
    signer: Signer,
    sent: Vec<u8>,
    received: Box<[u8]>,
    refused: Arc<RefusedCounts>,
    clock: Clock,
    /// When something was last said about datagrams.
    complained: Option<Millis>,
}

impl SignedSocket {
    fn refuse(&mut self, why: Refused, from: SocketAddr) {
        let counter = match why {
            Refused::Signature => &self.refused.signature,
            Refused::Malformed => &self.refused.malformed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.may_complain() {
            match why {
                Refused::Signature => tracing::warn!(
                    %from,
                    "gossip without the right signature: has each node the same cluster.secret?"
                ),
                Refused::Malformed => {
                    tracing::warn!(%from, "gossip that is not understood: another version?");
                }
            }
        }
    }

    fn may_complain(&mut self) -> bool {
        let now = self.clock.now();
        let may = self
            .complained
            .is_none_or(|last| now.since(last) >= COMPLAINT_EVERY);
        if may {
            self.complained = Some(now);
        }
        may
    }
}

#[async_trait]
impl Socket for SignedSocket {
    /// What cannot be sent is lost, as datagrams are: the next round tells it again.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.sent.clear();
        self.sent.resize(TAG_BYTES, 0);
        message.serialize(&mut self.sent);
        self.signer.sign(&mut self.sent);
        if let Err(error) = self.socket.send_to(&self.sent, to).await
            && self.may_complain()
        {
            let bytes = self.sent.len();
            tracing::warn!(%to, bytes, %error, "gossip could not be sent");
        }
        Ok(())
    }

    /// Nothing is lost when the future is dropped.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (count, from) = match self.socket.recv_from(&mut self.received).await {
                Ok(received) => received,
                Err(error) => {
                    if self.may_complain() {
                        tracing::warn!(%error, "gossip could not be received");
                    }
                    tokio::time::sleep(RECEIVE_PAUSE).await;
                    continue;
                }
            };
            let Some(mut message) = self.signer.open(&self.received[..count]) else {
                self.refuse(Refused::Signature, from);
                continue;
            };
            match ChitchatMessage::deserialize(&mut message) {
                Ok(message) => return Ok((from, message)),
                Err(_) => self.refuse(Refused::Malformed, from),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &str, message: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; TAG_BYTES];
        datagram.extend(message);
        Signer::new(secret).sign(&mut datagram);
        datagram
    }

    #[test]
    fn only_what_was_signed_with_the_same_secret_is_opened() {
        let datagram = signed("a secret of some length", b"news");
        let signer = Signer::new("a secret of some length");
        assert_eq!(signer.open(&datagram), Some(&b"news"[..]));
        assert_eq!(Signer::new("another").open(&datagram), None);
        for at in 0..datagram.len() {
            let mut touched = datagram.clone();
            touched[at] ^= 1;
            assert_eq!(signer.open(&touched), None, "byte {at}");
        }
        for length in 0..datagram.len() {
            assert_eq!(signer.open(&datagram[..length]), None, "{length} bytes");
        }
    }
}
