//! Top-level members of a JSON body as positions, and the checks of its form.
//!
//! Not the meaning of a member: [`super`] reads those that the gateway acts on. A body has at most 512
//! members and 128 levels.

use std::borrow::Cow;
use std::ops::Range;

use infergate_tasks::json::scan_members;

use super::reader::{self, DEPTH_MAX};
use crate::Refusal;
use crate::api::RangeEdit;
use crate::api::prompt::is_file_member;
use crate::api::scan::text_end;

/// Top-level members a body may have. Real ones have fewer than 40; each costs a slot in a list.
const MEMBERS_MAX: usize = 512;
/// Members that a list has room for at first.
const MEMBERS_USUAL: usize = 12;

/// Returns which of `names`, all ASCII, a reader that matches names without case takes `key` for. Some of them
/// fold the long s and the Kelvin sign too (Go's `encoding/json`).
fn place_of(key: &[u8], names: &[&str]) -> Option<usize> {
    if key.is_ascii() {
        let is_key = |name: &&str| {
            let name = name.as_bytes();
            name.len() == key.len() && name.eq_ignore_ascii_case(key)
        };
        return names.iter().position(is_key);
    }
    let key = std::str::from_utf8(key).ok()?;
    let fold = |c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let is_key = |name: &&str| key.chars().map(fold).eq(name.chars());
    names.iter().position(is_key)
}

/// Refuses a body whose objects and lists are nested deeper than [`DEPTH_MAX`].
///
/// # Errors
/// 413.
pub(in crate::api) fn check_depth(body: &[u8]) -> Result<(), Refusal> {
    if !is_too_deep(body) {
        return Ok(());
    }
    Err(Refusal::Rejected {
        status: 413,
        pointer: String::new(),
        message: format!("the body is nested deeper than {DEPTH_MAX} levels"),
    })
}

