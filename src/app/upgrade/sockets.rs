//! Listening sockets on their way to a successor: names with file descriptors, sent at once over a Unix socket.
//!
//! Sockets of the kernel stay the same with their queues: a connection that waits in one is accepted by either process.
//! Names are addresses as the configuration has them, so that a successor with another file takes those that it knows.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Most sockets of a process: 64 listeners for clients and four others.
pub const SOCKETS_MAX: usize = 68;
/// Longest list of names: paths of Unix sockets have at most 108 bytes.
const NAMES_BYTES_MAX: u64 = 64 << 10;

/// Use of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketName {
    /// For clients, at an address of `listen.clients`.
    Clients(String),
    /// For operators.
    Admin(SocketAddr),
    /// For other nodes.
    Peers(SocketAddr),
    /// For containers of models.
    Callbacks(SocketAddr),
    /// Datagrams of the cluster. Read by one process at a time.
    Gossip(SocketAddr),
}

/// Socket with its name.
#[derive(Debug)]
pub struct NamedSocket {
    /// Use of the socket.
    pub name: SocketName,
    /// Descriptor of this process.
    pub socket: OwnedFd,
}

impl NamedSocket {
    /// Names another descriptor of a socket.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn duplicate(name: SocketName, socket: BorrowedFd<'_>) -> io::Result<NamedSocket> {
        let socket = socket.try_clone_to_owned()?;
        Ok(NamedSocket { name, socket })
    }
}

/// Sockets that came from a predecessor or a service manager and are not in use yet. Drop closes the rest.
#[derive(Debug, Default)]
pub struct SocketSet(Vec<NamedSocket>);

impl SocketSet {
    /// Sockets that somebody else opened.
    pub fn of(sockets: Vec<NamedSocket>) -> SocketSet {
        SocketSet(sockets)
    }

    /// Takes the first socket of the name.
    pub fn take(&mut self, name: &SocketName) -> Option<OwnedFd> {
        let at = self.0.iter().position(|socket| socket.name == *name)?;
        Some(self.0.remove(at).socket)
    }
}

/// Sends sockets with their names. Waits while the other end reads nothing.
///
/// # Errors
/// The other end is gone, or there are more sockets than one message takes.
pub fn send_sockets(stream: &mut UnixStream, sockets: &[NamedSocket]) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|it| it.socket.as_fd()).collect();
    let names: Vec<&SocketName> = sockets.iter().map(|it| &it.name).collect();
    let names = serde_json::to_vec(&names)?;
    let length = (names.len() as u64).to_be_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other(format!(
            "more than {SOCKETS_MAX} sockets cannot be handed over"
        )));
    }
    let parts = [IoSlice::new(&length)];
    let sent = sendmsg(&*stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&length[sent..])?;
    stream.write_all(&names)
}

/// Receives what [`send_sockets`] has sent.
///
/// # Errors
/// The other end is gone, or something else came.
pub fn receive_sockets(stream: &mut UnixStream) -> io::Result<SocketSet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 8];
    let mut parts = [IoSliceMut::new(&mut length)];
    let received = recvmsg(&*stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let read = received.bytes;
    stream.read_exact(&mut length[read..])?;
    let length = u64::from_be_bytes(length);
    let mut names = Vec::new();
    stream
        .take(length.min(NAMES_BYTES_MAX))
        .read_to_end(&mut names)?;
    let names: Vec<SocketName> = serde_json::from_slice(&names)?;
    if names.len() != descriptors.len() {
        return Err(io::Error::other(format!(
            "{} sockets came with {} names",
            descriptors.len(),
            names.len()
        )));
    }
    let named = names.into_iter().zip(descriptors);
    let named = named.map(|(name, socket)| NamedSocket { name, socket });
    Ok(SocketSet(named.collect()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_that_waits_at_a_socket_is_accepted_after_the_hand_over() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = TcpStream::connect(address).unwrap();
        let names = [
            SocketName::Clients("127.0.0.1:0".into()),
            SocketName::Admin(address),
        ];
        let named = names.clone().map(|name| {
            let socket = NamedSocket::duplicate(name, listener.as_fd());
            socket.unwrap()
        });
        send_sockets(&mut here, &named).unwrap();
        drop((named, listener));
        let mut set = receive_sockets(&mut there).unwrap();
        assert!(set.take(&SocketName::Peers(address)).is_none());
        let socket = set.take(&names[0]).unwrap();
        assert!(set.take(&names[0]).is_none());
        let (accepted, _) = TcpListener::from(socket).accept().unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), waiting.local_addr().unwrap());
    }

    #[test]
    fn what_is_not_a_hand_over_is_refused() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&[0; 12]).unwrap();
        drop(here);
        assert!(receive_sockets(&mut there).is_err());
    }
}
