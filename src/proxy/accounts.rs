//! Keys → accounts, and each account's pace.
//!
//! It does not know models. Keys are compared by their SHA-256, in constant time, before any body
//! is read; the key itself is never kept.

use std::sync::Arc;

use hashbrown::HashMap;
use http::header::{self, HeaderMap};
use infergate_core::admission::rate::Rate;
use infergate_core::model::{AccountSpec, KeyHash};
use infergate_core::{AccountId, Millis, Refusal};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::budget::AccountBytes;

/// An account as the walk uses it.
pub struct Account {
    /// As configured in this generation.
    pub spec: Arc<AccountSpec>,
    /// Its requests per minute, when limited. Guards one small counter; shared by the generations
    /// of the account, so that a reload forgives nothing.
    pace: Option<Arc<Mutex<Rate>>>,
    /// Bytes of its request bodies that are held; shared by the generations of the account.
    pub bodies: AccountBytes,
}

impl Account {
    /// Takes one request of the account's pace.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`] with the time until the next one passes.
    pub fn take(&self, now: Millis) -> Result<(), Refusal> {
        self.pace
            .as_ref()
            .map_or(Ok(()), |pace| pace.lock().take(now))
    }

    /// Gives the request back: it was refused for capacity and cost nothing.
    pub fn give_unit_back(&self) {
        if let Some(pace) = &self.pace {
            pace.lock().give_unit_back();
        }
    }
}

/// Every account of one configuration generation.
#[derive(Default)]
pub struct Accounts {
    by_key: HashMap<KeyHash, Arc<Account>>,
    by_id: HashMap<Arc<str>, Arc<Account>>,
    anonymous: Option<Arc<Account>>,
}

impl Accounts {
    /// The accounts of a new generation; what was used of a pace stays used.
    pub fn follow(&self, specs: &[AccountSpec], anonymous_allowed: bool, now: Millis) -> Accounts {
        let mut next = Accounts::default();
        let anonymous = anonymous_allowed.then(AccountSpec::anonymous);
        let unlisted =
            anonymous.filter(|anonymous| specs.iter().all(|spec| spec.id != anonymous.id));
        for spec in specs.iter().chain(&unlisted) {
            let former = self.by_id.get(spec.id.as_str());
            let account = Arc::new(Account {
                spec: Arc::new(spec.clone()),
                bodies: former.map_or_else(Arc::default, |account| Arc::clone(&account.bodies)),
                pace: spec.requests_per_minute.map(|per_minute| {
                    match former.and_then(|account| account.pace.as_ref()) {
                        Some(pace) => {
                            pace.lock().set_limit(per_minute, now);
                            Arc::clone(pace)
                        }
                        None => Arc::new(Mutex::new(Rate::new(per_minute))),
                    }
                }),
            });
            for key in &spec.api_keys_sha256 {
                next.by_key
                    .entry(*key)
                    .or_insert_with(|| Arc::clone(&account));
            }
            if anonymous_allowed && spec.id.as_str() == AccountId::ANONYMOUS {
                next.anonymous = Some(Arc::clone(&account));
            }
            next.by_id.insert(spec.id.as_str().into(), account);
        }
        next
    }

    /// Every account, in no order.
    pub fn specs(&self) -> impl Iterator<Item = &AccountSpec> {
        self.by_id.values().map(|account| &*account.spec)
    }

    /// The account of this name, where it is configured.
    pub fn known(&self, id: &AccountId) -> Option<&Arc<Account>> {
        self.by_id.get(id.as_str())
    }

    /// The account of this name, by the word of another node. One that is not configured here is
    /// served like any other without limits of its own, and not counted.
    pub fn by_id(&self, id: &AccountId) -> Arc<Account> {
        self.known(id).map(Arc::clone).unwrap_or_else(|| {
            let spec = AccountSpec {
                id: id.clone(),
                ..AccountSpec::anonymous()
            };
            Arc::new(Account {
                spec: Arc::new(spec),
                pace: None,
                bodies: AccountBytes::default(),
            })
        })
    }

    /// Returns whether there is one account only.
    pub fn has_one(&self) -> bool {
        self.by_id.len() == 1
    }

