//! Signed datagrams of gossip: one without the right signature is not read.
//!
//! The content is not known here. A datagram is `HMAC-SHA256 (32 bytes) ‖ Unix seconds (8, big end
//! first) ‖ message`; the key is the cluster's secret, and the signature is of all that follows it.
//! A recorded datagram can be sent again for as long as [`SECS_OFF_MAX`], and is answered
//! meanwhile; later it is not looked at. Bound: [`DATAGRAM_BYTES_MAX`].

use std::collections::HashSet;
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
use infergate_core::routing::cluster::NODES_MAX;
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::net::UdpSocket;

use crate::telemetry::Clock;
use crate::telemetry::metrics::GossipRefused;

/// Limit of UDP over IPv4. chitchat fills a message up to this, and the head may make it too long:
/// such a datagram is counted, and lost as others are. The next one carries other keys.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Length of the signature.
const TAG_BYTES: usize = 32;
/// Prefix that keeps a signature made here from being one of anything else signed with the same
/// secret.
const PURPOSE: &[u8] = b"infergate gossip 2\0";
/// Length of the time.
const TIME_BYTES: usize = 8;
/// Contacts on their way to chitchat: one of each node that a cluster can have.
const PENDING_MAX: usize = NODES_MAX;
/// Length of a message that acknowledges and has nothing new: magic number, version, kind, end.
const EMPTY_ACK_BYTES: usize = 5;
/// Before the message.
const HEAD_BYTES: usize = TAG_BYTES + TIME_BYTES;
/// Bound of the difference of two nodes' clocks; a recorded datagram is accepted for so long.
const SECS_OFF_MAX: u64 = 60;
/// Between two log lines about datagrams that were not taken.
const WARNING_EVERY: Millis = Millis::from_secs(60);
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

    /// Puts time and signature into the first bytes of `datagram`, which are left free for them.
    fn sign(&self, datagram: &mut [u8], unix_secs: u64) {
        let (tag, signed) = datagram.split_at_mut(TAG_BYTES);
        signed[..TIME_BYTES].copy_from_slice(&unix_secs.to_be_bytes());
        let made = self.mac.clone().chain_update(signed).finalize();
        tag.copy_from_slice(&made.into_bytes());
    }

    /// The message of a datagram that bears the right signature and is of about now.
    fn open<'a>(&self, datagram: &'a [u8], unix_secs: u64) -> Result<&'a [u8], DatagramRejection> {
        let unsigned = DatagramRejection::Signature;
        let (tag, signed) = datagram.split_at_checked(TAG_BYTES).ok_or(unsigned)?;
        let made = self.mac.clone().chain_update(signed);
        made.verify_slice(tag).map_err(|_| unsigned)?;
        let (time, message) = signed
            .split_first_chunk()
            .ok_or(DatagramRejection::Malformed)?;
        let secs_off = u64::from_be_bytes(*time).abs_diff(unix_secs);
        match secs_off <= SECS_OFF_MAX {
            true => Ok(message),
            false => Err(DatagramRejection::Time { secs_off }),
        }
    }
}

/// Reason for the rejection of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatagramRejection {
    Signature,
    Time { secs_off: u64 },
    Malformed,
}

/// Datagrams that were not taken or not sent, since the start.
#[derive(Default)]
pub struct RejectionCounts {
    signature: AtomicU64,
    time: AtomicU64,
    malformed: AtomicU64,
    unsent: AtomicU64,
}

impl RejectionCounts {
    /// Returns the counts; sums are not known here.
    pub fn read(&self) -> GossipRefused {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GossipRefused {
            unsigned: count(&self.signature),
            untimely: count(&self.time),
            malformed: count(&self.malformed),
            unsent: count(&self.unsent),
            sums: 0,
        }
    }
}

/// Addresses that chitchat has a pending message to: [`PENDING_MAX`].
#[derive(Default)]
pub struct PendingContacts {
    /// Guards a set of addresses, for one look-up.
    addresses: Mutex<HashSet<SocketAddr>>,
}

impl PendingContacts {
    /// Marks `address` as pending; false while it is, or while too many are.
    pub fn begin(&self, address: SocketAddr) -> bool {
        let mut addresses = self.addresses.lock();
        addresses.len() < PENDING_MAX && addresses.insert(address)
    }

    fn end(&self, address: SocketAddr) {
        self.addresses.lock().remove(&address);
    }
}

