//! Tests of forbidden addresses: ranges with their reasons, allowed networks, own listeners.

use super::*;

fn networks(texts: &[&str]) -> Vec<Network> {
    texts
        .iter()
        .map(|text| Network::parse(text).unwrap())
        .collect()
}

fn judge(rules: &ReceiverRules, address: &str, port: u16) -> Result<(), ForbiddenAddress> {
    rules.judge(address.parse().unwrap(), port)
}

#[test]
fn ranges_have_their_reasons() {
    use ForbiddenAddress::*;
    let cases: &[(&str, ForbiddenAddress)] = &[
        ("0.0.0.0", Unspecified),
        ("0.1.2.3", Unspecified),
        ("10.0.0.1", Private),
        ("172.16.0.1", Private),
        ("192.168.1.1", Private),
        ("100.64.0.1", Shared),
        ("127.0.0.1", Loopback),
        ("127.8.8.8", Loopback),
        ("169.254.1.1", LinkLocal),
        ("169.254.169.254", Metadata),
        ("169.254.170.2", Metadata),
        ("100.100.100.200", Metadata),
        ("168.63.129.16", Metadata),
        ("192.0.0.192", Metadata),
        ("192.0.0.8", Protocol),
        ("192.0.2.9", Documentation),
        ("198.51.100.9", Documentation),
        ("203.0.113.9", Documentation),
        ("192.88.99.2", Relay),
        ("198.18.0.1", Benchmarking),
        ("198.19.255.255", Benchmarking),
        ("224.0.0.251", Multicast),
        ("233.252.0.1", Multicast),
        ("240.0.0.1", Reserved),
        ("255.255.255.255", Broadcast),
        ("::", Unspecified),
        ("::1", Loopback),
        ("::2", Compatible),
        ("::8.8.8.8", Compatible),
        ("::127.0.0.1", Compatible),
        ("::ffff:0.0.0.0", Unspecified),
        ("::ffff:127.0.0.1", Loopback),
        ("::ffff:10.0.0.1", Private),
        ("::ffff:169.254.169.254", Metadata),
        ("::ffff:0:127.0.0.1", Reserved),
        ("64:ff9b::8.8.8.8", Nat64),
        ("64:ff9b::10.0.0.1", Nat64),
        ("64:ff9b:1::1", Nat64),
        ("64:ff9b:1:ffff::1", Nat64),
        ("64:ff9b:2::1", Reserved),
        ("100::1", Discard),
        ("100:0:0:1::1", Reserved),
        ("2001::1", Teredo),
        ("2001:0:ffff::", Teredo),
        ("2001:1::1", Protocol),
        ("2001:2::1", Benchmarking),
        ("2001:10::1", Orchid),
        ("2001:1f::1", Orchid),
        ("2001:20::1", Orchid),
        ("2001:2f:ffff::", Orchid),
        ("2001:30::1", Protocol),
        ("2001:1ff::1", Protocol),
        ("2001:db8::1", Documentation),
        ("3fff:fff::1", Documentation),
        ("2002:808:808::1", SixToFour),
        ("2002:7f00:1::1", SixToFour),
        ("fc00::1", Private),
        ("fd12:3456::1", Private),
        ("fdff:ffff::1", Private),
        ("fd00:ec2::254", Metadata),
        ("fd20:ce::254", Metadata),
        ("fe80::1", LinkLocal),
        ("febf::1", LinkLocal),
        ("fec0::1", SiteLocal),
        ("feff::1", SiteLocal),
        ("ff02::1", Multicast),
        ("ff0e::1", Multicast),
        ("fe00::1", Reserved),
        ("4000::1", Reserved),
        ("5f00::1", Reserved),
        ("8000::1", Reserved),
        ("200::1", Reserved),
    ];
    for (address, reason) in cases {
        let judged = judge(&ReceiverRules::default(), address, 443);
        assert_eq!(judged, Err(*reason), "{address}");
    }
}

#[test]
fn public_addresses_are_allowed() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "100.128.0.1",
        "172.32.0.1",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "2000::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7::1",
        "2001:db9::1",
        "2003::1",
        "2606:4700::1111",
        "3ffe::1",
        "3fff:1000::1",
    ] {
        assert_eq!(
            judge(&ReceiverRules::default(), address, 443),
            Ok(()),
            "{address}"
        );
    }
}

#[test]
fn an_allowed_network_overrides_its_range_only() {
    let rules = ReceiverRules {
        allow_networks: networks(&["10.1.0.0/16", "169.254.169.254", "fd00::/8", "::1"]),
        ..ReceiverRules::default()
    };
    for address in [
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "169.254.169.254",
        "fd00:ec2::254",
        "::1",
    ] {
        assert_eq!(judge(&rules, address, 443), Ok(()), "{address}");
    }
    for address in [
        "10.2.0.1",
        "169.254.169.253",
        "fc00::1",
        "127.0.0.1",
        "::10.1.2.3",
    ] {
        assert!(judge(&rules, address, 443).is_err(), "{address}");
    }
}

#[test]
fn an_address_within_an_allowed_form_is_judged_as_well() {
    let forms = [
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
        "::/96",
    ];
    let rules = ReceiverRules {
        allow_networks: networks(&forms),
        ..ReceiverRules::default()
    };
    for address in [
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "2002:808:808::1",
        "2001::f7f7:f7f7",
        "::8.8.8.8",
    ] {
        assert_eq!(judge(&rules, address, 443), Ok(()), "{address}");
    }
    for address in [
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::10.0.0.1",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::",
        "2001::80ff:fffe",
        "::127.0.0.1",
    ] {
        assert!(judge(&rules, address, 443).is_err(), "{address}");
    }
}

#[test]
fn nothing_allows_our_own_listeners() {
    let rules = ReceiverRules {
        allow_networks: networks(&["0.0.0.0/0", "::/0"]),
        own: vec![
            "10.0.0.1:8085".parse().unwrap(),
            "0.0.0.0:8080".parse().unwrap(),
            "127.0.0.1:9901".parse().unwrap(),
            "[2606:4700::1]:443".parse().unwrap(),
        ],
        own_addresses: vec!["198.41.0.4".parse().unwrap(), "10.0.0.1".parse().unwrap()],
        ..ReceiverRules::default()
    };
    for (address, port) in [
        ("10.0.0.1", 8085),
        ("::ffff:10.0.0.1", 8085),
        ("64:ff9b::10.0.0.1", 8085),
        ("::10.0.0.1", 8085),
        ("2002:a00:1::", 8085),
        ("198.41.0.4", 8080),
        ("10.0.0.1", 8080),
        ("127.0.0.1", 8080),
        ("127.9.9.9", 8080),
        ("::1", 8080),
        ("0.0.0.0", 8080),
        ("::", 8080),
        ("127.0.0.1", 9901),
        ("0.0.0.0", 9901),
        ("2606:4700::1", 443),
    ] {
        let judged = judge(&rules, address, port);
        assert_eq!(judged, Err(ForbiddenAddress::Own), "{address} {port}");
    }
    for (address, port) in [
        ("10.0.0.1", 443),
        ("10.0.0.2", 8085),
        ("8.8.8.8", 8080),
        ("127.0.0.2", 9901),
        ("127.0.0.1", 443),
        ("198.41.0.4", 443),
    ] {
        assert_eq!(judge(&rules, address, port), Ok(()), "{address} {port}");
    }
}