    /// Whose request this is.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`] without a known key, where anonymous requests are not served;
    /// a wrong key is refused even where they are.
    pub fn identify(&self, headers: &HeaderMap) -> Result<&Arc<Account>, Refusal> {
        let Some(key) = presented_key(headers) else {
            return self.anonymous.as_ref().ok_or(Refusal::Unauthenticated);
        };
        let hash = KeyHash(Sha256::digest(key).into());
        let (known, account) = self
            .by_key
            .get_key_value(&hash)
            .ok_or(Refusal::Unauthenticated)?;
        // The table's look-up compares in its own way; the decision is made here.
        match bool::from(known.0.ct_eq(&hash.0)) {
            true => Ok(account),
            false => Err(Refusal::Unauthenticated),
        }
    }
}

/// The key of `Authorization: Bearer …` (or `Token …`, as older clients say) or `x-api-key`. A
/// header that holds something else is a wrong key, not none; a scheme alone is what client
/// libraries send for an empty key, and is none.
fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    // Of two keys, readers could take either.
    let is_repeated = |name: &str| headers.get_all(name).iter().nth(1).is_some();
    if is_repeated("authorization") || is_repeated("x-api-key") {
        return Some(b"");
    }
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return headers.get("x-api-key").map(|value| value.as_bytes());
    };
    let value = value.as_bytes().trim_ascii();
    let end = value.iter().position(|b| *b == b' ');
    let (scheme, key) = value.split_at(end.unwrap_or(value.len()));
    let key = key.trim_ascii();
    let known = scheme.eq_ignore_ascii_case(b"bearer") || scheme.eq_ignore_ascii_case(b"token");
    match (known, key) {
        (true, []) => None,
        (true, key) => Some(key),
        // Refused like an unknown key; the header's text is not one.
        (false, _) => Some(b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(anonymous: bool) -> Accounts {
        let spec = AccountSpec {
            id: "acme".into(),
            api_keys_sha256: vec![KeyHash(Sha256::digest(b"good").into())],
            requests_per_minute: Some(1),
            neurons_per_day: None,
            ..AccountSpec::anonymous()
        };
        Accounts::default().follow(&[spec], anonymous, Millis::ZERO)
    }

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn a_key_is_known_by_its_hash_in_any_usual_header() {
        let accounts = accounts(false);
        for (name, value) in [
            ("authorization", "Bearer good"),
            ("authorization", "token good"),
            ("x-api-key", "good"),
        ] {
            assert_eq!(
                accounts
                    .identify(&headers(name, value))
                    .unwrap()
                    .spec
                    .id
                    .as_str(),
                "acme"
            );
        }
        assert!(
            accounts
                .identify(&headers("authorization", "Bearer bad"))
                .is_err()
        );
        assert!(
            accounts
                .identify(&headers("authorization", "Basic good"))
                .is_err()
        );
        assert!(accounts.identify(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_wrong_key_is_refused_even_where_no_key_is_needed() {
        let accounts = accounts(true);
        assert_eq!(
            accounts
                .identify(&HeaderMap::new())
                .unwrap()
                .spec
                .id
                .as_str(),
            "anonymous"
        );
        for value in ["Bearer bad", "good", "Basic good", "Bearergood"] {
            let refused = accounts.identify(&headers("authorization", value));
            assert!(refused.is_err(), "{value}");
        }
        for empty in ["Bearer", "Bearer ", "token"] {
            let served = accounts.identify(&headers("authorization", empty));
            assert_eq!(served.unwrap().spec.id.as_str(), "anonymous", "{empty}");
        }
    }

    #[test]
    fn two_keys_are_refused_whichever_of_them_is_known() {
        let accounts = accounts(true);
        for name in ["authorization", "x-api-key"] {
            for keys in [
                ["Bearer good", "Bearer good"],
                ["Bearer good", "Bearer bad"],
            ] {
                let mut headers = HeaderMap::new();
                for key in keys {
                    let name: header::HeaderName = name.parse().unwrap();
                    headers.append(name, key.parse().unwrap());
                }
                assert!(accounts.identify(&headers).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn a_reload_does_not_forgive_what_was_used() {
        let first = accounts(false);
        let specs: Vec<_> = first.by_id.values().map(|a| (*a.spec).clone()).collect();
        let use_up = |accounts: &Accounts| {
            let key = headers("x-api-key", "good");
            (0..10)
                .filter(|_| accounts.identify(&key).unwrap().take(Millis(1)).is_ok())
                .count()
        };
        assert!(use_up(&first) >= 1);
        let second = first.follow(&specs, false, Millis(1));
        assert_eq!(use_up(&second), 0);
    }
}