/// A socket that is bound and waits to be used, once.
pub struct SignedTransport {
    /// Guards the socket until it is taken.
    socket: Mutex<Option<UdpSocket>>,
    signer: Signer,
    refused: Arc<RejectionCounts>,
    pending: Arc<PendingContacts>,
    clock: Clock,
}

impl SignedTransport {
    /// Over `socket`.
    pub fn new(
        socket: UdpSocket,
        signer: Signer,
        (refused, pending): (Arc<RejectionCounts>, Arc<PendingContacts>),
        clock: Clock,
    ) -> SignedTransport {
        SignedTransport {
            socket: Mutex::new(Some(socket)),
            signer,
            refused,
            pending,
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
            pending: Arc::clone(&self.pending),
            clock: self.clock,
            warned: None,
        }))
    }
}

struct SignedSocket {
    socket: UdpSocket,
    signer: Signer,
    sent: Vec<u8>,
    received: Box<[u8]>,
    refused: Arc<RejectionCounts>,
    pending: Arc<PendingContacts>,
    clock: Clock,
    /// Time of the last warning about datagrams.
    warned: Option<Millis>,
}

impl SignedSocket {
    fn record_rejection(&mut self, why: DatagramRejection, from: SocketAddr) {
        let counter = match why {
            DatagramRejection::Signature => &self.refused.signature,
            DatagramRejection::Time { .. } => &self.refused.time,
            DatagramRejection::Malformed => &self.refused.malformed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if self.may_warn() {
            match why {
                DatagramRejection::Signature => tracing::warn!(
                    %from,
                    "gossip without the right signature: has each node the same cluster.secret?"
                ),
                DatagramRejection::Time { secs_off } => tracing::warn!(
                    %from,
                    secs_off,
                    "gossip of another minute: is the clock of each node right? or it was recorded"
                ),
                DatagramRejection::Malformed => {
                    tracing::warn!(%from, "gossip that is not understood: another version?");
                }
            }
        }
    }

    fn may_warn(&mut self) -> bool {
        let now = self.clock.now();
        let may = self
            .warned
            .is_none_or(|last| now.since(last) >= WARNING_EVERY);
        if may {
            self.warned = Some(now);
        }
        may
    }
}

#[async_trait]
impl Socket for SignedSocket {
    /// Datagrams that cannot be sent are lost: the next round repeats the state.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.pending.end(to);
        if is_empty_ack(&message) {
            return Ok(());
        }
        self.sent.clear();
        self.sent.resize(HEAD_BYTES, 0);
        message.serialize(&mut self.sent);
        self.signer.sign(&mut self.sent, unix_secs(self.clock));
        if let Err(error) = self.socket.send_to(&self.sent, to).await {
            self.refused.unsent.fetch_add(1, Ordering::Relaxed);
            if self.may_warn() {
                let bytes = self.sent.len();
                tracing::warn!(%to, bytes, %error, "gossip could not be sent");
            }
        }
        Ok(())
    }

    /// Cancel-safe: a dropped future loses no datagram.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (count, from) = match self.socket.recv_from(&mut self.received).await {
                Ok(received) => received,
                Err(error) => {
                    if self.may_warn() {
                        tracing::warn!(%error, "gossip could not be received");
                    }
                    tokio::time::sleep(RECEIVE_PAUSE).await;
                    continue;
                }
            };
            let now = unix_secs(self.clock);
            let mut message = match self.signer.open(&self.received[..count], now) {
                Ok(message) => message,
                Err(why) => {
                    self.record_rejection(why, from);
                    continue;
                }
            };
            match ChitchatMessage::deserialize(&mut message) {
                Ok(message) => return Ok((from, message)),
                Err(_) => self.record_rejection(DatagramRejection::Malformed, from),
            }
        }
    }
}

/// Checks that no bytes are a signed datagram by themselves, and reads them as the message of one.
#[cfg(any(test, fuzzing))]
pub fn check_gossip_datagram(bytes: &[u8]) {
    const SENT: u64 = 1_800_000_000;
    let signer = Signer::new("a secret of some length");
    assert!(signer.open(bytes, SENT).is_err());
    let mut datagram = vec![0; HEAD_BYTES];
    datagram.extend_from_slice(bytes);
    signer.sign(&mut datagram, SENT);
    assert_eq!(signer.open(&datagram, SENT), Ok(bytes));
    assert!(signer.open(&datagram, SENT + SECS_OFF_MAX + 1).is_err());
    if let Ok(message) = ChitchatMessage::deserialize(&mut &*bytes) {
        let _ = is_empty_ack(&message);
    }
}

