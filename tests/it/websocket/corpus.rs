//! Raw frames of both sides: each passes to the last byte, or closes both with 1002 and passes not at all.
//!
//! Expectations are written down here, by the sections of RFC 6455, and not asked of the parser. A second connection
//! is open all the time; it sees its own messages and no others.

use super::*;
use crate::support::websocket::{RecordedSocket, take_frame};

/// Outcome of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// All bytes reach the other side as they are.
    Passes,
    /// So many bytes reach the other side, then both are given 1002.
    Breaks(usize),
}

struct Case {
    name: String,
    is_of_client: bool,
    bytes: Vec<u8>,
    expected: Expected,
}

/// Adds a case for both sides, each with frames of its own form.
fn add(
    cases: &mut Vec<Case>,
    name: &str,
    parts: &[(u8, &[u8])],
    expected: impl Fn(&[usize]) -> Expected,
) {
    for is_of_client in [true, false] {
        let form = if is_of_client { masked } else { plain };
        let frames: Vec<_> = parts
            .iter()
            .map(|(first, payload)| form(*first, payload))
            .collect();
        let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
        cases.push(Case {
            name: format!(
                "{name}, of the {}",
                if is_of_client { "client" } else { "server" }
            ),
            is_of_client,
            bytes: frames.concat(),
            expected: expected(&lengths),
        });
    }
}

fn raw(cases: &mut Vec<Case>, name: &str, is_of_client: bool, bytes: &[u8], expected: Expected) {
    cases.push(Case {
        name: name.to_owned(),
        is_of_client,
        bytes: bytes.to_vec(),
        expected,
    });
}

