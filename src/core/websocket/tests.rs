//! Frames, close codes and handshakes by example, and frames split at each byte.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn frame(first: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut frame = vec![first];
    let flag = if mask.is_some() { 0x80 } else { 0 };
    match payload.len() {
        short @ ..126 => frame.push(flag | short as u8),
        medium @ ..65_536 => {
            frame.push(flag | 126);
            frame.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            frame.push(flag | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    frame.extend(mask.iter().flatten());
    let mask = mask.unwrap_or_default();
    frame.extend(
        payload
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % 4]),
    );
    frame
}

const MASK: Option<[u8; 4]> = Some([1, 2, 3, 4]);

fn fault_of(sender: FrameSender, frames: &[&[u8]]) -> Option<FrameFault> {
    FrameChecker::new(sender).check(&frames.concat()).1
}

fn server_fault(frames: &[&[u8]]) -> Option<FrameFault> {
    fault_of(FrameSender::Server, frames)
}

#[test]
fn the_accept_value_is_that_of_the_specification() {
    let accept = accept_for(b"dGhlIHNhbXBsZSBub25jZQ==");
    assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[test]
fn masks_are_for_clients_alone() {
    let (plain, masked) = (frame(0x81, b"hi", None), frame(0x81, b"hi", MASK));
    assert_eq!(fault_of(FrameSender::Client, &[&masked]), None);
    assert_eq!(server_fault(&[&plain]), None);
    assert_eq!(
        fault_of(FrameSender::Client, &[&plain]),
        Some(FrameFault::NotMasked)
    );
    assert_eq!(server_fault(&[&masked]), Some(FrameFault::Masked));
}

#[test]
fn each_first_byte_has_one_meaning() {
    for first in 0..=u8::MAX {
        let fault = server_fault(&[&[first, 0]]);
        let expected = match first {
            _ if first & 0x70 != 0 => Some(FrameFault::ReservedBit),
            0x00 | 0x80 => Some(FrameFault::StrayContinuation),
            0x01 | 0x02 | 0x81 | 0x82 | 0x88 | 0x89 | 0x8a => None,
            0x08..=0x0a => Some(FrameFault::FragmentedControl),
            _ => Some(FrameFault::UnknownOpcode),
        };
        assert_eq!(fault, expected, "{first:#x}");
    }
}

#[test]
fn fragments_take_control_frames_between_them_and_no_other_message() {
    let begin = frame(0x01, b"a", None);
    let ping = frame(0x89, b"p", None);
    let more = frame(0x00, b"b", None);
    let end = frame(0x80, b"c", None);
    assert_eq!(
        server_fault(&[&begin, &ping, &more, &ping, &end, &begin]),
        None
    );
    assert_eq!(
        server_fault(&[&begin, &begin]),
        Some(FrameFault::InterruptedMessage)
    );
    assert_eq!(
        server_fault(&[&begin, &end, &end]),
        Some(FrameFault::StrayContinuation)
    );
}

#[test]
fn lengths_are_bounded_and_written_in_their_shortest_form() {
    for (bytes, fault) in [
        (&[0x82, 126, 0, 125][..], Some(FrameFault::LengthNotMinimal)),
        (&[0x82, 126, 0, 126], None),
        (
            &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
            Some(FrameFault::LengthNotMinimal),
        ),
        (&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], None),
        (
            &[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
            Some(FrameFault::LengthTooLarge),
        ),
        (
            &[0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            None,
        ),
        (&[0x89, 126], Some(FrameFault::LongControl)),
        (&[0x89, 127], Some(FrameFault::LongControl)),
        (&[0x89, 125], None),
    ] {
        assert_eq!(server_fault(&[bytes]), fault, "{bytes:?}");
    }
}

#[test]
fn a_close_frame_has_no_code_or_one_that_may_be_sent() {
    let close = |payload: &[u8], mask| {
        let bytes = frame(0x88, payload, mask);
        let sender = if mask.is_some() {
            FrameSender::Client
        } else {
            FrameSender::Server
        };
        FrameChecker::new(sender).check(&bytes)
    };
    for mask in [None, MASK] {
        assert_eq!(close(b"", mask).0.close, Some(None));
        assert_eq!(close(&[3], mask).1, Some(FrameFault::BadCloseCode));
        for code in 0..=u16::MAX {
            let (checked, fault) = close(&code.to_be_bytes(), mask);
            let may = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
            let expected = may.then_some(Some(CloseCode(code)));
            assert_eq!((checked.close, fault.is_none()), (expected, may), "{code}");
        }
        let reason = [&1000_u16.to_be_bytes()[..], b"\xff"].concat();
        assert_eq!(close(&reason, mask).1, Some(FrameFault::BadCloseReason));
    }
}

#[test]
fn nothing_passes_behind_a_close_frame_and_nothing_of_a_broken_frame() {
    let close = frame(0x88, &[3, 0xe8], None);
    let text = frame(0x81, b"late", None);
    let mut checker = FrameChecker::new(FrameSender::Server);
    let (checked, fault) = checker.check(&[&close[..], &text].concat());
    assert_eq!((checked.passed, fault), (close.len(), None));
    assert!(checker.is_closed());
    let mut checker = FrameChecker::new(FrameSender::Server);
    let (checked, fault) = checker.check(&[&text[..], &[0x83, 0]].concat());
    assert_eq!(
        (checked.passed, fault),
        (text.len(), Some(FrameFault::UnknownOpcode))
    );
}

#[test]
fn an_own_close_frame_is_read_as_it_was_written() {
    for mask in [None, MASK] {
        let sender = if mask.is_some() {
            FrameSender::Client
        } else {
            FrameSender::Server
        };
        let bytes = close_frame(CloseCode::POLICY, &"r".repeat(200), mask);
        let (checked, fault) = FrameChecker::new(sender).check(&bytes);
        assert_eq!((checked.passed, fault), (bytes.len(), None));
        assert_eq!(checked.close, Some(Some(CloseCode::POLICY)));
    }
}

type Lines = &'static [(&'static str, &'static str)];

fn checked(lines: Lines, without: &str, more: Lines) -> Result<(), HandshakeFault> {
    let kept = lines.iter().filter(|(name, _)| *name != without);
    let all: Vec<_> = kept.chain(more).collect();
    check_request(|wanted| {
        let of = all.iter().filter(|(name, _)| *name == wanted);
        of.map(|(_, value)| value.as_bytes()).collect()
    })
}

const GOOD: Lines = &[
    ("upgrade", "websocket"),
    ("connection", "keep-alive, Upgrade"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

#[test]
fn a_handshake_is_complete_or_refused_by_the_part_that_is_wrong() {
    assert_eq!(
        checked(GOOD, "", &[("sec-websocket-protocol", "a, b")]),
        Ok(())
    );
    assert_eq!(
        checked(GOOD, "upgrade", &[("upgrade", "h2c, WebSocket")]),
        Ok(())
    );
    let not_offered: [(&str, Lines); 5] = [
        ("upgrade", &[]),
        ("upgrade", &[("upgrade", "h2c")]),
        ("sec-websocket-version", &[]),
        ("sec-websocket-version", &[("sec-websocket-version", "8")]),
        (
            "sec-websocket-version",
            &[("sec-websocket-version", "13, 8")],
        ),
    ];
    for (without, more) in not_offered {
        let fault = checked(GOOD, without, more);
        assert!(
            matches!(fault, Err(HandshakeFault::NotOffered(_))),
            "{more:?}"
        );
    }
    let malformed: [(&str, Lines); 11] = [
        ("connection", &[]),
        ("connection", &[("connection", "keep-alive")]),
        ("", &[("sec-websocket-version", "13")]),
        ("sec-websocket-key", &[]),
        ("", &[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]),
        (
            "sec-websocket-key",
            &[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ")],
        ),
        (
            "sec-websocket-key",
            &[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZR==")],
        ),
        (
            "sec-websocket-key",
            &[("sec-websocket-key", "dGhlIHNhbXBsZSBub25j-Q==")],
        ),
        ("sec-websocket-key", &[("sec-websocket-key", "")]),
        ("", &[("sec-websocket-protocol", "a b")]),
        ("", &[("sec-websocket-protocol", "a, a")]),
    ];
    for (without, more) in malformed {
        let fault = checked(GOOD, without, more);
        assert!(
            matches!(fault, Err(HandshakeFault::Malformed(_))),
            "{more:?}"
        );
    }
}

#[test]
fn a_key_among_the_subprotocols_goes_to_no_server() {
    let lines = [
        &b"realtime, openai-insecure-api-key.sk-1"[..],
        b"openai-beta.realtime-v1",
    ];
    let offered = offered_protocols(&lines);
    assert_eq!(offered, [&b"realtime"[..], b"openai-beta.realtime-v1"]);
}

#[test]
fn an_answer_fits_the_key_and_what_was_offered() {
    const KEY: &[u8] = b"dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: (&str, &str) = ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let check = |lines: &[(&str, &'static str)]| {
        let values = |wanted: &'static str| {
            let of = lines.iter().filter(|(name, _)| *name == wanted);
            of.map(|(_, value)| value.as_bytes()).collect()
        };
        check_answer(values, KEY, &[b"a", b"b"])
    };
    let (upgrade, connection) = (("upgrade", "WebSocket"), ("connection", "upgrade"));
    assert_eq!(check(&[upgrade, connection, ACCEPT]), Ok(()));
    let chosen = ("sec-websocket-protocol", "b");
    assert_eq!(check(&[upgrade, connection, ACCEPT, chosen]), Ok(()));
    for broken in [
        &[connection, ACCEPT][..],
        &[upgrade, ACCEPT],
        &[upgrade, connection],
        &[upgrade, connection, ACCEPT, ACCEPT],
        &[
            upgrade,
            connection,
            ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOp="),
        ],
        &[upgrade, connection, ACCEPT, ("sec-websocket-protocol", "c")],
        &[upgrade, connection, ACCEPT, chosen, chosen],
        &[
            upgrade,
            connection,
            ACCEPT,
            ("sec-websocket-extensions", "permessage-deflate"),
        ],
    ] {
        assert!(check(broken).is_err(), "{broken:?}");
    }
}

/// Feeds the bytes in pieces as a relay does; returns what has passed, the close and the fault.
fn fed(
    sender: FrameSender,
    pieces: &[&[u8]],
) -> (Vec<u8>, Option<Option<CloseCode>>, Option<FrameFault>) {
    let mut checker = FrameChecker::new(sender);
    let (mut held, mut passed, mut close) = (Vec::new(), Vec::new(), None);
    for piece in pieces {
        held.extend_from_slice(piece);
        let (checked, fault) = checker.check(&held);
        passed.extend(held.drain(..checked.passed));
        close = close.or(checked.close);
        if fault.is_some() || checker.is_closed() {
            return (passed, close, fault);
        }
        assert!(
            held.len() < 14 + CONTROL_BYTES_MAX,
            "more is held than a control frame"
        );
    }
    (passed, close, None)
}

/// A frame that is mostly well-formed, and its bytes.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        6 => prop::sample::select(vec![0x81_u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a]),
        1 => Just(0x88),
        1 => any::<u8>(),
    ];
    let masked = prop::bool::weighted(0.9);
    (first, vec(any::<u8>(), 0..200), masked)
        .prop_map(|(first, payload, masked)| frame(first, &payload, masked.then_some([9, 8, 7, 6])))
}

proptest! {
    #[test]
    fn pieces_of_any_size_pass_like_the_whole(
        frames in vec(any_frame(), 0..6),
        noise in vec(any::<u8>(), 0..20),
        size in 1_usize..40,
    ) {
        let bytes = [frames.concat(), noise].concat();
        let whole = fed(FrameSender::Client, &[&bytes]);
        let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(&fed(FrameSender::Client, &pieces), &whole);
        for at in 0..=bytes.len() {
            let (before, after) = bytes.split_at(at);
            prop_assert_eq!(&fed(FrameSender::Client, &[before, after]), &whole, "at {}", at);
        }
    }

    #[test]
    fn what_passes_is_a_prefix_and_well_formed(bytes in vec(any::<u8>(), 0..400)) {
        for sender in [FrameSender::Client, FrameSender::Server] {
            let (passed, _, _) = fed(sender, &[&bytes]);
            prop_assert!(bytes.starts_with(&passed));
            let (again, _, fault) = fed(sender, &[&passed]);
            prop_assert_eq!(again, passed);
            prop_assert_eq!(fault, None);
        }
    }
}
