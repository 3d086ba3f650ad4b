//! A node of version 1 of the protocol, as far as gossip goes: it signs, publishes and listens as that version did.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, Serializable, spawn_chitchat,
};
use hmac::{Hmac, Mac};
use infergate::parts::Clock;
use sha2::Sha256;
use tokio::net::UdpSocket;

use super::free_address;

/// Before the message: the signature and the time.
const TAG_BYTES: usize = 32;
const HEAD_BYTES: usize = TAG_BYTES + 8;

/// Gossips as a node of version 1 until the value is dropped.
pub struct OldNode {
    handle: ChitchatHandle,
}

impl OldNode {
    /// Publishes node `name`, which would serve model `m` with four permits.
    pub async fn start(name: &str, secret: &'static str, seed: SocketAddr) -> OldNode {
        let address = free_address();
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(name, 1, address),
            cluster_id: "infergate-1".to_owned(),
            gossip_interval: Duration::from_millis(100),
            listen_addr: address,
            seed_nodes: vec![seed.to_string()],
            failure_detector_config: FailureDetectorConfig::default(),
            marked_for_deletion_grace_period: Duration::from_secs(60),
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let own = vec![
            ("model/m".to_owned(), "1 4 4 0 8 0 0 0".to_owned()),
            (
                "node".to_owned(),
                format!("1 1 1 0 127.0.0.1:{} fra", address.port()),
            ),
        ];
        let transport = SignedTransport { secret };
        let handle = spawn_chitchat(config, own, &transport).await.unwrap();
        OldNode { handle }
    }

    /// Record that another node has published. A node of version 1 reads those that begin with `1 `, and leaves
    /// others out.
    pub async fn record_of(&self, name: &str) -> Option<String> {
        let chitchat = self.handle.chitchat();
        let chitchat = chitchat.lock().await;
        let mut states = chitchat.node_states().iter();
        let (_, state) = states.find(|(id, _)| *id.node_id == *name)?;
        state.get("node").map(str::to_owned)
    }
}

impl Drop for OldNode {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

struct SignedTransport {
    secret: &'static str,
}

#[async_trait]
impl Transport for SignedTransport {
    async fn open(&self, address: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(SignedSocket {
            socket: UdpSocket::bind(address).await?,
            secret: self.secret,
        }))
    }
}

struct SignedSocket {
    socket: UdpSocket,
    secret: &'static str,
}

#[async_trait]
impl Socket for SignedSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut datagram = vec![0; HEAD_BYTES];
        message.serialize(&mut datagram);
        let now = u64::try_from(Clock::start().wall().unix_timestamp())?;
        let (tag, signed) = datagram.split_at_mut(TAG_BYTES);
        signed[..8].copy_from_slice(&now.to_be_bytes());
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes())?;
        mac.update(b"infergate gossip 2\0");
        mac.update(signed);
        tag.copy_from_slice(&mac.finalize().into_bytes());
        let _ = self.socket.send_to(&datagram, to).await;
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        let mut bytes = vec![0; 65_507];
        loop {
            let (count, from) = self.socket.recv_from(&mut bytes).await?;
            let Some(mut message) = bytes[..count].get(HEAD_BYTES..) else {
                continue;
            };
            if let Ok(message) = ChitchatMessage::deserialize(&mut message) {
                return Ok((from, message));
            }
        }
    }
}
