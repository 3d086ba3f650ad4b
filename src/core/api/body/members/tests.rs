//! The reader of bodies held against serde_json: the same bodies are accepted, with the same members.

use fastrand::Rng;
use fearless_simd::Level;

use super::*;

const BODIES: usize = 1_000_000;

/// Members, and the offset behind the brace; none where the body is refused.
type Reading = Option<(Vec<(Vec<u8>, Range<usize>)>, usize)>;

fn reading(members: Option<BodyMembers<'_>>) -> Reading {
    let members = members?;
    let list = members.list.into_iter();
    let list = list.map(|member| (member.key.into_owned(), member.value));
    Some((list.collect(), members.first_member))
}

fn assert_same(body: &[u8]) -> bool {
    let once = reading(BodyMembers::read_once(body));
    let by_serde = reading(BodyMembers::read_by_serde(body).ok());
    assert_eq!(once, by_serde, "{:?}", String::from_utf8_lossy(body));
    once.is_some()
}

#[test]
fn a_million_bodies_are_accepted_or_refused_as_by_serde() {
    let mut rng = Rng::with_seed(20_260_101);
    let mut body = Vec::new();
    let mut accepted = 0;
    for _ in 0..BODIES {
        body.clear();
        write_body(&mut rng, &mut body);
        if rng.bool() {
            for _ in 0..rng.usize(1..4) {
                mutate(&mut rng, &mut body);
            }
        }
        accepted += usize::from(assert_same(&body));
    }
    // Neither side of the comparison is an exception.
    assert!(
        (BODIES / 2..BODIES * 9 / 10).contains(&accepted),
        "{accepted}"
    );
}

