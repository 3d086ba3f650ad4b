//! What came while the process stood still.
//!
//! Not the timers themselves.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

/// Least time that a timer of the runtime waits: one turn of its driver.
const TURN: Duration = Duration::from_millis(1);

/// Waits until the runtime has looked at its sockets once more. After the process stood still (stopped, or a machine that
/// slept), the wait for events is interrupted and a timer fires before they are seen. Each turn of the driver sees them
/// before it fires timers: a timer that is set now fires after whatever came meanwhile.
// Boxed: it comes once in the life of a request.
pub fn sockets_seen() -> Pin<Box<impl Future<Output = ()> + Send>> {
    Box::pin(sleep(TURN))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::pin::pin;

    use futures_util::poll;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_runtime_has_not_seen_yet_is_read_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut server = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (client, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        let mut client = tokio::net::TcpStream::from_std(client).unwrap();
        let mut byte = [0];
        let mut reading = pin!(client.read(&mut byte));
        assert!(poll!(reading.as_mut()).is_pending());
        server.write_all(b"x").unwrap();
        tokio::select! {
            biased;
            read = reading => assert_eq!(read.unwrap(), 1),
            () = sockets_seen() => panic!("the timer was first"),
        }
    }
}
