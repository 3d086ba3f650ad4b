//! Tests of receivers' URLs: what is taken, what is refused, and every notation of forbidden addresses.

use super::*;
use crate::network::Network;

fn rules() -> ReceiverRules {
    ReceiverRules {
        allow_http: true,
        ..ReceiverRules::default()
    }
}

fn parse(text: &str) -> Result<ReceiverUrl, ReceiverUrlError> {
    ReceiverUrl::parse(text, &rules())
}

#[test]
fn parts_are_in_canonical_form() {
    for (text, key, target) in [
        ("https://example.com", "https://example.com:443", "/"),
        (
            "HTTPS://EXAMPLE.com/A?b=C",
            "https://example.com:443",
            "/A?b=C",
        ),
        ("http://a.b:8080/x", "http://a.b:8080", "/x"),
        ("https://a.b:/x", "https://a.b:443", "/x"),
        ("https://a.b:00443/x", "https://a.b:443", "/x"),
        ("http://a.b", "http://a.b:80", "/"),
        ("https://a.b?x=1", "https://a.b:443", "/?x=1"),
        ("https://a.b#x", "https://a.b:443", "/"),
        ("https://a.b/x?y#z?w", "https://a.b:443", "/x?y"),
        ("https://a.b./x", "https://a.b:443", "/x"),
        ("https://a.b/@x:y", "https://a.b:443", "/@x:y"),
        ("https://a.b?u@c", "https://a.b:443", "/?u@c"),
        ("https://a.b/%0d%0a", "https://a.b:443", "/%0d%0a"),
        (
            "https://a.b/{x}|\"<>^`",
            "https://a.b:443",
            "/%7Bx%7D%7C%22%3C%3E%5E%60",
        ),
        ("https://a.b//c/../d", "https://a.b:443", "//c/../d"),
        ("https://my_app:8443/", "https://my_app:8443", "/"),
        (
            "https://xn--bcher-kva.example/",
            "https://xn--bcher-kva.example:443",
            "/",
        ),
        ("https://0xg.com/", "https://0xg.com:443", "/"),
        ("https://1.2.3.com/", "https://1.2.3.com:443", "/"),
        ("https://8.8.8.8.nip.io/", "https://8.8.8.8.nip.io:443", "/"),
        ("https://1e3/", "https://1e3:443", "/"),
        ("https://134744072/", "https://8.8.8.8:443", "/"),
        ("https://0x8.8.2056/", "https://8.8.8.8:443", "/"),
        ("https://8.8.8.8./", "https://8.8.8.8:443", "/"),
        (
            "https://[2606:4700:0::1111]/",
            "https://[2606:4700::1111]:443",
            "/",
        ),
        (
            "https://[2606:4700::6810:85E5]:8443",
            "https://[2606:4700::6810:85e5]:8443",
            "/",
        ),
        ("https://[::ffff:8.8.8.8]/", "https://8.8.8.8:443", "/"),
    ] {
        let url = parse(text).unwrap();
        assert_eq!(&**url.receiver_key(), key, "{text}");
        assert_eq!(url.path_and_query(), target, "{text}");
    }
}

#[test]
fn accessors_name_the_connection() {
    let url = parse("http://Example.com:8080/a").unwrap();
    assert_eq!(url.scheme(), ReceiverScheme::Http);
    assert_eq!((url.host(), url.port()), ("example.com", 8080));
    assert_eq!(url.literal(), None);
    let url = parse("https://[2606:4700::1]/").unwrap();
    assert_eq!(url.host(), "[2606:4700::1]");
    assert_eq!(url.literal(), "2606:4700::1".parse().ok());
}

