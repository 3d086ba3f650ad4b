//! Allocations of one request, held to `[allocations]` of `benches/ceilings.toml` without any tool.
//!
//! Not a benchmark: nothing is timed, and the counts are those of the dev profile. The gateway runs in a child
//! process of this program, through the public `infergate::cli`, under an allocator that counts its calls.
//! `scripts/count --write allocations` runs it with `INFERGATE_WRITE_CEILINGS=1`, which writes the present figures.

#[path = "allocations/ceilings.rs"]
mod ceilings;
#[path = "allocations/client.rs"]
mod client;
#[path = "allocations/counter.rs"]
mod counter;
#[path = "allocations/gateway.rs"]
mod gateway;
#[path = "allocations/model_server.rs"]
mod model_server;
#[path = "allocations/scenarios.rs"]
mod scenarios;

use std::process::ExitCode;

use ceilings::{Ceilings, Verdict};
use client::Connection;
use gateway::Gateway;
use scenarios::{EVENTS, SCENARIOS, Scenario};

/// Name that a filter on the command line has to be a part of.
const NAME: &str = "allocations";
/// The section of the file, and the variable by which its figures are written anew.
const SECTION: &str = "allocations";
const WRITE_VARIABLE: &str = "INFERGATE_WRITE_CEILINGS";

/// Measured windows of a scenario, of which the least counts.
const WINDOWS: usize = 12;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "serve") {
        counter::report_on_request();
        return infergate::cli::run();
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .peekable();
    if filters.peek().is_some() && !filters.any(|filter| NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    if !cfg!(debug_assertions) {
        println!("skipped: allocations (the ceilings are those of the dev profile)");
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        write()
    } else {
        check()
    }
}

/// Writes the present figures into the file.
fn write() -> ExitCode {
    let figures = SCENARIOS.map(|scenario| (scenario.name, measure(&scenario)));
    ceilings::write(SECTION, &figures);
    for (name, figure) in figures {
        println!("{name} = {figure}");
    }
    ExitCode::SUCCESS
}

/// Compares every scenario with its ceiling, a line each.
fn check() -> ExitCode {
    let ceilings = Ceilings::read(SECTION);
    let mut failed = 0;
    for scenario in &SCENARIOS {
        let figure = measure(scenario);
        let (verdict, ceiling) = ceilings.judge(scenario.name, figure);
        let line = format!("allocations of {}: {figure}", scenario.name);
        match verdict {
            Verdict::Held => println!("ok {line} (ceiling {ceiling})"),
            Verdict::Fallen => println!(
                "ok {line} (ceiling {ceiling}; the ceiling should follow: scripts/count --write {SECTION})"
            ),
            Verdict::Passed => {
                println!("FAILED {line}, over the ceiling {ceiling}");
                failed += 1;
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let passed = SCENARIOS.len() - failed;
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    ExitCode::from(u8::from(failed > 0))
}

/// Returns the allocations of one request, or of one event of a stream, to a hundredth.
///
/// Work beside the requests, of timers above all, only adds to a window: the least of them is nearest to the truth.
fn measure(scenario: &Scenario) -> f64 {
    let mut gateway = Gateway::start();
    // Open until the end: the stream that has the only permit of the full model.
    let _holder = scenario.is_full().then(|| gateway.hold_permit());
    let mut connection = gateway.connect();
    let mut window = |gateway: &mut Gateway| {
        if scenario.is_stream {
            events(gateway, &mut connection, scenario)
        } else {
            requests(gateway, &mut connection, scenario)
        }
    };
    // Connections are opened and tables grow.
    window(&mut gateway);
    let windows = (0..WINDOWS).map(|_| window(&mut gateway));
    let least = windows.fold(f64::INFINITY, f64::min);
    (least * 100.0).round() / 100.0
}

/// Allocations of one request, from a window of many.
fn requests(gateway: &mut Gateway, connection: &mut Connection, scenario: &Scenario) -> f64 {
    let before = gateway.allocations();
    for _ in 0..scenario.requests {
        gateway.exchange(connection, scenario);
    }
    let taken = gateway.allocations() - before;
    taken as f64 / scenario.requests as f64
}

/// Allocations of one event of a stream, from its second to its last.
fn events(gateway: &mut Gateway, connection: &mut Connection, scenario: &Scenario) -> f64 {
    let mut stream = gateway.begin_stream(connection, scenario);
    let before = gateway.allocations();
    for _ in 1..EVENTS {
        stream.write_event();
        connection.read_event();
    }
    let taken = gateway.allocations() - before;
    stream.finish();
    connection.read_last_chunk();
    taken as f64 / (EVENTS - 1) as f64
}
