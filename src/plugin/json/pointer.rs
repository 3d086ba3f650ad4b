//! JSON Pointers (RFC 6901) into a body: places that a task selects, and places that it sets.
//!
//! Keeps nothing and edits nothing (`json/splice.rs` does). A pointer has at most [`POINTER_MAX_BYTES`], an
//! edit at most [`EDITS_MAX`] places.

/// Deeper or longer ones have no use.
pub const POINTER_MAX_BYTES: usize = 1024;
/// Places one edit may set, and one task may select.
pub const EDITS_MAX: usize = 256;

/// A key as a part of a pointer.
pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A part of a pointer as a key.
pub fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// True when the text is a JSON Pointer. A `~` stands for nothing by itself, so that one place has one name.
pub fn is_pointer(text: &str) -> bool {
    let is_written_out = || {
        let escapes = text.split('~').skip(1);
        escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
    };
    let is_path = text.is_empty() || text.starts_with('/');
    text.len() <= POINTER_MAX_BYTES && is_path && is_written_out()
}

/// True when one of the pointers names a place twice, or one inside another's. Each must be one
/// ([`is_pointer`]).
pub fn overlap(pointers: &[String]) -> bool {
    let holds = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    pointers.iter().enumerate().any(|(at, one)| {
        let others = &pointers[at + 1..];
        others
            .iter()
            .any(|other| holds(one, other) || holds(other, one))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_name_so_that_overlaps_are_seen() {
        let names = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert!(is_pointer("") && is_pointer("/a~0b/c~1d") && is_pointer("/~01"));
        // The same key as "/a~0b", by readers that let it pass.
        assert!(!is_pointer("/a~b") && !is_pointer("/a~") && !is_pointer("/~2"));
        assert!(!is_pointer("a"));
        assert!(overlap(&names(&["/a~1b", "/c", "/a~1b/0"])));
        assert!(!overlap(&names(&["/a~1b", "/a/b", "/a~0b", "/ab"])));
        assert!(overlap(&names(&["/messages", "/messages/0"])));
        assert!(overlap(&names(&["/x", "/x"])));
    }
}
