//! Failover: one of two servers, or both, refuse, break or hang, at two requests a second and at 200.
//! Not a load test: each row says what was served, what was lost, and what it cost in tries.
//!
//! The tries are the gateway's own count, since a refused connection is seen by no server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::backend;
use crate::client::{ChatRequest, Client, Outcome};
use crate::kit::Fallible;
use crate::kit::gateway::{Account, Gateway, Model, Settings};
use crate::stand::{MODEL, Scale};
use crate::table::Table;

/// Two, because the failures of one account alone eject nothing that served it lately.
const ACCOUNTS: [&str; 2] = ["acme", "bolt"];
const SERVICE_MS: u64 = 5;
/// `first_byte_timeout_secs` of the model.
const FIRST_BYTE_SECS: u64 = 2;
/// No answer is later with both servers bad.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// Requests a second and the longest time they are sent for.
const RATES: [(u64, Duration); 2] = [(2, Duration::from_secs(10)), (200, Duration::from_secs(5))];

/// Fault of a bad server; its health checks pass, unless it is not there.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Status(&'static str),
    Reset,
    Refused,
    Hang,
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::Status("503 Service Unavailable"), "503"),
    (Fault::Status("429 Too Many Requests"), "429"),
    (Fault::Reset, "reset before head"),
    (Fault::Refused, "refused"),
    (Fault::Status("401 Unauthorized"), "401"),
    (Fault::Hang, "hang"),
];

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    for (fault, name) in FAULTS {
        for bad_servers in [1, 2] {
            for (rate, longest) in RATES {
                let row = row(runtime, fault, bad_servers, rate, longest.min(scale.step))?;
                let (goal, met) = row.judge(fault, bad_servers);
                table.add(
                    "failover",
                    format!("{name}, {bad_servers} of 2 bad, {rate}/s"),
                    goal,
                    row.text(),
                    met,
                );
            }
        }
    }
    Ok(())
}

/// Outcome of a scenario.
struct FailoverRow {
    requests: u64,
    seconds: u64,
    served: u64,
    lost: u64,
    /// Lost ones with status 504.
    late: u64,
    attempts: u64,
    /// Requests that reached a bad server.
    started: u64,
    slowest: Duration,
    permits: u64,
}

impl FailoverRow {
    fn judge(&self, fault: Fault, bad_servers: usize) -> (String, bool) {
        if bad_servers == 2 {
            let most = self.requests * 11 / 10 + 2 * self.seconds;
            let met = self.attempts <= most && self.slowest <= ANSWER_MAX;
            return (format!("≤ {most} attempts, ≤ 8 s"), met);
        }
        match fault {
            Fault::Status(_) | Fault::Refused => ("0 lost".into(), self.lost == 0),
            Fault::Reset => ("lost only where begun".into(), self.lost <= self.started),
            Fault::Hang => {
                let most = 5 + self.permits;
                let met = self.lost <= most && self.late == self.lost;
                (format!("≤ {most} lost, each 504"), met)
            }
        }
    }

    fn text(&self) -> String {
        format!(
            "{} served, {} lost, {} attempts of {} requests, slowest {:.2} s",
            self.served,
            self.lost,
            self.attempts,
            self.requests,
            self.slowest.as_secs_f64()
        )
    }
}

fn row(
    runtime: &Runtime,
    fault: Fault,
    bad_servers: usize,
    rate: u64,
    span: Duration,
) -> Fallible<FailoverRow> {
    let running = Arc::new(AtomicU64::new(0));
    let mut bad = Vec::new();
    for _ in 0..bad_servers {
        bad.push(BadServer::start(runtime, fault, &running)?);
    }
    let mut endpoints: Vec<SocketAddr> = bad.iter().map(|bad| bad.address).collect();
    if endpoints.len() < 2 {
        endpoints.push(backend::start(runtime)?.0);
    }
    let permits = match fault {
        Fault::Hang => 4,
        _ => 32,
    };
    let gateway = start(endpoints, permits)?;
    let client = Client::new(gateway.clients);
    let outcomes = runtime.block_on(send(&client, rate, span));
    let count = |wanted: fn(u16) -> bool| {
        let of = outcomes.iter().filter(|outcome| wanted(outcome.status));
        of.count() as u64
    };
    let slowest = outcomes.iter().map(Outcome::took).max();
    Ok(FailoverRow {
        requests: outcomes.len() as u64,
        seconds: span.as_secs().max(1),
        served: count(|status| status == 200),
        lost: count(|status| status != 200),
        late: count(|status| status == 504),
        attempts: attempts(&gateway)?,
        started: running.load(Ordering::Relaxed),
        slowest: slowest.unwrap_or_default(),
        permits: permits.into(),
    })
}

