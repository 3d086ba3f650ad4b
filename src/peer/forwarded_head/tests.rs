//! Heads between nodes, as written and as read by a stranger.

use super::*;

fn sample_head() -> ForwardedHead {
    let mut hops = Hops::new(&"a".into(), Millis(9), 10);
    let hops = hops.forward(&"b".into(), Millis(9), Millis(7), 1, true);
    ForwardedHead {
        from: "a".into(),
        generation: 7,
        hops,
        request_id: "r1".into(),
        client: ClientAddress::UNIX_SOCKET.named([203, 0, 113, 7].into()),
        account: "acme".into(),
        is_limited: true,
        model: "@cf/m".into(),
        requested_model: Some("big".into()),
        path: vec!["fra/a".into(), "ams/b".into()],
        attempts: 2,
        elapsed_us: 5_000_000_000,
        queued_us: 17,
        forced_site: Some("ams".into()),
        tariff: Some(r#"{"cost_per_infer":1.5,"coefficients":{}}"#.into()),
    }
}

fn headers(lines: &str) -> Fields {
    let lines = lines.split_terminator("\r\n");
    let lines: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    Fields::from_lines(&lines)
}

fn written(head: &ForwardedHead) -> String {
    let mut out = BytesMut::new();
    head.write(&mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn what_one_node_writes_the_other_reads() {
    let (named, socket) = (sample_head().client, ClientAddress::UNIX_SOCKET);
    for (requested_model, client) in [
        (None, named),
        (Some("big".into()), socket),
        (None, ClientAddress::of_network([10, 0, 0, 1].into())),
        (None, ClientAddress::default()),
    ] {
        let head = ForwardedHead {
            requested_model,
            client,
            ..sample_head()
        };
        assert_eq!(ForwardedHead::read(&headers(&written(&head))), Ok(head));
    }
    let hops = sample_head().hops;
    let no_room = RejectionCause::NoCapacity {
        free: 3,
        wait_ms: 40,
    };
    let unfit = [UnfitCause::NoSuchFinetune, UnfitCause::FinetuneIncomplete];
    let [unknown, incomplete] = unfit.map(RejectionCause::Unfit);
    for cause in [no_room, unknown, incomplete, RejectionCause::Failed] {
        let rejection = ForwardRejection {
            cause,
            hops: hops.clone(),
            attempts: 1,
        };
        let lines = rejection.lines().into_iter();
        let lines: String = lines.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        assert_eq!(
            ForwardRejection::read(&headers(&lines)),
            Ok(Some(rejection))
        );
    }
    assert_eq!(ForwardRejection::read(&Fields::default()), Ok(None));
}

#[test]
fn fuzzing_begins_with_heads_that_are_read() {
    let forward = include_str!("../../../fuzz/seeds/heads_of_forwards/forward");
    assert_eq!(ForwardedHead::read(&headers(forward)), Ok(sample_head()));
    let rejection = include_str!("../../../fuzz/seeds/heads_of_forwards/rejection");
    let read = ForwardRejection::read(&headers(rejection));
    assert!(matches!(read, Ok(Some(_))), "{read:?}");
}

#[test]
fn a_head_that_is_missing_repeated_or_spoilt_is_refused() {
    let whole = written(&sample_head());
    assert!(ForwardedHead::read(&Fields::default()).is_err());
    assert!(ForwardedHead::read(&headers(&whole.repeat(2))).is_err());
    let first = whole.lines().next().unwrap();
    let (_, value) = first.split_once(": ").unwrap();
    for length in 0..value.len() {
        assert!(ForwardedHead::parse(&value[..length]).is_err(), "{length}");
    }
    for (from, to) in [
        ("3;7;", "3;+7;"),
        ("3;7;", "3;07;"),
        ("3;7;", "3;;"),
        ("3;7;9;", "3;7;86400001;"),
        (";2;5000000000;", ";101;5000000000;"),
        (";5000000000;", ";86400000001;"),
        (";17;", ";86400000001;"),
        (";1;2;7;", ";2;2;7;"),
        (";1;2;7;", ";1;99;7;"),
        (";1;2;7;", ";1;0;7;"),
        (";1;2;7;", ";1;2;8;"),
        (";1;2;7;", ";1;2;3;"),
        ("5:fra/a", "3:fra"),
        ("4:acme", "0:"),
        ("@cf/m1:a", "@cf/m1: "),
        ("5:@cf/m", "99999:@cf/m"),
    ] {
        let spoilt = value.replacen(from, to, 1);
        assert_ne!(spoilt, value, "{from}");
        let read = ForwardedHead::parse(&spoilt);
        assert!(!read.unwrap_err().is_of_other_protocol(), "{to}");
    }
}

#[test]
fn a_head_of_another_version_is_recognised_before_it_is_read() {
    for value in ["4;something else", "2;", "1; visited=a; deadline_ms=1"] {
        let read = ForwardedHead::parse(value);
        assert!(read.unwrap_err().is_of_other_protocol(), "{value}");
    }
}

#[test]
fn a_rejection_by_a_node_of_version_1_is_no_response_for_the_client() {
    let read = ForwardRejection::read(&headers("x-infergate-came-back: not-read\r\n"));
    assert!(read.is_err());
    let answer = ForwardRejection::read(&headers("content-type: text/plain\r\n"));
    assert!(answer.unwrap().is_none());
}
