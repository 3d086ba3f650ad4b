//! Item 6: clients that leave while queued, before the first byte and in the middle of a stream.
//! Not a test of one path: each trial looks at the gateway's state and at the backend's own count.
//!
//! FIN is half a close by a client that still listens; RST is a close with nothing lingering.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::client::ChatRequest;
use crate::kit::Fallible;
use crate::kit::gateway::Account;
use crate::stand::{HeldAdmission, MODEL, Scale, TestBed};
use crate::table::Table;

const ACCOUNT: &str = "acme";
const TRIALS: usize = 100;
/// The promise.
const GOAL: Duration = Duration::from_millis(250);
/// Longest wait for a phase to begin or for what is held to come back; beyond it a trial has failed.
const LIMIT: Duration = Duration::from_secs(5);
/// A service nobody waits for: the trial ends it.
const ENDLESS_MS: u64 = 200_000;

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Queued,
    BeforeFirstByte,
    MidStream,
}

#[derive(Clone, Copy)]
enum Leaving {
    Fin,
    Rst,
}

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let stand = TestBed::open(
        "disconnect",
        runtime,
        vec![Account::new(ACCOUNT)],
        1,
        "fair",
        16,
    )?;
    for (phase, name) in [
        (Phase::Queued, "queued"),
        (Phase::BeforeFirstByte, "before the first byte"),
        (Phase::MidStream, "mid-stream"),
    ] {
        for (leaving, how) in [(Leaving::Fin, "FIN"), (Leaving::Rst, "RST")] {
            let trials = scale.count(TRIALS);
            let mut took = series(runtime, &stand, phase, leaving, trials)?;
            took.sort_unstable();
            let worst = took.last().copied().unwrap_or(LIMIT);
            let late = took.iter().filter(|took| **took > GOAL).count();
            table.add(
                "6",
                format!("{name}, {how}, {trials} trials: all given back"),
                "≤ 250 ms",
                format!(
                    "worst {} ms, median {} ms, {late} late",
                    worst.as_millis(),
                    took[took.len() / 2].as_millis()
                ),
                late == 0,
            );
        }
    }
    table.keep(stand.close()?);
    Ok(())
}

/// Trials one after the other, so that each one's effect can be told.
fn series(
    runtime: &Runtime,
    stand: &TestBed,
    phase: Phase,
    leaving: Leaving,
    trials: usize,
) -> Fallible<Vec<Duration>> {
    let endless = ChatRequest::plain(ACCOUNT, MODEL, ENDLESS_MS);
    let holder = match phase {
        Phase::Queued => {
            let holder = runtime.block_on(stand.client.open(&endless))?;
            wait_for(
                stand,
                HeldAdmission {
                    used: 1,
                    waiting: 0,
                },
                1,
            )?;
            Some(holder)
        }
        Phase::BeforeFirstByte | Phase::MidStream => None,
    };
    let (rest, rest_in_flight) = match holder {
        Some(_) => (
            HeldAdmission {
                used: 1,
                waiting: 0,
            },
            1,
        ),
        None => (
            HeldAdmission {
                used: 0,
                waiting: 0,
            },
            0,
        ),
    };
    let mut took = Vec::with_capacity(trials);
    for _ in 0..trials {
        let stream = runtime.block_on(enter(stand, phase))?;
        let (within, in_flight) = match phase {
            Phase::Queued => (
                HeldAdmission {
                    used: 1,
                    waiting: 1,
                },
                1,
            ),
            Phase::BeforeFirstByte | Phase::MidStream => (
                HeldAdmission {
                    used: 1,
                    waiting: 0,
                },
                1,
            ),
        };
        wait_for(stand, within, in_flight)?;
        let started = stand.book.started();
        let left_at = Instant::now();
        let still_listening = runtime.block_on(leave(stream, leaving))?;
        let back = wait_for(stand, rest, rest_in_flight);
        took.push(back.map_or(LIMIT, |()| left_at.elapsed()));
        drop(still_listening);
        if stand.book.started() != started {
            return Err("a client that had left reached the backend".into());
        }
    }
    if let Some(holder) = holder {
        runtime.block_on(leave(holder, Leaving::Rst))?;
        wait_for(
            stand,
            HeldAdmission {
                used: 0,
                waiting: 0,
            },
            0,
        )?;
    }
    Ok(took)
}

/// Sends a request and, in a stream, reads until its first event.
async fn enter(stand: &TestBed, phase: Phase) -> Fallible<TcpStream> {
    let ask = match phase {
        Phase::Queued | Phase::BeforeFirstByte => ChatRequest::plain(ACCOUNT, MODEL, ENDLESS_MS),
        Phase::MidStream => ChatRequest {
            tokens: 10_000,
            event_ms: Some(20),
            ..ChatRequest::plain(ACCOUNT, MODEL, 0)
        },
    };
    let mut stream = stand.client.open(&ask).await?;
    if phase == Phase::MidStream {
        let mut text = Vec::new();
        while memchr::memmem::find(&text, b"data: ").is_none() {
            if tokio::time::timeout(LIMIT, stream.read_buf(&mut text)).await?? == 0 {
                return Err("a stream closed before its first event".into());
            }
        }
    }
    Ok(stream)
}

/// The socket is given back where leaving does not close it.
async fn leave(mut stream: TcpStream, leaving: Leaving) -> Fallible<Option<TcpStream>> {
    match leaving {
        Leaving::Fin => {
            stream.shutdown().await?;
            Ok(Some(stream))
        }
        Leaving::Rst => {
            stream.set_zero_linger()?;
            Ok(None)
        }
    }
}

/// Waits until the gateway holds exactly this and the backend serves exactly so many.
fn wait_for(stand: &TestBed, held: HeldAdmission, in_flight: u64) -> Fallible<()> {
    let reached = stand.wait_until_held(LIMIT, |now| {
        now == held && stand.book.in_flight() == in_flight
    })?;
    match reached {
        Some(_) => Ok(()),
        None => Err(format!(
            "after {LIMIT:?} the gateway holds {:?} and the backend serves {}, not {held:?} and {in_flight}",
            stand.held()?,
            stand.book.in_flight()
        )
        .into()),
    }
}