/// A gateway whose model has these endpoints and a time for the first byte.
fn start(endpoints: Vec<SocketAddr>, permits_per_endpoint: u32) -> Fallible<Gateway> {
    let settings = Settings {
        threads: 2,
        accounts: ACCOUNTS.map(Account::new).to_vec(),
        models: vec![Model {
            id: MODEL.into(),
            endpoints,
            permits_per_endpoint,
            algorithm: "fair",
            capacity: 16,
        }],
        plugins: None,
        fleet: None,
    };
    let gateway = Gateway::start("failover", settings.clone(), None)?;
    let timeout = format!("    first_byte_timeout_secs: {FIRST_BYTE_SECS}\n    endpoints:");
    let text = gateway.yaml_of(&settings);
    std::fs::write(
        &gateway.config,
        text.replacen("    endpoints:", &timeout, 1),
    )?;
    match gateway.reload()? {
        200 => Ok(gateway),
        status => Err(format!("/reload answered {status}").into()),
    }
}

/// Open loop: requests leave at their time, whatever became of the others.
async fn send(client: &Client, rate: u64, span: Duration) -> Vec<Outcome> {
    let mut under_way = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate as u32);
    let ends_at = Instant::now() + span;
    for number in 0.. {
        ticks.tick().await;
        if Instant::now() >= ends_at {
            break;
        }
        let client = client.clone();
        let account = ACCOUNTS[number % ACCOUNTS.len()];
        under_way.spawn(async move {
            let ask = ChatRequest::plain(account, MODEL, SERVICE_MS);
            client.send(&ask).await
        });
    }
    under_way.join_all().await
}

/// Tries at model servers, of all results together.
fn attempts(gateway: &Gateway) -> Fallible<u64> {
    let metrics = gateway.metrics()?;
    let mut sum = 0.0;
    for line in metrics.lines() {
        if line.starts_with("infergate_upstream_attempts_total{") {
            let value = line.rsplit(' ').next().unwrap_or_default();
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum as u64)
}

/// A server that does one thing wrong.
struct BadServer {
    address: SocketAddr,
    /// Bound and not listening, where connections are to be refused.
    _socket: Option<TcpSocket>,
}

impl BadServer {
    fn start(runtime: &Runtime, fault: Fault, running: &Arc<AtomicU64>) -> Fallible<BadServer> {
        let _entered = runtime.enter();
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.1:0".parse()?)?;
        let address = socket.local_addr()?;
        if fault == Fault::Refused {
            let _socket = Some(socket);
            return Ok(BadServer { address, _socket });
        }
        let listener = socket.listen(1024)?;
        runtime.spawn(accept(listener, fault, Arc::clone(running)));
        Ok(BadServer {
            address,
            _socket: None,
        })
    }
}

async fn accept(listener: TcpListener, fault: Fault, running: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let running = Arc::clone(&running);
        connections.spawn(async move {
            // A connection that breaks is the gateway's to see.
            let _ = serve(stream, fault, &running).await;
        });
    }
}

/// Serves the requests of a connection, one after the other. A request counts as arrived with its first
/// read; the rest of its body is read with it or thrown away.
async fn serve(mut stream: TcpStream, fault: Fault, running: &AtomicU64) -> Fallible<()> {
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        if buffer.starts_with(b"GET ") {
            stream.write_all(&answer("200 OK")).await?;
            continue;
        }
        running.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Status(status) => stream.write_all(&answer(status)).await?,
            Fault::Reset => {
                stream.set_zero_linger()?;
                return Ok(());
            }
            Fault::Hang | Fault::Refused => {
                // Until the gateway gives it up.
                while stream.read(&mut buffer).await? > 0 {}
                return Ok(());
            }
        }
    }
}

fn answer(status: &str) -> Vec<u8> {
    let head = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    format!("HTTP/1.1 {status}\r\n{head}").into_bytes()
}
