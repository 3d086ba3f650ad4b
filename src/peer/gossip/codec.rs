//! Codec of a node's published state: short texts under keys.
//!
//! Names, addresses and numbers are checked as they are read. Each value begins with the version of the
//! protocol; one of another version is left out. Bounds: names as the configuration has them, numbers as their types,
//! [`VALUE_BYTES_MAX`].

use std::fmt::Write;
use std::sync::Arc;

use infergate_core::routing::cluster::ModelLoad;
use infergate_core::{AccountId, Millis, ModelId};

use crate::peer::drift::ConfigDigests;
use crate::peer::protocol::PROTOCOL_VERSION;
use crate::upstream::check_address;

/// The one key of the node itself.
pub const NODE_KEY: &str = "node";
/// The key of the generation of a node whose process has followed another one; absent of others.
pub const SINCE_KEY: &str = "since";
/// The key of its configuration.
pub const CONFIG_KEY: &str = "config";
/// Before the id of a model.
const MODEL_PREFIX: &str = "model/";
/// Before the id of an account.
const ACCOUNT_PREFIX: &str = "usage/";
/// Before the id of an account with a limit a minute.
const PASSED_PREFIX: &str = "requests/";
/// Length of an id, as the configuration bounds it.
const NAME_BYTES_MAX: usize = 256;
/// Length of a value: twice the longest there is.
const VALUE_BYTES_MAX: usize = 1024;
/// Leading bits of a time that are published: a change of a sixteenth of a wait is not.
const TIME_BITS: u32 = 5;

/// Published state of a node beside its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Rises with each report.
    pub version: u64,
    /// Time of the report, by the node's own clock.
    pub made: Millis,
    /// True when the node takes no further requests.
    pub draining: bool,
    /// Its peers listener.
    pub address: Arc<str>,
    /// Site of the node.
    pub site: Arc<str>,
}

/// Usage of an account at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountUsage {
    /// Days since 1970-01-01.
    pub day: u64,
    /// Millionths of a neuron.
    pub micro: u64,
}