/// Returns whether objects and lists are nested deeper than [`DEPTH_MAX`].
fn is_too_deep(body: &[u8]) -> bool {
    // Most bodies have not so many in all.
    if memchr::memchr2_iter(b'{', b'[', body)
        .nth(DEPTH_MAX)
        .is_none()
    {
        return false;
    }
    let (mut at, mut depth) = (0, 0_usize);
    while at < body.len() {
        at += 1;
        match body[at - 1] {
            // A string without an end is not JSON; the parser refuses it.
            b'"' => at += text_end(&body[at..]).unwrap_or(body.len()),
            b'{' | b'[' if depth == DEPTH_MAX => return true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A top-level member: its key in UTF-8, and the range of its value.
pub(in crate::api) struct BodyMember<'a> {
    pub(in crate::api) key: Cow<'a, [u8]>,
    pub(in crate::api) value: Range<usize>,
}

/// Top-level members in their order.
pub(in crate::api) struct BodyMembers<'a> {
    pub(in crate::api) list: Vec<BodyMember<'a>>,
    /// Offset at which a member may be inserted: behind the opening brace.
    pub(in crate::api) first_member: usize,
    body: &'a [u8],
}

impl<'a> BodyMembers<'a> {
    /// Finds the members of `body`.
    ///
    /// # Errors
    /// The form of the body.
    pub(in crate::api) fn read(body: &'a [u8]) -> Result<BodyMembers<'a>, Refusal> {
        match BodyMembers::read_once(body) {
            Some(members) => Ok(members),
            None => BodyMembers::read_by_serde(body),
        }
    }

    /// Finds the members in one pass; none where the body is to be refused.
    pub(super) fn read_once(body: &'a [u8]) -> Option<BodyMembers<'a>> {
        let mut list = Vec::with_capacity(MEMBERS_USUAL);
        let first_member = reader::read_members(body, |key, value| {
            list.push(BodyMember { key, value });
            (list.len() <= MEMBERS_MAX).then_some(())
        })?;
        Some(BodyMembers {
            list,
            first_member,
            body,
        })
    }

    /// Finds the members, or what is wrong with the body: the slow way, for bodies that are refused.
    pub(super) fn read_by_serde(body: &'a [u8]) -> Result<BodyMembers<'a>, Refusal> {
        let text = simdutf8::basic::from_utf8(body)
            .map_err(|_| bad_request("", "the body is not UTF-8"))?;
        check_depth(body)?;
        if !text.trim_ascii_start().starts_with('{') {
            return Err(bad_request("", "the body is not a JSON object"));
        }
        let mut list = Vec::new();
        scan_members(text, |key, value| {
            if list.len() == MEMBERS_MAX {
                return Err("too many members");
            }
            let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
            let value = start..start + value.get().len();
            list.push(BodyMember {
                key: match key {
                    Cow::Borrowed(key) => Cow::Borrowed(key.as_bytes()),
                    Cow::Owned(key) => Cow::Owned(key.into_bytes()),
                },
                value,
            });
            Ok(())
        })
        .map_err(|e| bad_request("", format!("the body is not a JSON object: {e}")))?;
        let brace = text.find('{').unwrap_or(0);
        Ok(BodyMembers {
            list,
            first_member: brace + 1,
            body,
        })
    }

    /// Returns the members of these names, which may each stand once and in one spelling.
    pub(in crate::api) fn unique<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&BodyMember<'a>>; N], Refusal> {
        let mut found = [None; N];
        for member in &self.list {
            let Some(place) = place_of(&member.key, &names) else {
                continue;
            };
            let is_repeated = found[place].replace(member).is_some();
            if is_repeated || *member.key != *names[place].as_bytes() {
                // Of several faults, that of the first name is reported.
                names.iter().try_for_each(|name| self.check_unique(name))?;
            }
        }
        Ok(found)
    }

    fn check_unique(&self, name: &str) -> Result<(), Refusal> {
        let mut is_found = false;
        for member in &self.list {
            if place_of(&member.key, &[name]).is_none() {
                continue;
            }
            // Servers that match names without case would take it for the one that was looked at here.
            if *member.key != *name.as_bytes() {
                return Err(bad_request(
                    &format!("/{name}"),
                    format!("a member differs from `{name}` in case only: spell it `{name}`"),
                ));
            }
            if std::mem::replace(&mut is_found, true) {
                return Err(bad_request(
                    &format!("/{name}"),
                    format!("`{name}` stands twice in the body"),
                ));
            }
        }
        Ok(())
    }

    /// Returns the range of the value of `key`; of several the last, as JSON readers have it.
    pub(in crate::api) fn last(&self, key: &str) -> Option<Range<usize>> {
        let found = self
            .list
            .iter()
            .rfind(|member| *member.key == *key.as_bytes())?;
        Some(found.value.clone())
    }

    /// Returns the ranges of images and sounds.
    pub(super) fn files(&self) -> Vec<Range<usize>> {
        let is_file = |m: &&BodyMember<'a>| is_file_member(&m.key, &self.body[m.value.clone()]);
        let files = self.list.iter().filter(is_file);
        files.map(|member| member.value.clone()).collect()
    }

    /// The edits that take the named members out, and how many members stay. A run of members
    /// leaves together with one neighbouring comma.
    pub(in crate::api) fn strip_edits(
        &self,
        gone: impl Fn(&BodyMember<'a>) -> bool,
    ) -> (Vec<RangeEdit>, usize) {
        let mut edits = Vec::new();
        let mut kept = 0;
        let mut index = 0;
        while index < self.list.len() {
            if !gone(&self.list[index]) {
                kept += 1;
                index += 1;
                continue;
            }
            let first = index;
            while index < self.list.len() && gone(&self.list[index]) {
                index += 1;
            }
            let last_end = self.list[index - 1].value.end;
            let range = match first {
                0 if index < self.list.len() => self.first_member..self.after_comma(last_end),
                0 => self.first_member..last_end,
                _ => self.list[first - 1].value.end..last_end,
            };
            edits.push(RangeEdit {
                range,
                text: Vec::new(),
            });
        }
        (edits, kept)
    }

    fn after_comma(&self, from: usize) -> usize {
        memchr::memchr(b',', &self.body[from..]).map_or(from, |at| from + at + 1)
    }
}

pub(super) fn bad_request(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests;
