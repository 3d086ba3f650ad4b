//! Item 5: accounts that share a model get their share, whatever the others do.
//! Not a proof of the queue: the core's property tests are that.
//!
//! (a) everybody backlogged, equal and weighted; (b) one greedy among small ones; (c) shares in tokens.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::client::ChatRequest;
use crate::crowd::{self, Backlog, Paced, Sample, quantile_ms};
use crate::kit::Fallible;
use crate::kit::figures::jain;
use crate::kit::gateway::Account;
use crate::overload::counts;
use crate::stand::{MODEL, PERMITS, SERVICE_MS, Scale, TestBed};
use crate::table::Table;

/// Times the sum of permits, as the acceptance section says: 128 places an account.
const CAPACITY: u32 = 16;
const WINDOW: Duration = Duration::from_secs(5);
/// The beginning that is not counted: the first permits go to whoever connects first.
const FILLING: Duration = Duration::from_secs(2);
const SMALL_ACCOUNTS: usize = 20;
/// Milliseconds of service for one token in (c).
const TOKEN_MS: u64 = 1;
const SHORT_TOKENS: u64 = 50;
const LONG_TOKENS: u64 = 500;

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    equal_shares(runtime, scale, table)?;
    weighted_shares(runtime, scale, table)?;
    greedy_neighbour(runtime, scale, table)?;
    token_shares(runtime, scale, table)
}

fn backlog(account: &str, open: usize) -> Backlog {
    Backlog {
        ask: ChatRequest::plain(account, MODEL, SERVICE_MS),
        open,
    }
}

fn accounts(names: &[String]) -> Vec<Account> {
    names.iter().map(|name| Account::new(name)).collect()
}

/// At least one whole window after the filling.
fn length(scale: Scale) -> Duration {
    scale.step.max(FILLING + WINDOW)
}

fn finished_by(samples: &[Sample], members: usize, from: Duration, to: Duration) -> Vec<f64> {
    let mut finished = vec![0.0; members];
    for sample in samples {
        if sample.status == 200 && sample.done >= from && sample.done < to {
            finished[sample.member] += 1.0;
        }
    }
    finished
}

fn equal_shares(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let open = [100, 60, 40, 24, 24];
    let names: Vec<String> = (1..=open.len())
        .map(|number| format!("equal-{number}"))
        .collect();
    let stand = TestBed::open(
        "equal-shares",
        runtime,
        accounts(&names),
        PERMITS,
        "fair",
        CAPACITY,
    )?;
    let crowd: Vec<Backlog> = names
        .iter()
        .zip(open)
        .map(|(name, open)| backlog(name, open))
        .collect();
    let length = length(scale);
    let samples = runtime.block_on(crowd::mixed(&stand.client, &crowd, &[], length));

    let mut worst: f64 = 1.0;
    let mut from = FILLING;
    while from + WINDOW <= length {
        worst = worst.min(jain(&finished_by(
            &samples,
            open.len(),
            from,
            from + WINDOW,
        )));
        from += WINDOW;
    }
    table.add(
        "5a",
        format!(
            "100, 60, 40, 24, 24 open ({}): worst Jain in 5 s",
            counts(&samples)
        ),
        "≥ 0.99",
        format!("{worst:.4}"),
        worst >= 0.99,
    );
    judge_high_water(&stand, "5a", table);
    table.keep(stand.close()?);
    Ok(())
}

fn weighted_shares(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let weights = [1, 2, 4];
    let names: Vec<String> = weights
        .iter()
        .map(|weight| format!("weight-{weight}"))
        .collect();
    let mut accounts = accounts(&names);
    for (account, weight) in accounts.iter_mut().zip(weights) {
        account.weight = weight;
    }
    let stand = TestBed::open(
        "weighted-shares",
        runtime,
        accounts,
        PERMITS,
        "fair",
        CAPACITY,
    )?;
    let crowd: Vec<Backlog> = names.iter().map(|name| backlog(name, 60)).collect();
    let length = length(scale);
    let samples = runtime.block_on(crowd::mixed(&stand.client, &crowd, &[], length));

    let finished = finished_by(&samples, weights.len(), FILLING, length);
    let total: f64 = finished.iter().sum();
    let total_weight: u32 = weights.iter().sum();
    let mut worst: f64 = 0.0;
    for (finished, weight) in finished.iter().zip(weights) {
        let due = total * f64::from(weight) / f64::from(total_weight);
        worst = worst.max((finished / due - 1.0).abs());
    }
    table.add(
        "5a",
        format!("weights 1:2:4 finished {finished:?}: worst distance from its share"),
        "≤ 5 %",
        format!("{:.2} %", worst * 100.0),
        worst <= 0.05,
    );
    table.keep(stand.close()?);
    Ok(())
}