/// Subject of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySubject<'a> {
    /// The node itself.
    Node,
    /// A model.
    Model(&'a str),
    /// An account.
    Account(&'a str),
    /// Requests of an account.
    Passed(&'a str),
    /// Digests of the node's configuration.
    Config,
}

/// Reads a key; none of another form, or with a name that is none.
pub fn parse_key(key: &str) -> Option<KeySubject<'_>> {
    if key == NODE_KEY {
        return Some(KeySubject::Node);
    }
    if key == CONFIG_KEY {
        return Some(KeySubject::Config);
    }
    if let Some(model) = key.strip_prefix(MODEL_PREFIX) {
        return is_name(model).then_some(KeySubject::Model(model));
    }
    if let Some(account) = key.strip_prefix(PASSED_PREFIX) {
        return is_name(account).then_some(KeySubject::Passed(account));
    }
    let account = key.strip_prefix(ACCOUNT_PREFIX)?;
    is_name(account).then_some(KeySubject::Account(account))
}

/// The model of a key that was read before: nothing is checked.
pub fn known_model(key: &str) -> Option<&str> {
    key.strip_prefix(MODEL_PREFIX)
}

/// The key of a model.
pub fn model_key(model: &ModelId) -> String {
    format!("{MODEL_PREFIX}{}", model.as_str())
}

/// The key of an account.
pub fn account_key(account: &AccountId) -> String {
    format!("{ACCOUNT_PREFIX}{}", account.as_str())
}

/// The key of an account's requests.
pub fn passed_key(account: &AccountId) -> String {
    format!("{PASSED_PREFIX}{}", account.as_str())
}

/// `3 requests`.
pub fn write_passed(requests: u64) -> String {
    format!("{PROTOCOL_VERSION} {requests}")
}

/// Reads [`write_passed`].
pub fn read_passed(text: &str) -> Option<u64> {
    let [requests] = fields(text)?;
    number(requests)
}

/// `3 generation`.
pub fn write_since(generation: u64) -> String {
    format!("{PROTOCOL_VERSION} {generation}")
}

/// Reads [`write_since`].
pub fn read_since(text: &str) -> Option<u64> {
    let [generation] = fields(text)?;
    number(generation)
}

/// A name as the configuration admits them.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `3 version made draining address site`.
pub fn write_node(record: &NodeRecord) -> String {
    let NodeRecord {
        version,
        made,
        draining,
        address,
        site,
    } = record;
    let draining = u8::from(*draining);
    format!(
        "{PROTOCOL_VERSION} {version} {} {draining} {address} {site}",
        made.0
    )
}

/// Reads [`write_node`].
pub fn read_node(text: &str) -> Option<NodeRecord> {
    let [version, made, draining, address, site] = fields(text)?;
    let address_fits = check_address(address).is_ok();
    (address_fits && is_name(site)).then_some(NodeRecord {
        version: number(version)?,
        made: Millis(number(made)?),
        draining: match draining {
            "0" => false,
            "1" => true,
            _ => return None,
        },
        address: address.into(),
        site: site.into(),
    })
}

/// `3 permits free queued queue_room wait_ms unmet_demand ttft_us`, the times rounded.
pub fn write_model(load: &ModelLoad) -> String {
    let numbers = [
        load.permits,
        load.free,
        load.queued,
        load.queue_room,
        rounded(load.wait_ms),
        load.unmet_demand,
        rounded(load.ttft_us),
    ];
    let mut text = PROTOCOL_VERSION.to_string();
    for number in numbers {
        let _ = write!(text, " {number}");
    }
    text
}

/// Reads [`write_model`].
pub fn read_model(text: &str) -> Option<ModelLoad> {
    let [
        permits,
        free,
        queued,
        queue_room,
        wait_ms,
        unmet_demand,
        ttft_us,
    ] = fields(text)?;
    let load = ModelLoad {
        permits: number(permits)?,
        free: number(free)?,
        queued: number(queued)?,
        queue_room: number(queue_room)?,
        wait_ms: number(wait_ms)?,
        unmet_demand: number(unmet_demand)?,
        ttft_us: number(ttft_us)?,
    };
    (load.free <= load.permits).then_some(load)
}

/// `3 accounts models tariffs`, in decimal.
pub fn write_digests(digests: &ConfigDigests) -> String {
    let ConfigDigests {
        accounts,
        models,
        tariffs,
    } = digests;
    format!("{PROTOCOL_VERSION} {accounts} {models} {tariffs}")
}

/// Reads [`write_digests`].
pub fn read_digests(text: &str) -> Option<ConfigDigests> {
    let [accounts, models, tariffs] = fields(text)?;
    Some(ConfigDigests {
        accounts: number(accounts)?,
        models: number(models)?,
        tariffs: number(tariffs)?,
    })
}

/// `3 day micro`.
pub fn write_usage(usage: AccountUsage) -> String {
    format!("{PROTOCOL_VERSION} {} {}", usage.day, usage.micro)
}

/// Reads [`write_usage`].
pub fn read_usage(text: &str) -> Option<AccountUsage> {
    let [day, micro] = fields(text)?;
    Some(AccountUsage {
        day: number(day)?,
        micro: number(micro)?,
    })
}

/// Reads the version of the protocol at the beginning of a value.
pub fn protocol_of(text: &str) -> Option<u32> {
    number(text.split(' ').next()?)
}

/// Reads `text` as a key and as each kind of value, and checks that what was read is written as something that is read
/// alike.
#[cfg(any(test, fuzzing))]
pub fn check_gossip_value(text: &str) {
    fn again<T: PartialEq + std::fmt::Debug>(
        text: &str,
        read: fn(&str) -> Option<T>,
        write: fn(&T) -> String,
    ) {
        if let Some(value) = read(text) {
            let written = write(&value);
            let back = read(&written).map(|back| write(&back));
            assert_eq!(back, Some(written), "{value:?}");
        }
    }
    let _ = (parse_key(text), protocol_of(text));
    again(text, read_node, write_node);
    again(text, read_model, write_model);
    again(text, read_digests, write_digests);
    again(text, read_usage, |usage| write_usage(*usage));
    again(text, read_passed, |requests| write_passed(*requests));
    again(text, read_since, |generation| write_since(*generation));
}

/// The fields after the version, exactly so many.
fn fields<const COUNT: usize>(text: &str) -> Option<[&str; COUNT]> {
    if text.len() > VALUE_BYTES_MAX {
        return None;
    }
    if protocol_of(text) != Some(PROTOCOL_VERSION) {
        return None;
    }
    let mut words = text.split(' ').skip(1);
    let mut fields = [""; COUNT];
    for field in &mut fields {
        *field = words.next()?;
    }
    words.next().is_none().then_some(fields)
}

/// Plain decimal: digits only, without a zero in front.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let padded = text.len() > 1 && text.starts_with('0');
    (plain && !padded).then(|| text.parse().ok()).flatten()
}