const BREAKS: fn(&[usize]) -> Expected = |_| Expected::Breaks(0);
const PASSES: fn(&[usize]) -> Expected = |_| Expected::Passes;

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Section 5.2: reserved bits and opcodes; 5.4 and 5.5: fragments.
    for first in 0..=u8::MAX {
        let is_final = first & 0x80 != 0;
        let passes = match first & 0x7f {
            0x01 | 0x02 => true,
            0x09 | 0x0a => is_final,
            _ => false,
        };
        // A close frame ends the connection: below.
        if first != 0x88 {
            let expected = if passes { PASSES } else { BREAKS };
            add(
                &mut cases,
                &format!("first byte {first:#04x}"),
                &[(first, b"xy")],
                expected,
            );
        }
    }
    let second_breaks: fn(&[usize]) -> Expected = |lengths| Expected::Breaks(lengths[0]);
    add(
        &mut cases,
        "text in three parts",
        &[(0x01, b"a"), (0x00, b"b"), (0x80, b"c")],
        PASSES,
    );
    add(
        &mut cases,
        "ping between parts",
        &[(0x02, b"a"), (0x89, b"p"), (0x80, b"c")],
        PASSES,
    );
    add(
        &mut cases,
        "empty parts",
        &[(0x01, b""), (0x00, b""), (0x80, b"")],
        PASSES,
    );
    add(
        &mut cases,
        "text within a text",
        &[(0x01, b"a"), (0x81, b"b")],
        second_breaks,
    );
    add(
        &mut cases,
        "bytes within a text",
        &[(0x01, b"a"), (0x02, b"b")],
        second_breaks,
    );
    add(
        &mut cases,
        "continuation of nothing",
        &[(0x81, b"a"), (0x80, b"b")],
        second_breaks,
    );
    add(
        &mut cases,
        "text that is not UTF-8",
        &[(0x81, b"\xff\xfe")],
        PASSES,
    );
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 200_000] {
        add(
            &mut cases,
            &format!("{length} bytes"),
            &[(0x82, &vec![5; length])],
            PASSES,
        );
        if length > 125 {
            for first in [0x88, 0x89, 0x8a] {
                let name = format!("control frame {first:#x} of {length} bytes");
                add(&mut cases, &name, &[(first, &vec![5; length])], BREAKS);
            }
        }
    }
    add(
        &mut cases,
        "ping of 125 bytes",
        &[(0x89, &[5; 125])],
        PASSES,
    );
    // Section 7.4: codes that no endpoint may send.
    for code in [
        0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535,
    ] {
        let payload = close_payload(code, "");
        add(
            &mut cases,
            &format!("close with {code}"),
            &[(0x88, &payload)],
            BREAKS,
        );
    }
    add(
        &mut cases,
        "close with half a code",
        &[(0x88, b"\x03")],
        BREAKS,
    );
    let reason = [&close_payload(1000, "")[..], b"\xc3\x28"].concat();
    add(
        &mut cases,
        "close with a reason that is not UTF-8",
        &[(0x88, &reason)],
        BREAKS,
    );
    // Section 5.1: masks; 5.2: lengths.
    raw(
        &mut cases,
        "client without a mask",
        true,
        &plain(0x81, b"a"),
        Expected::Breaks(0),
    );
    raw(
        &mut cases,
        "client without a mask, empty",
        true,
        &[0x81, 0],
        Expected::Breaks(0),
    );
    raw(
        &mut cases,
        "server with a mask",
        false,
        &masked(0x81, b"a"),
        Expected::Breaks(0),
    );
    let second = [masked(0x81, b"a"), plain(0x81, b"b")].concat();
    raw(
        &mut cases,
        "client that forgets its mask",
        true,
        &second,
        Expected::Breaks(7),
    );
    for (name, length) in [
        ("125 in two bytes", &[126, 0, 125][..]),
        ("0 in two bytes", &[126, 0, 0]),
        (
            "65,535 in eight bytes",
            &[127, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
        ),
        ("5 in eight bytes", &[127, 0, 0, 0, 0, 0, 0, 0, 5]),
        ("2^63", &[127, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        (
            "2^64 - 1",
            &[127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
    ] {
        let mut bytes = vec![0x82];
        bytes.extend_from_slice(length);
        raw(
            &mut cases,
            &format!("length {name}, of the server"),
            false,
            &bytes,
            Expected::Breaks(0),
        );
        bytes[1] |= 0x80;
        bytes.extend_from_slice(&[0; 4]);
        raw(
            &mut cases,
            &format!("length {name}, of the client"),
            true,
            &bytes,
            Expected::Breaks(0),
        );
    }
    for (name, bytes) in [
        ("HTTP", &b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..]),
        ("a TLS hello", b"\x16\x03\x01\x00\x05hello"),
        ("text", b"hello, world"),
        ("an HTTP response", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("ones", &[0xff; 40]),
        ("zeros", &[0; 40]),
    ] {
        raw(
            &mut cases,
            &format!("{name} of the client"),
            true,
            bytes,
            Expected::Breaks(0),
        );
        raw(
            &mut cases,
            &format!("{name} of the server"),
            false,
            bytes,
            Expected::Breaks(0),
        );
    }
    cases
}

/// Runs one case on a connection of its own.
async fn run(case: &Case, client: &mut WebSocketClient, socket: &RecordedSocket) {
    let name = &case.name;
    match case.is_of_client {
        true => client.send(&case.bytes).await,
        false => socket.send(&case.bytes),
    }
    let passing = match case.expected {
        Expected::Passes => case.bytes.len(),
        Expected::Breaks(passing) => passing,
    };
    let seen = match case.is_of_client {
        true => socket.until_received(passing).await,
        false => client.raw(passing).await,
    };
    assert_eq!(seen[..passing], case.bytes[..passing], "{name}");
    if case.expected == Expected::Passes {
        assert_eq!(seen.len(), passing, "{name}");
        return;
    }
    let (code, reason) = client.closed().await;
    assert_eq!(code, 1002, "{name}: {reason}");
    assert!(!reason.is_empty(), "{name}");
    let mut received = socket.until_gone().await;
    let behind = if case.is_of_client { passing } else { 0 };
    received.drain(..behind);
    let (first, payload) = take_frame(&mut received).unwrap_or_else(|| panic!("{name}: no close"));
    assert_eq!(
        (first, payload),
        (0x88, close_payload(1002, &reason)),
        "{name}"
    );
    assert_eq!(received, b"", "{name}");
}

#[tokio::test]
async fn frames_pass_whole_or_close_both_sides_and_no_other_connection_sees_them() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 64, "")).await;
    let mut canary = WebSocketClient::connect(node.clients, PATH).await;
    let canary_socket = server.socket(0).await;
    let mut of_canary = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 200, "{}", cases.len());
    for (number, case) in cases.iter().enumerate() {
        let mut client = WebSocketClient::connect(node.clients, PATH).await;
        let socket = server.socket(number + 1).await;
        run(case, &mut client, &socket).await;
        let nonce = format!("nonce {number}");
        canary.send_text(&nonce).await;
        of_canary.extend_from_slice(&masked(0x81, nonce.as_bytes()));
        assert_eq!(
            canary_socket.until_received(of_canary.len()).await,
            of_canary,
            "{}",
            case.name
        );
        canary_socket.send(&plain(0x81, nonce.as_bytes()));
        assert_eq!(canary.text().await, nonce, "{}", case.name);
    }
    drop(canary);
    node.idle().await;
    let events = node.events(cases.len() + 1).await;
    assert_eq!(events.len(), cases.len() + 1);
}

#[tokio::test]
async fn frames_that_come_byte_by_byte_pass_as_they_are() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 4, "")).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(0).await;
    let frames = [
        masked(0x01, b"abc"),
        masked(0x89, b"ping"),
        masked(0x80, &[1; 130]),
        masked(0x88, &close_payload(1000, "bye")),
    ];
    let bytes = frames.concat();
    for byte in &bytes {
        client.send([*byte]).await;
    }
    assert_eq!(socket.until_received(bytes.len()).await, bytes);
}