fn greedy_neighbour(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let mut names = vec!["greedy".to_owned()];
    names.extend((1..=SMALL_ACCOUNTS).map(|number| format!("small-{number}")));
    let stand = TestBed::open(
        "greedy",
        runtime,
        accounts(&names),
        PERMITS,
        "fair",
        CAPACITY,
    )?;
    let capacity = f64::from(PERMITS) * 1_000.0 / SERVICE_MS as f64;
    let fair_share = capacity / names.len() as f64;
    let interval = Duration::from_secs_f64(1.0 / (fair_share / 2.0));
    let small: Vec<Paced> = names[1..]
        .iter()
        .enumerate()
        .map(|(number, name)| Paced {
            ask: ChatRequest::plain(name, MODEL, SERVICE_MS),
            interval,
            first: interval.mul_f64(number as f64 / SMALL_ACCOUNTS as f64),
        })
        .collect();
    let length = length(scale);
    let solo = runtime.block_on(crowd::mixed(&stand.client, &[], &small, length));
    let solo_p99_ms = quantile_ms(solo.iter(), 0.99);

    let greedy = [backlog(&names[0], 100)];
    let samples = runtime.block_on(crowd::mixed(&stand.client, &greedy, &small, length));
    let of_small: Vec<Sample> = samples
        .into_iter()
        .filter(|sample| sample.member > 0)
        .collect();
    let p99_ms = quantile_ms(of_small.iter(), 0.99);
    let goal_ms = 1.5 * solo_p99_ms + SERVICE_MS as f64;
    table.add(
        "5b",
        format!("20 small beside one greedy: p99 (solo, the 20 alone: {solo_p99_ms:.1} ms)"),
        format!("≤ {goal_ms:.1} ms"),
        format!("{p99_ms:.1} ms"),
        p99_ms <= goal_ms,
    );
    let refused = of_small
        .iter()
        .filter(|sample| sample.status != 200)
        .count();
    table.add(
        "5b",
        format!("20 small beside one greedy: refused of {}", of_small.len()),
        "0",
        refused.to_string(),
        refused == 0,
    );
    judge_high_water(&stand, "5b", table);
    table.keep(stand.close()?);
    Ok(())
}

fn token_shares(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let names = ["short".to_owned(), "long".to_owned()];
    let stand = TestBed::open(
        "token-shares",
        runtime,
        accounts(&names),
        PERMITS,
        "token-fair",
        CAPACITY,
    )?;
    let crowd: Vec<Backlog> = names
        .iter()
        .zip([SHORT_TOKENS, LONG_TOKENS])
        .map(|(name, tokens)| Backlog {
            ask: ChatRequest {
                tokens,
                ..ChatRequest::plain(name, MODEL, tokens * TOKEN_MS)
            },
            open: 40,
        })
        .collect();
    let book = stand.book.clone();
    let counted = names.clone();
    let length = length(scale);
    let tokens = runtime.block_on(async {
        let load = crowd::mixed(&stand.client, &crowd, &[], length);
        let reading = async {
            tokio::time::sleep(FILLING).await;
            let before = counted.clone().map(|name| book.tokens(&name));
            tokio::time::sleep(length - FILLING).await;
            let after = counted.clone().map(|name| book.tokens(&name));
            [after[0] - before[0], after[1] - before[1]].map(|tokens| tokens as f64)
        };
        tokio::join!(load, reading).1
    });
    let index = jain(&tokens);
    table.add(
        "5c",
        format!("token-fair, answers of {SHORT_TOKENS} and {LONG_TOKENS} tokens, made {tokens:?}"),
        "Jain ≥ 0.95",
        format!("{index:.4}"),
        index >= 0.95,
    );
    judge_high_water(&stand, "5c", table);
    table.keep(stand.close()?);
    Ok(())
}

fn judge_high_water(stand: &TestBed, item: &'static str, table: &mut Table) {
    let high_water = stand.book.high_water();
    table.add(
        item,
        "high-water mark at the backend",
        format!("≤ {PERMITS}"),
        high_water.to_string(),
        high_water <= u64::from(PERMITS),
    );
}