/// The leading [`TIME_BITS`] bits.
fn rounded(time: u32) -> u32 {
    let bits = u32::BITS - time.leading_zeros();
    let dropped = bits.saturating_sub(TIME_BITS);
    time >> dropped << dropped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn load()(
            permits in any::<u32>(), free in any::<u32>(), queued in any::<u32>(),
            queue_room in any::<u32>(), wait_ms in any::<u32>(), unmet_demand in any::<u32>(),
            ttft_us in any::<u32>(),
        ) -> ModelLoad {
            let free = free.min(permits);
            ModelLoad { permits, free, queued, queue_room, wait_ms, unmet_demand, ttft_us }
        }
    }

    prop_compose! {
        fn record()(
            version in any::<u64>(), made in any::<u64>(), draining in any::<bool>(),
            port in 1..=u16::MAX, site in "[!-~]{1,256}",
        ) -> NodeRecord {
            NodeRecord {
                version,
                made: Millis(made),
                draining,
                address: format!("10.0.0.1:{port}").into(),
                site: site.into(),
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_of_a_node_is_read_again(record in record()) {
            prop_assert_eq!(read_node(&write_node(&record)), Some(record));
        }

        #[test]
        fn what_is_written_of_a_model_is_read_again_but_for_small_parts_of_times(load in load()) {
            let read = read_model(&write_model(&load)).unwrap();
            let near = |reported: u32, is: u32| reported <= is && is - reported <= is / 16;
            prop_assert!(near(read.wait_ms, load.wait_ms) && near(read.ttft_us, load.ttft_us));
            let exact = ModelLoad { wait_ms: load.wait_ms, ttft_us: load.ttft_us, ..read };
            prop_assert_eq!(exact, load);
            prop_assert_eq!(write_model(&read), write_model(&load));
        }

        #[test]
        fn what_is_written_of_an_account_is_read_again(day in any::<u64>(), micro in any::<u64>()) {
            let usage = AccountUsage { day, micro };
            prop_assert_eq!(read_usage(&write_usage(usage)), Some(usage));
        }

        #[test]
        fn any_text_is_read_or_left_out(text in ".{0,80}", key in ".{0,80}") {
            let _ = (read_node(&text), read_model(&text), read_usage(&text), parse_key(&key));
        }
    }

    #[test]
    fn what_is_not_written_so_is_left_out() {
        for text in [
            "",
            "3",
            "2 4 2 0 10 0 0 0",
            "3 4 2 0 10 0 0",
            "3 4 2 0 10 0 0 0 0",
            "3  4 2 0 10 0 0 0",
            "3 4 2 0 10 0 0 0 ",
            "3 +4 2 0 10 0 0 0",
            "3 04 2 0 10 0 0 0",
            "3 4294967296 2 0 10 0 0 0",
            "3 4 5 0 10 0 0 0",
        ] {
            assert_eq!(read_model(text), None, "{text:?}");
        }
        for text in [
            "3 1 1 2 h:1 fra",
            "3 1 1 0 h fra",
            "3 1 1 0 h:0 fra",
            "3 1 1 0 h:1 ",
            "3 1 1 0 h:1 f\u{e9}",
            "2 1 1 0 h:1 fra",
        ] {
            assert_eq!(read_node(text), None, "{text:?}");
        }
        assert_eq!(read_usage("3 1 18446744073709551616"), None);
        for key in [
            "",
            "nodes",
            "model/",
            "model/a b",
            "usage/",
            "spent/a",
            "other/a",
        ] {
            assert_eq!(parse_key(key), None, "{key:?}");
        }
        assert_eq!(parse_key(&format!("model/{}", "m".repeat(257))), None);
        assert_eq!(parse_key("model/@cf/x"), Some(KeySubject::Model("@cf/x")));
        assert_eq!(parse_key("usage/acme"), Some(KeySubject::Account("acme")));
    }
}
