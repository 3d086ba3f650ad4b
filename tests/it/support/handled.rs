//! A model server of which a function decides what becomes of each request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::backend::{json_answer, request};

/// Reaction of the scripted server to a request.
pub enum Reaction {
    /// Answers with these bytes and keeps the connection.
    Answer(String),
    /// Answers with these bytes and closes without a word.
    AnswerAndClose(String),
    /// Works so long, then closes without a byte.
    Crash(Duration),
    /// Works so long, then answers with these bytes.
    AnswerAfter(Duration, String),
}

type Decide = dyn Fn(&str) -> Reaction + Send + Sync;

/// The server, ended with the value. Health checks are answered and not counted.
pub struct HandledServer {
    /// Address at which it listens.
    pub address: SocketAddr,
    seen: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl HandledServer {
    /// Serves requests as `decide` says, from head and body as text.
    pub async fn by(decide: impl Fn(&str) -> Reaction + Send + Sync + 'static) -> HandledServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let (decide, counter): (Arc<Decide>, _) = (Arc::new(decide), Arc::clone(&seen));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                connections.spawn(serve(tcp, Arc::clone(&decide), Arc::clone(&counter)));
            }
        });
        HandledServer {
            address,
            seen,
            _tasks: tasks,
        }
    }

    /// Requests received so far.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

async fn serve(mut tcp: TcpStream, decide: Arc<Decide>, seen: Arc<AtomicUsize>) {
    let mut read = Vec::new();
    while let Some(request) = request(&mut tcp, &mut read).await {
        if request.starts_with("GET ") {
            let ok = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
            let _ = tcp.write_all(ok.as_bytes()).await;
            return;
        }
        seen.fetch_add(1, Ordering::SeqCst);
        let (answer, closes) = match decide(&request) {
            Reaction::Answer(answer) => (answer, false),
            Reaction::AnswerAndClose(answer) => (answer, true),
            Reaction::Crash(after) => return tokio::time::sleep(after).await,
            Reaction::AnswerAfter(after, answer) => {
                tokio::time::sleep(after).await;
                (answer, false)
            }
        };
        if tcp.write_all(answer.as_bytes()).await.is_err() || closes {
            return;
        }
    }
}

/// A server that may stop to take connections and goes on with those that it has, ended with the value. A request is
/// answered once [`DeafServer::answer_one`] lets it, a health check at once.
pub struct DeafServer {
    /// Address at which it listens.
    pub address: SocketAddr,
    inner: Arc<Deaf>,
    _tasks: JoinSet<()>,
}

struct Deaf {
    /// New connections are closed at once.
    is_deaf: AtomicBool,
    closed: AtomicUsize,
    held: AtomicUsize,
    answers: Semaphore,
}

impl DeafServer {
    /// Serves, and takes connections.
    pub async fn new() -> DeafServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Deaf {
            is_deaf: AtomicBool::new(false),
            closed: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            answers: Semaphore::new(0),
        });
        let mut tasks = JoinSet::new();
        let own = Arc::clone(&inner);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                match own.is_deaf.load(Ordering::SeqCst) {
                    true => drop(own.closed.fetch_add(1, Ordering::SeqCst)),
                    false => drop(connections.spawn(own.clone().serve(tcp))),
                }
            }
        });
        DeafServer {
            address,
            inner,
            _tasks: tasks,
        }
    }

    /// Takes no connection from now on, or takes them again.
    pub fn set_deaf(&self, is_deaf: bool) {
        self.inner.is_deaf.store(is_deaf, Ordering::SeqCst);
    }

    /// Connections that were closed at once.
    pub fn closed(&self) -> usize {
        self.inner.closed.load(Ordering::SeqCst)
    }

    /// Requests that wait for their answer.
    pub fn held(&self) -> usize {
        self.inner.held.load(Ordering::SeqCst)
    }

    /// Lets one request be answered.
    pub fn answer_one(&self) {
        self.inner.answers.add_permits(1);
    }
}

impl Deaf {
    async fn serve(self: Arc<Deaf>, mut tcp: TcpStream) {
        let mut read = Vec::new();
        while let Some(request) = request(&mut tcp, &mut read).await {
            if request.starts_with("GET ") {
                // Closed, so that the next check does not come by it once the server is deaf.
                let last = json_answer("{}").replacen("\r\n", "\r\nConnection: close\r\n", 1);
                let _ = tcp.write_all(last.as_bytes()).await;
                return;
            }
            self.held.fetch_add(1, Ordering::SeqCst);
            self.answers.acquire().await.unwrap().forget();
            self.held.fetch_sub(1, Ordering::SeqCst);
            if tcp.write_all(json_answer("{}").as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