#[test]
fn malformed_urls_are_refused() {
    use ReceiverUrlError::{Character, Host, Port, Scheme, UserInfo};
    let cases: &[(&str, ReceiverUrlError)] = &[
        ("", Scheme),
        ("example.com", Scheme),
        ("//example.com", Scheme),
        ("ftp://example.com", Scheme),
        ("file:///etc/passwd", Scheme),
        ("gopher://a.b:80", Scheme),
        ("https:/example.com", Scheme),
        ("https:example.com", Scheme),
        ("https//example.com", Scheme),
        ("javascript:alert(1)", Scheme),
        ("data:text/plain,x", Scheme),
        ("httpss://a.b", Scheme),
        ("x-https://a.b", Scheme),
        ("unix:///run/docker.sock", Scheme),
        ("https://user@a.b", UserInfo),
        ("https://user:pass@a.b", UserInfo),
        ("https://:@a.b", UserInfo),
        ("https://@a.b", UserInfo),
        ("https://a.b@127.0.0.1", UserInfo),
        ("https://a.b:443@127.0.0.1/", UserInfo),
        ("https://a.b%40@c", UserInfo),
        ("https://", Host),
        ("https:///", Host),
        ("https:///a.b/", Host),
        ("https://?a.b", Host),
        ("https://#a.b", Host),
        ("https://:443", Host),
        ("https://.", Host),
        ("https://..", Host),
        ("https://a..b", Host),
        ("https://.a", Host),
        ("https://a.b..", Host),
        ("https://127.0.0.1..", Host),
        ("https://-a.b", Host),
        ("https://a-.b", Host),
        ("https://a*b", Host),
        ("https://a,b", Host),
        ("https://a;b", Host),
        ("https://a'b", Host),
        ("https://a&b", Host),
        ("https://a=b", Host),
        ("https://a+b", Host),
        ("https://(a)", Host),
        ("https://{a}", Host),
        ("https://a|b", Host),
        ("https://a%2eb", Host),
        ("https://%31%32%37.0.0.1", Host),
        ("https://127%2e0%2e0%2e1", Host),
        ("https://127.0.0.1%00.a.b", Host),
        ("https://%6c%6fcalhost", Host),
        ("https://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1", Host),
        ("https://1.2.3.4.5", Host),
        ("https://1.2.3.256", Host),
        ("https://256.2.3.4", Host),
        ("https://1.2.65536", Host),
        ("https://1.16777216", Host),
        ("https://4294967296", Host),
        ("https://0x100000000", Host),
        ("https://040000000000", Host),
        ("https://18446744073709551617", Host),
        ("https://99999999999999999999999999", Host),
        ("https://0xffffffffffffffffff7f000001", Host),
        ("https://08.8.8.8", Host),
        ("https://8.8.8.09", Host),
        ("https://a.1", Host),
        ("https://a.b.0x1", Host),
        ("https://a.0x", Host),
        ("https://1..1", Host),
        ("https://8.8..8", Host),
        ("https://[::1", Port),
        ("https://::1", Port),
        ("https://::1]", Host),
        ("https://[::1]]", Host),
        ("https://[[::1]]", Host),
        ("https://[::1]x", Host),
        ("https://x[::1]", Host),
        ("https://[]", Host),
        ("https://[:]", Host),
        ("https://[127.0.0.1]", Host),
        ("https://[8.8.8.8]", Host),
        ("https://[example.com]", Host),
        ("https://[fe80::1%eth0]", Host),
        ("https://[fe80::1%25eth0]", Host),
        ("https://[fe80::1%251]", Host),
        ("https://[v1.a]", Host),
        ("https://[1:2:3]", Host),
        ("https://[1::2::3]", Host),
        ("https://[12345::]", Host),
        ("https://[::ffff:127.1]", Host),
        ("https://[::ffff:0x7f.0.0.1]", Host),
        ("https://[::ffff:0177.0.0.1]", Host),
        ("https://a.b:x", Port),
        ("https://a.b:0", Port),
        ("https://a.b:22", Port),
        ("https://a.b:6379", Port),
        ("https://a.b:65536", Port),
        ("https://a.b:65979", Port),
        ("https://a.b:+443", Port),
        ("https://a.b:-443", Port),
        ("https://a.b:000443", Port),
        ("https://a.b:443:443", Port),
        ("https://a.b:0x1bb", Port),
        ("https://a:b:443", Port),
        ("https://[2606:4700::1]:22", Port),
        ("https://a.b\\@c.d", Character),
        ("https:\\\\a.b", Character),
        ("https://a.b\\x", Character),
        (" https://a.b", Character),
        ("https://a.b ", Character),
        ("https://a.b/ x", Character),
        ("https://a b", Character),
        ("ht\ttps://a.b", Character),
        ("https://a\t.b", Character),
        ("https://127.0\n.0.1", Character),
        ("https://a.b/\r\nHost:x", Character),
        ("https://a.b/\0", Character),
        ("https://a.b\u{7f}", Character),
        ("https://a.b/\u{1b}", Character),
        ("https://１２７.0.0.1", Character),
        ("https://127。0。0。1", Character),
        ("https://①②⑦.0.0.1", Character),
        ("https://ⓛocalhost", Character),
        ("https://bücher.example", Character),
        ("https://a\u{ad}b.c", Character),
        ("https://a\u{200b}.b", Character),
        ("https://a.b/é", Character),
        ("https://a.b\u{ff0f}c", Character),
        ("\u{feff}https://a.b", Character),
    ];
    for (text, refused) in cases {
        assert_eq!(parse(text), Err(*refused), "{text:?}");
    }
}

