//! Timers after the process was suspended, by SIGSTOP or with its machine.
//!
//! Not the timers themselves.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;

/// Shortest timer of the runtime: it ends with the next poll of the I/O driver.
const TURN: Duration = Duration::from_millis(1);

/// Waits for the next poll of the I/O driver. A signal interrupts the driver's wait without events, and timers that are
/// over fire before any socket is polled. In each other turn of the driver sockets come before timers: a timer that is set
/// now fires after them. To be awaited before a timer ends a wait for bytes.
// Boxed: it comes once in the life of a request.
pub fn next_io_poll() -> Pin<Box<impl Future<Output = ()> + Send>> {
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
    async fn bytes_that_the_driver_has_not_polled_yet_are_read_first() {
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
            () = next_io_poll() => panic!("the timer was first"),
        }
    }
}
