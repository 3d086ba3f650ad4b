//! Spare read buffers: a connection has one while bytes are in it, and gives it back when it waits.
//!
//! So an idle connection and a stream between two events hold none. A few are kept for each thread, by count and
//! by size; what is beyond goes to the allocator. Called by the connections of both sides.

use std::cell::RefCell;

use bytes::BytesMut;

/// Room of a read buffer: a usual head with a small body, bytes.
pub const READ_BYTES: usize = 4 * 1024;
/// Largest buffer that is kept: one that has grown with a large body is not for the next small one.
const KEPT_BYTES_MAX: usize = 2 * READ_BYTES;
/// Buffers kept for each thread: more connections than that seldom become readable in one turn.
const KEPT_MAX: usize = 32;

thread_local! {
    static KEPT: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Makes room for `room` more bytes in `buffer`: in its own memory, in a spare one where it is empty, else in new
/// memory.
pub fn make_room(buffer: &mut BytesMut, room: usize) {
    if buffer.try_reclaim(room) {
        return;
    }
    if buffer.is_empty() && room <= READ_BYTES {
        let kept = KEPT.with_borrow_mut(Vec::pop);
        *buffer = kept.unwrap_or_else(|| BytesMut::with_capacity(READ_BYTES));
        return;
    }
    buffer.reserve(room);
}

/// Takes an empty buffer from a connection that waits. One that holds bytes stays with it, as does one of which a
/// part is still in use: the next wait finds it free.
pub fn give_back(buffer: &mut BytesMut) {
    if !buffer.is_empty() || buffer.capacity() == 0 || !buffer.try_reclaim(READ_BYTES) {
        return;
    }
    let buffer = std::mem::take(buffer);
    if buffer.capacity() <= KEPT_BYTES_MAX {
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < KEPT_MAX {
                kept.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        KEPT.with_borrow(Vec::len)
    }

    #[test]
    fn a_buffer_goes_from_one_connection_to_the_next() {
        let (mut first, mut second) = (BytesMut::new(), BytesMut::new());
        make_room(&mut first, READ_BYTES);
        let memory = first.as_ptr();
        first.extend_from_slice(b"head");
        give_back(&mut first);
        assert_eq!((kept(), &first[..]), (0, &b"head"[..]), "it has bytes");
        drop(first.split().freeze());
        give_back(&mut first);
        assert_eq!((kept(), first.capacity()), (1, 0));
        make_room(&mut second, READ_BYTES);
        assert_eq!((kept(), second.as_ptr()), (0, memory));
    }

    #[test]
    fn what_is_in_use_large_or_too_much_is_not_kept() {
        let mut buffer = BytesMut::new();
        make_room(&mut buffer, READ_BYTES);
        buffer.extend_from_slice(b"a part");
        let part = buffer.split().freeze();
        give_back(&mut buffer);
        assert_eq!((kept(), &part[..]), (0, &b"a part"[..]));
        assert!(buffer.capacity() > 0);
        drop(part);
        give_back(&mut buffer);
        assert_eq!((kept(), buffer.capacity()), (1, 0));
        make_room(&mut buffer, READ_BYTES);

        make_room(&mut buffer, 4 * KEPT_BYTES_MAX);
        assert!(buffer.capacity() >= 4 * KEPT_BYTES_MAX);
        give_back(&mut buffer);
        assert_eq!((kept(), buffer.capacity()), (0, 0));

        for _ in 0..2 * KEPT_MAX {
            give_back(&mut BytesMut::with_capacity(READ_BYTES));
        }
        assert_eq!(kept(), KEPT_MAX);
    }
}