#[test]
fn long_urls_and_names_are_refused() {
    let path = "a".repeat(URL_BYTES_MAX - "https://a.b/".len());
    assert!(parse(&format!("https://a.b/{path}")).is_ok());
    let long = parse(&format!("https://a.b/{path}a"));
    assert_eq!(long, Err(ReceiverUrlError::TooLong));
    let label = "a".repeat(63);
    assert!(parse(&format!("https://{label}.b")).is_ok());
    let long = parse(&format!("https://a{label}.b"));
    assert_eq!(long, Err(ReceiverUrlError::Host));
    let name = [label.as_str(); 4].join(".");
    let long = parse(&format!("https://{name}"));
    assert_eq!(long, Err(ReceiverUrlError::Host));
    assert!(parse(&format!("https://{}", &name[2..])).is_ok());
}

#[test]
fn http_is_taken_only_where_it_is_allowed() {
    let strict = ReceiverRules::default();
    let refused = ReceiverUrl::parse("http://a.b", &strict);
    assert_eq!(refused, Err(ReceiverUrlError::Scheme));
    assert!(ReceiverUrl::parse("https://a.b", &strict).is_ok());
}

#[test]
fn errors_name_no_address() {
    for text in [
        "https://127.0.0.1",
        "https://[fd00::1]",
        "https://10.1.2.3:22",
    ] {
        let text = parse(text).unwrap_err().to_string();
        assert!(!text.contains(['1', '[']), "{text}");
    }
}

/// Ends and middles of every forbidden range of IPv4.
const FORBIDDEN: &[[u8; 4]] = &[
    [0, 0, 0, 0],
    [0, 255, 255, 255],
    [10, 0, 0, 0],
    [10, 255, 255, 255],
    [100, 64, 0, 0],
    [100, 100, 100, 200],
    [100, 127, 255, 255],
    [127, 0, 0, 1],
    [127, 255, 255, 254],
    [168, 63, 129, 16],
    [169, 254, 0, 0],
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [169, 254, 255, 255],
    [172, 16, 0, 0],
    [172, 31, 255, 255],
    [192, 0, 0, 0],
    [192, 0, 0, 192],
    [192, 0, 0, 255],
    [192, 0, 2, 1],
    [192, 88, 99, 1],
    [192, 168, 0, 0],
    [192, 168, 255, 255],
    [198, 18, 0, 0],
    [198, 19, 255, 255],
    [198, 51, 100, 7],
    [203, 0, 113, 255],
    [224, 0, 0, 1],
    [239, 255, 255, 255],
    [240, 0, 0, 0],
    [255, 255, 255, 254],
    [255, 255, 255, 255],
];

