//! The sender against real sockets: receivers that read, hang, leave and come back.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use rustix::net::listen;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

fn config(path: &Path, transport: SocketTransport) -> EventSocketConfig {
    EventSocketConfig {
        path: path.into(),
        transport,
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = host_time();
    while !holds() {
        assert!(
            host_time().since(began) < millis(LIMIT),
            "not in time: {what}"
        );
        thread::yield_now();
    }
}

fn start(
    path: &Path,
    transport: SocketTransport,
    bounds: (usize, Duration),
) -> (EventSocket, Arc<SocketTally>) {
    let tally = Arc::new(SocketTally::default());
    let socket = EventSocket::start(&config(path, transport), &tally, bounds).unwrap();
    (socket, tally)
}

#[test]
fn a_stream_carries_lines_and_outlives_its_receiver() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (socket, tally) = start(&path, SocketTransport::Stream, (100, NEVER));
    // Nobody listens yet: the line waits.
    socket.offer(b"first\n");
    until("the reason is shown", || {
        tally.counts().last_error.is_some()
    });
    let listener = UnixListener::bind(&path).unwrap();
    let mut receiver = BufReader::new(listener.accept().unwrap().0);
    let mut line = String::new();
    receiver.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    until("it works", || {
        let counts = tally.counts();
        counts.sent == 1 && counts.last_error.is_none()
    });
    drop(receiver);
    // The first ones may be lost with the connection.
    let mut receiver = None;
    listener.set_nonblocking(true).unwrap();
    until("another connection is made", || {
        socket.offer(b"later\n");
        receiver = receiver.take().or_else(|| listener.accept().ok());
        receiver.is_some()
    });
    drop(socket);
    let (stream, _) = receiver.unwrap();
    stream.set_nonblocking(false).unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line == "later"));
}

#[test]
fn each_datagram_is_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let (socket, tally) = start(&path, SocketTransport::Datagram, (100, NEVER));
    for line in ["one\n", "two\n"] {
        socket.offer(line.as_bytes());
        let mut room = [0; 64];
        let length = receiver.recv(&mut room).unwrap();
        assert_eq!(&room[..length], line.as_bytes());
    }
    socket.offer(&vec![b'x'; 64 << 20]);
    until("a line that is too long is dropped", || {
        tally.counts().dropped_too_long == 1
    });
    socket.close();
    assert_eq!(tally.counts().sent, 2);
}

#[test]
fn a_receiver_that_hangs_costs_lines_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let watchdog = Duration::from_millis(300);
    let (socket, tally) = start(&path, SocketTransport::Stream, (2, watchdog));
    let (_hanging, _) = {
        socket.offer(b"taken\n");
        listener.accept().unwrap()
    };
    // More than the kernel keeps for a receiver that does not read.
    let large = vec![b'x'; 1 << 20];
    until("lines are late, and too many", || {
        socket.offer(&large);
        let counts = tally.counts();
        counts.dropped_late > 0 && counts.dropped_overrun > 0
    });
    let began = host_time();
    socket.close();
    assert!(host_time().since(began) < millis(LIMIT));
    let counts = tally.counts();
    let parts = [
        counts.dropped_overrun,
        counts.dropped_late,
        counts.dropped_closed,
    ];
    assert_eq!(counts.dropped, parts.iter().sum::<u64>());
}

/// A receiver that accepts no connection, and whose queue of them is full.
pub fn hung_receiver(path: &Path) -> (UnixListener, Vec<OwnedFd>) {
    let listener = UnixListener::bind(path).unwrap();
    listen(&listener, 0).unwrap();
    let address = SocketAddrUnix::new(path).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(full) => {
                assert_eq!(full, Errno::AGAIN);
                return (listener, waiting);
            }
        }
    }
}

#[test]
fn a_receiver_that_accepts_no_connection_costs_lines_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (listener, waiting) = hung_receiver(&path);
    let bounds = (10, Duration::from_millis(50));
    let (socket, tally) = start(&path, SocketTransport::Stream, bounds);
    socket.offer(b"late\n");
    until("it is late", || tally.counts().dropped_late == 1);
    assert_eq!(
        tally.counts().last_error.unwrap(),
        "the receiver accepts no connection"
    );
    socket.close();
    // Once it takes connections it gets what waits.
    let (socket, tally) = start(&path, SocketTransport::Stream, (10, NEVER));
    socket.offer(b"waits\n");
    drop(waiting);
    until("it has come", || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&mut stream).read_line(&mut line).unwrap();
        line == "waits\n"
    });
    socket.close();
    assert_eq!(tally.counts().sent, 1);
}

#[test]
fn without_a_receiver_lines_are_dropped_when_they_are_late_or_the_gateway_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nobody");
    let bounds = (10, Duration::from_millis(50));
    let (socket, tally) = start(&path, SocketTransport::Datagram, bounds);
    socket.offer(b"late\n");
    until("it is late", || tally.counts().dropped_late == 1);
    drop(socket);
    let (socket, tally) = start(&path, SocketTransport::Stream, (10, NEVER));
    socket.offer(b"waits\n");
    socket.offer(b"waits\n");
    socket.close();
    assert_eq!(tally.counts().dropped_closed, 2);
}
