//! The gateway's configurations: the ordinary one, with plugins, as nodes, and large ones.
//! Not defaults: permits and rates are set so that nothing but the full model ever refuses.
//!
//! Called by the driver, which starts one gateway for each.

use std::net::SocketAddr;
use std::path::Path;

use crate::kit::gateway::{Account, Model, Settings};
use crate::kit::process::loopback;

pub const MODEL: &str = "bench";
/// A model with one permit and no queue: once a stream holds the permit, everybody else is refused.
pub const FULL_MODEL: &str = "bench-full";
/// The account that asks; further accounts are the crowd of the large configuration.
pub const ACCOUNT: &str = "acme";
/// On the path of every request and never reached: 60,000 a second.
const REQUESTS_PER_MINUTE: u64 = 3_600_000;

/// Settings with an account, the measured model, and the full one.
pub fn settings(upstream_port: u16) -> Settings {
    Settings {
        threads: 1,
        accounts: vec![account(ACCOUNT)],
        models: vec![
            model(MODEL, vec![loopback(upstream_port)]),
            Model {
                permits_per_endpoint: 1,
                capacity: 0,
                ..model(FULL_MODEL, vec![far_loopback(1, 0, upstream_port)])
            },
        ],
        plugins: None,
        fleet: None,
    }
}

/// Settings with the three standard plugins on every model: the committed ones, so that nothing need be built.
pub fn with_plugins(upstream_port: u16) -> Settings {
    Settings {
        plugins: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/quickstart")),
        ..settings(upstream_port)
    }
}

/// Settings of two nodes of a cluster: the first has no endpoint of its own and forwards all.
pub fn node(lines: (String, String), endpoints: Vec<SocketAddr>) -> Settings {
    Settings {
        threads: 1,
        accounts: vec![account(ACCOUNT)],
        models: vec![model(MODEL, endpoints)],
        plugins: None,
        fleet: Some(lines),
    }
}

fn account(id: &str) -> Account {
    Account {
        requests_per_minute: Some(REQUESTS_PER_MINUTE),
        ..Account::new(id)
    }
}

fn model(id: &str, endpoints: Vec<SocketAddr>) -> Model {
    Model {
        id: id.into(),
        endpoints,
        permits_per_endpoint: 2_048,
        algorithm: "fair",
        capacity: 2,
    }
}

pub fn crowd_id(number: usize) -> String {
    format!("account-{number}")
}

pub fn many_accounts(upstream_port: u16) -> Settings {
    let mut settings = settings(upstream_port);
    settings
        .accounts
        .extend((0..10_000).map(|number| account(&crowd_id(number))));
    settings
}

pub fn many_models(upstream_port: u16) -> Settings {
    let mut settings = settings(upstream_port);
    settings.models.extend((0..1_000).map(|number| {
        model(
            &format!("model-{number}"),
            vec![far_loopback(2, number, upstream_port)],
        )
    }));
    settings
}

pub fn many_endpoints(upstream_port: u16) -> Settings {
    let endpoints = (0..256)
        .map(|number| far_loopback(3, number, upstream_port))
        .collect();
    Settings {
        models: vec![model(MODEL, endpoints)],
        ..settings(upstream_port)
    }
}

/// The same upstream under another loopback address, since an endpoint may be listed only once.
fn far_loopback(family: u8, number: usize, port: u16) -> SocketAddr {
    SocketAddr::from((
        [127, family, (number / 250) as u8, (number % 250 + 1) as u8],
        port,
    ))
}
