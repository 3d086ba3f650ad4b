//! The key that a request presents, in whichever header its API has for one.
//!
//! Whether it is known is decided by [`accounts`](super::accounts).

use crate::http1::Fields;

/// Returns whether a key is presented, known or not.
pub fn has_key(headers: &Fields) -> bool {
    presented_key(headers).is_some()
}

/// The key of `Authorization: Bearer …` (or `Token …`, as older clients say) or `x-api-key`. A
/// header that holds something else is a wrong key, not none; a scheme alone is what client
/// libraries send for an empty key, and is none.
pub(super) fn presented_key(headers: &Fields) -> Option<&[u8]> {
    let mut bearers = headers.get_all("authorization");
    let mut plain = headers.get_all("x-api-key");
    let (bearer, key) = (bearers.next(), plain.next());
    // Of two keys, readers could take either.
    if bearers.next().is_some() || plain.next().is_some() {
        return Some(b"");
    }
    let Some(value) = bearer else {
        return key;
    };
    let value = value.trim_ascii();
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