/// Returns whether `message` has nothing for its reader. To read such a message costs as much as another:
/// chitchat clears 64 KiB for each.
fn is_empty_ack(message: &ChitchatMessage) -> bool {
    matches!(message, ChitchatMessage::Ack { .. }) && message.serialized_len() == EMPTY_ACK_BYTES
}

/// A wall clock before 1970 is taken for 1970.
fn unix_secs(clock: Clock) -> u64 {
    u64::try_from(clock.wall().unix_timestamp()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn signed(secret: &str, message: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; HEAD_BYTES];
        datagram.extend(message);
        Signer::new(secret).sign(&mut datagram, NOW);
        datagram
    }

    #[test]
    fn only_what_was_signed_with_the_same_secret_is_opened() {
        let datagram = signed("a secret of some length", b"news");
        let signer = Signer::new("a secret of some length");
        assert_eq!(signer.open(&datagram, NOW), Ok(&b"news"[..]));
        let unsigned = Err(DatagramRejection::Signature);
        assert_eq!(Signer::new("another").open(&datagram, NOW), unsigned);
        for at in 0..datagram.len() {
            let mut touched = datagram.clone();
            touched[at] ^= 1;
            assert_eq!(signer.open(&touched, NOW), unsigned, "byte {at}");
        }
        for length in 0..datagram.len() {
            assert_eq!(signer.open(&datagram[..length], NOW), unsigned, "{length}");
        }
    }

    #[test]
    fn fuzzing_begins_with_messages_that_are_read() {
        for seed in [
            &include_bytes!("../../../fuzz/seeds/datagrams_of_gossip/ack")[..],
            include_bytes!("../../../fuzz/seeds/datagrams_of_gossip/ack_plain"),
            include_bytes!("../../../fuzz/seeds/datagrams_of_gossip/bad_cluster"),
            include_bytes!("../../../fuzz/seeds/datagrams_of_gossip/syn"),
        ] {
            let read = ChitchatMessage::deserialize(&mut &*seed);
            assert!(read.is_ok(), "{read:?}");
        }
    }

    #[test]
    fn an_acknowledgement_without_news_is_not_sent_and_one_with_news_is() {
        let read = |mut bytes: &[u8]| ChitchatMessage::deserialize(&mut bytes).unwrap();
        let magic = 45_139_u16.to_le_bytes();
        let empty = [&magic[..], &[0, 2, 0]].concat();
        assert!(is_empty_ack(&read(&empty)));
        // An uncompressed block that says of node `b`, generation 1, that it has nothing before version 2.
        let node = [
            &[0, 1, 0, b'b'][..],
            &1_u64.to_le_bytes(),
            &[4, 127, 0, 0, 1, 1, 0],
            &0_u64.to_le_bytes(),
            &2_u64.to_le_bytes(),
        ]
        .concat();
        let length = u16::try_from(node.len()).unwrap().to_le_bytes();
        let news = [&magic[..], &[0, 2, 2], &length, &node, &[0]].concat();
        assert!(!is_empty_ack(&read(&news)));
    }

    #[test]
    fn an_address_is_greeted_again_only_after_something_was_sent_to_it() {
        let pending = PendingContacts::default();
        let at = |port: usize| SocketAddr::from(([10, 0, 0, 1], 7000 + port as u16));
        assert!(pending.begin(at(0)) && !pending.begin(at(0)));
        assert!((1..PENDING_MAX).all(|port| pending.begin(at(port))));
        assert!(!pending.begin(at(PENDING_MAX)));
        pending.end(at(0));
        assert!(pending.begin(at(0)));
    }

    #[test]
    fn what_was_recorded_more_than_a_minute_ago_is_not_opened() {
        let datagram = signed("a secret of some length", b"news");
        let signer = Signer::new("a secret of some length");
        for at in [NOW - 60, NOW + 60] {
            assert_eq!(signer.open(&datagram, at), Ok(&b"news"[..]));
        }
        let untimely = Err(DatagramRejection::Time { secs_off: 61 });
        for at in [NOW - 61, NOW + 61] {
            assert_eq!(signer.open(&datagram, at), untimely);
        }
        assert!(signer.open(&datagram, u64::MAX).is_err());
    }
}