#[test]
fn every_byte_at_every_place_of_a_string_is_taken_as_by_serde() {
    for length in [1, 15, 16, 17, 63, 64, 65, 200, 330] {
        for place in 0..length {
            for byte in 0..=u8::MAX {
                let mut text = vec![b'a'; length];
                text[place] = byte;
                assert_same(&[br#"{"a":""#, &text[..], br#"","b":0}"#].concat());
            }
        }
    }
}

#[test]
fn every_byte_behind_a_backslash_is_taken_as_by_serde() {
    for before in 0..70 {
        for byte in 0..=u8::MAX {
            let text = [&vec![b'a'; before][..], b"\\", &[byte], b"000\\\"\\\\"].concat();
            for after in [0, 100] {
                let rest = vec![b'a'; after];
                assert_same(&[br#"{"a":""#, &text[..], &rest, br#""}"#].concat());
            }
        }
    }
}

#[test]
fn a_processor_without_wide_vectors_reads_the_same() {
    let mut rng = Rng::with_seed(1);
    for _ in 0..10_000 {
        let mut body = Vec::new();
        write_body(&mut rng, &mut body);
        mutate(&mut rng, &mut body);
        let mut members = Vec::new();
        let each = |key: Cow<'_, [u8]>, value| {
            members.push((key.into_owned(), value));
            Some(())
        };
        let end = fearless_simd::dispatch!(
            Level::baseline(),
            vectors => reader::read_members_with(vectors, &body, each)
        );
        let narrow = end.map(|first_member| (members, first_member));
        assert_eq!(narrow, reading(BodyMembers::read_once(&body)));
    }
}

#[test]
fn more_members_than_a_body_may_have_are_refused_with_a_reason() {
    let body = |members| format!("{{{}}}", vec![r#""a":1"#; members].join(","));
    assert!(assert_same(body(MEMBERS_MAX).as_bytes()));
    let many = body(MEMBERS_MAX + 1);
    assert!(!assert_same(many.as_bytes()));
    let Err(Refusal::BadRequest { message, .. }) = BodyMembers::read(many.as_bytes()) else {
        panic!("accepted");
    };
    assert!(message.contains("too many members"), "{message}");
}

fn write_body(rng: &mut Rng, out: &mut Vec<u8>) {
    if rng.u8(..) == 0 {
        return write_deep(rng, out);
    }
    blanks(rng, out);
    out.push(b'{');
    for member in 0..rng.usize(..6) {
        if member > 0 {
            out.push(b',');
        }
        write_member(rng, 0, out);
    }
    blanks(rng, out);
    out.push(b'}');
    blanks(rng, out);
}

/// About as many levels as a body may have, closed in the right order mostly.
fn write_deep(rng: &mut Rng, out: &mut Vec<u8>) {
    out.extend(br#"{"a":"#);
    let kinds: Vec<bool> = (0..rng.usize(120..135)).map(|_| rng.bool()).collect();
    for &is_object in &kinds {
        out.extend(if is_object { &br#"{"b":"#[..] } else { b"[" });
    }
    out.push(b'0');
    for &is_object in kinds.iter().rev() {
        let is_wrong = rng.u16(..2000) == 0;
        out.push(if is_object != is_wrong { b'}' } else { b']' });
    }
    out.push(b'}');
}

fn write_member(rng: &mut Rng, level: usize, out: &mut Vec<u8>) {
    blanks(rng, out);
    write_string(rng, out);
    blanks(rng, out);
    out.push(b':');
    write_value(rng, level, out);
}

fn write_value(rng: &mut Rng, level: usize, out: &mut Vec<u8>) {
    blanks(rng, out);
    match rng.u8(..if level < 4 { 10 } else { 7 }) {
        0..=2 => write_string(rng, out),
        3..=5 => write_number(rng, out),
        6 => out.extend(rng.choice([&b"true"[..], b"false", b"null"]).unwrap()),
        kind => {
            let (open, close) = if kind == 7 {
                (b'[', b']')
            } else {
                (b'{', b'}')
            };
            out.push(open);
            for item in 0..rng.usize(..4) {
                if item > 0 {
                    out.push(b',');
                }
                match kind {
                    7 => write_value(rng, level + 1, out),
                    _ => write_member(rng, level + 1, out),
                }
            }
            blanks(rng, out);
            out.push(close);
        }
    }
    blanks(rng, out);
}

fn write_number(rng: &mut Rng, out: &mut Vec<u8>) {
    const EDGES: [&str; 16] = [
        "0",
        "-0",
        "-",
        "01",
        "1.",
        ".5",
        "1.0e5",
        "1E+9",
        "1e-",
        "-1e999",
        "0.0",
        "0e0",
        "1e5.2",
        "18446744073709551616",
        "123456789012345678",
        "+1",
    ];
    // Most edges are no numbers: they are rare, so that most bodies are valid.
    match rng.u8(..40) {
        0 => out.extend(rng.choice(EDGES).unwrap().bytes()),
        1..=9 => out.extend(format!("{:e}", rng.f64() - 0.5).bytes()),
        _ => out.extend((rng.i64(..) >> rng.u8(..64)).to_string().bytes()),
    }
}

fn write_string(rng: &mut Rng, out: &mut Vec<u8>) {
    const PIECES: [&str; 12] = [
        r#"\""#,
        r"\\",
        r"\n",
        r"\/",
        r"\u00e9",
        r"\ud83d\ude00",
        "é",
        "你好",
        "😀",
        "role",
        "model",
        "~",
    ];
    /// Refused in names of the outermost object only, or everywhere.
    const ODD: [&str; 6] = [r"\ud83d", r"\ude00x", r"\u12", r"\x", "\u{1f}", "\n"];
    out.push(b'"');
    for _ in 0..rng.usize(..5) {
        match rng.u8(..60) {
            0 => out.extend(rng.choice(ODD).unwrap().bytes()),
            1..=25 => out.extend(rng.choice(PIECES).unwrap().bytes()),
            26..=30 => out.resize(out.len() + rng.usize(..300), b'x'),
            _ => out.resize(out.len() + rng.usize(..20), b' '),
        }
    }
    out.push(b'"');
}

fn blanks(rng: &mut Rng, out: &mut Vec<u8>) {
    if rng.u8(..8) == 0 {
        out.extend(rng.choice([&b" "[..], b"\n  ", b"\t", b"\r\n"]).unwrap());
    }
}

fn mutate(rng: &mut Rng, body: &mut Vec<u8>) {
    const BYTES: &[u8] = b"\"\\{}[]:,0-.eEtfnu \n\x00\x1f\x7f\x80\xbf\xc0\xe4\xf0\xff\x0c\xef";
    let at = rng.usize(..=body.len());
    let byte = *rng.choice(BYTES).unwrap();
    match (rng.u8(..7), body.get(at).copied()) {
        (0, _) => body.truncate(at),
        (1, _) => body.insert(at, byte),
        (2, Some(_)) => body[at] = byte,
        (3, Some(_)) => body[at] ^= 1 << rng.u8(..8),
        (4, Some(_)) => {
            body.remove(at);
        }
        (5, Some(twice)) => body.insert(at, twice),
        // The mildest, so that many mutated bodies stay valid.
        _ => body.extend(b"  "),
    }
}