/// Neighbours of forbidden ranges.
const ALLOWED: &[[u8; 4]] = &[
    [1, 0, 0, 0],
    [9, 255, 255, 255],
    [11, 0, 0, 0],
    [100, 63, 255, 255],
    [100, 128, 0, 0],
    [126, 255, 255, 255],
    [128, 0, 0, 0],
    [168, 63, 129, 17],
    [169, 253, 255, 255],
    [169, 255, 0, 0],
    [172, 15, 255, 255],
    [172, 32, 0, 0],
    [192, 0, 1, 0],
    [192, 0, 3, 0],
    [192, 88, 98, 255],
    [192, 88, 100, 0],
    [192, 167, 255, 255],
    [192, 169, 0, 0],
    [198, 17, 255, 255],
    [198, 20, 0, 0],
    [198, 51, 101, 0],
    [203, 0, 112, 255],
    [203, 0, 114, 0],
    [223, 255, 255, 255],
];

/// Notations that name the address itself.
fn notations(address: [u8; 4]) -> Vec<String> {
    let [a, b, c, d] = address;
    let bits = u32::from_be_bytes(address);
    let (low24, low16) = (bits & 0xff_ffff, bits & 0xffff);
    let high16 = bits >> 16;
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{a}.{b}.{low16}"),
        format!("{a}.{low24}"),
        format!("{bits}"),
        format!("{bits}."),
        format!("0x{bits:x}"),
        format!("0X{bits:08X}"),
        format!("0x{bits:020x}"),
        format!("0{bits:o}"),
        format!("000{bits:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0000{a:o}.{b}.0x{c:02x}.{d}"),
        format!("0x{a:x}.0{b:o}.{low16}"),
        format!("0{a:o}.0x{low24:x}"),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::FFFF:{high16:x}:{low16:x}]"),
        format!("[0:0:0:0:0:ffff:{high16:04x}:{low16:04x}]"),
    ]
}

/// IPv6 forms that carry the address and are forbidden whatever it is.
fn carriers(address: [u8; 4]) -> Vec<String> {
    let [a, b, c, d] = address;
    let bits = u32::from_be_bytes(address);
    let (high, low) = (bits >> 16, bits & 0xffff);
    let inverted = !bits;
    vec![
        format!("[::{a}.{b}.{c}.{d}]"),
        format!("[0:0:0:0:0:0:{high:x}:{low:x}]"),
        format!("[::ffff:0:{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[64:ff9b:1::{a}.{b}.{c}.{d}]"),
        format!("[64:ff9b:1:7::{a}.{b}.{c}.{d}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001::{:x}:{:x}]", inverted >> 16, inverted & 0xffff),
    ]
}

#[test]
fn every_notation_of_a_forbidden_address_is_refused() {
    let mut count = 0;
    for address in FORBIDDEN {
        for host in [notations(*address), carriers(*address)].concat() {
            for url in [format!("https://{host}"), format!("http://{host}:8080/x")] {
                let refused = matches!(parse(&url), Err(ReceiverUrlError::Address(_)));
                assert!(refused, "{url}: {:?}", parse(&url));
                count += 1;
            }
        }
    }
    assert!(count >= 1000, "{count}");
}

#[test]
fn every_notation_of_a_neighbour_is_taken_and_names_one_receiver() {
    for address in ALLOWED {
        let [a, b, c, d] = address;
        for host in notations(*address) {
            let url = parse(&format!("https://{host}/")).unwrap();
            assert_eq!(url.literal(), Some(IpAddr::V4((*address).into())));
            assert_eq!(url.host(), format!("{a}.{b}.{c}.{d}"), "{host}");
        }
        for host in carriers(*address) {
            assert!(parse(&format!("https://{host}/")).is_err(), "{host}");
        }
    }
}

#[test]
fn an_allowed_network_allows_every_notation() {
    let rules = ReceiverRules {
        allow_networks: vec![Network::parse("10.0.0.0/8").unwrap()],
        ..rules()
    };
    for host in notations([10, 1, 2, 3]) {
        let url = ReceiverUrl::parse(&format!("https://{host}"), &rules);
        assert!(url.is_ok(), "{host}");
    }
    for host in carriers([10, 1, 2, 3]) {
        let url = ReceiverUrl::parse(&format!("https://{host}"), &rules);
        assert!(url.is_err(), "{host}");
    }
}
