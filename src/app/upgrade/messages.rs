//! Messages of an upgrade: between the command and the process that serves, and between that one and its successor.
//!
//! A frame is a length in four bytes and JSON. Both ends may be releases of different age: an end that does not understand
//! a frame closes the connection, and the process that serves goes on.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use infergate_core::billing::QuotaSnapshot;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::app::membership_handover::FormerNode;
use crate::upstream::PermitReport;

/// Longest frame: a hundred thousand servers with their permits.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Request of `infergate upgrade`.
#[derive(Debug, Serialize, Deserialize)]
pub struct UpgradeRequest {
    /// Program of the successor.
    pub binary: PathBuf,
    /// Its configuration file.
    pub config: PathBuf,
}

/// Answers to [`UpgradeRequest`]: progress until one of the ends.
#[derive(Debug, Serialize, Deserialize)]
pub enum UpgradeAnswer {
    /// Step that has begun.
    Progress(String),
    /// The successor serves.
    Done {
        /// Its process.
        pid: u32,
    },
    /// The process that served before serves on.
    Failed(String),
}

/// Messages of a successor.
#[derive(Debug, Serialize, Deserialize)]
pub enum SuccessorMessage {
    /// Step that has begun.
    Progress(String),
    /// Reason why it cannot serve; it ends.
    Failed(String),
    /// Configuration and plugins are loaded.
    Ready,
    /// Everything runs: connections are accepted once the first permits have come.
    Serving,
    /// Permits and wishes.
    Permits(PermitReport),
}

/// Messages of the process that served before.
#[derive(Debug, Serialize, Deserialize)]
pub enum PredecessorMessage {
    /// The successor is to serve.
    Begin {
        /// Permits that it does not have yet, by server.
        owned: BTreeMap<String, u32>,
        /// Neurons of the day that are used.
        quota: QuotaSnapshot,
        /// Node of a cluster that the predecessor is.
        #[serde(default)]
        node: Option<FormerNode>,
    },
    /// Permits and wishes.
    Permits(PermitReport),
}

/// Frame of a message.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Sends a message.
pub async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> io::Result<()> {
    stream.write_all(&frame(message)?).await
}

/// Receives a message. Dropping the future loses a part that has come.
///
/// # Errors
/// The connection has ended, or something else came.
pub async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = stream.read_u32().await? as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut body = Vec::new();
    let read = stream.take(length as u64).read_to_end(&mut body).await?;
    if read < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_arrives_whole_and_nothing_else_is_taken_for_one() {
        let (mut one, mut other) = tokio::io::duplex(1 << 16);
        send(&mut one, &SuccessorMessage::Ready).await.unwrap();
        let ready = receive(&mut other).await.unwrap();
        assert!(matches!(ready, SuccessorMessage::Ready));
        one.write_all(&[0xff; 8]).await.unwrap();
        assert!(receive::<SuccessorMessage>(&mut other).await.is_err());
        let (mut one, mut other) = tokio::io::duplex(1 << 16);
        let cut = frame(&SuccessorMessage::Failed("why".into())).unwrap();
        one.write_all(&cut[..cut.len() - 1]).await.unwrap();
        drop(one);
        let error = receive::<SuccessorMessage>(&mut other).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
