//! Bodies as clients send them: members, parameters, refusals.

use proptest::prelude::*;

use super::*;

fn chat(body: &str) -> Result<Call, Refusal> {
    parse(
        ApiDialect::OpenAi,
        Operation::Chat,
        None,
        Bytes::copy_from_slice(body.as_bytes()),
    )
}

fn sent(body: &str, backend_model: &str) -> String {
    String::from_utf8(chat(body).unwrap().openai_body(backend_model).to_vec()).unwrap()
}

fn refusal_pointer(body: &str) -> String {
    match chat(body) {
        Err(Refusal::BadRequest { pointer, .. }) => pointer,
        other => panic!("{body}: {other:?}"),
    }
}

#[test]
fn parameters_are_filled_in_set_and_capped_where_they_stand() {
    let parameters: Parameters = serde_json::from_str(
        r#"{"default":{"temperature":0.5,"top_k":3},"force":{"user":"gw"},"max":{"max_tokens":100}}"#,
    )
    .unwrap();
    let with = |body: &str| {
        let call = with_parameters(chat(body).unwrap(), &parameters).unwrap();
        (
            call.max_tokens,
            String::from_utf8(call.body.to_vec()).unwrap(),
        )
    };
    assert_eq!(
        with(r#"{"model":"m","max_tokens":5000,"temperature":1,"top_k":null,"user":"me"}"#),
        (
            Some(100),
            r#"{"model":"m","max_tokens":100,"temperature":1,"top_k":3,"user":"gw"}"#.into()
        )
    );
    assert_eq!(
        with(r#"{"model":"m","max_tokens":7}"#),
        (
            Some(7),
            r#"{"user":"gw","temperature":0.5,"top_k":3,"model":"m","max_tokens":7}"#.into()
        )
    );
    let plain = chat(r#"{"model":"m"}"#).unwrap();
    let at = plain.body.as_ptr();
    let same = with_parameters(plain, &Parameters::default()).unwrap();
    assert_eq!(same.body.as_ptr(), at);
}

#[test]
fn a_json_object_that_is_passed_on_as_bytes_takes_parameters_and_other_bytes_stay() {
    let parameters: Parameters =
        serde_json::from_str(r#"{"force":{"replicate_weights":"w"}}"#).unwrap();
    let sent = |body: &'static str| {
        let call = Call::opaque("m".into(), "application/json".into(), body.into());
        with_parameters(call, &parameters).unwrap().body
    };
    assert_eq!(sent("{}"), r#"{"replicate_weights":"w"}"#);
    assert_eq!(
        sent(r#"{"a":1,"replicate_weights":"mine"}"#),
        r#"{"a":1,"replicate_weights":"w"}"#
    );
    for other in ["[1]", "{", "RIFF", ""] {
        assert_eq!(sent(other), other);
    }
}

#[test]
fn what_only_the_gateway_reads_is_still_known_after_parameters_were_set() {
    let parameters: Parameters = serde_json::from_str(r#"{"force":{"seed":1}}"#).unwrap();
    let call = chat(r#"{"x_priority":2,"model":"m","stream":true}"#).unwrap();
    let call = with_parameters(call, &parameters).unwrap();
    assert_eq!((call.priority, call.stream), (Some(2), true));
    let body = String::from_utf8(call.openai_body("b").to_vec()).unwrap();
    assert_eq!(
        body,
        r#"{"stream_options":{"include_usage":true},"seed":1,"model":"b","stream":true}"#
    );
}

#[test]
fn the_backend_sees_its_own_model_name_and_unknown_fields_pass() {
    assert_eq!(
        sent(
            r#"{"model": "a/b" , "messages":[{"model":"x"}],"zzz":{"k":[1]}}"#,
            "llama"
        ),
        r#"{"model": "llama" , "messages":[{"model":"x"}],"zzz":{"k":[1]}}"#
    );
}

#[test]
fn known_names_are_spelled_one_way() {
    for (body, pointer) in [
        (r#"{"model":"m","MODEL":"big"}"#, "/model"),
        (r#"{"model":"m","Stream":true}"#, "/stream"),
        (r#"{"model":"m","Max_Tokens":9}"#, "/max_tokens"),
        (r#"{"model":"m","\u017ftream":true}"#, "/stream"),
        (r#"{"model":"m","max_to\u212aens":9}"#, "/max_tokens"),
    ] {
        assert_eq!(refusal_pointer(body), pointer, "{body}");
    }
    // Below the top level names are the task's own.
    assert!(chat(r#"{"model":"m","x":{"MODEL":"big"}}"#).is_ok());
}

#[test]
fn a_bound_on_tokens_may_be_spelled_as_clients_do() {
    let bound = |tokens: &str| {
        chat(&format!(r#"{{"model":"m","max_tokens":{tokens}}}"#)).map(|call| call.max_tokens)
    };
    assert_eq!(bound("-1"), Ok(None));
    assert_eq!(bound("100.0"), Ok(Some(100)));
    assert_eq!(bound("1e2"), Ok(Some(100)));
    assert_eq!(bound("null"), Ok(None));
    for bad in ["-2", "1.5", "1e30", "\"7\"", "true"] {
        assert!(bound(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_body_is_nested_128_levels_at_most() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        chat(&format!(r#"{{"model":"m","x":{open}{close}}}"#))
    };
    assert!(nested(127).is_ok());
    assert!(matches!(
        nested(128),
        Err(Refusal::Rejected { status: 413, .. })
    ));
    // Neither many beside each other nor any in a string.
    let flat = format!(
        r#"{{"model":"m","x":[{}0],"y":"{}"}}"#,
        "[],".repeat(500),
        "[".repeat(500)
    );
    assert!(chat(&flat).is_ok());
}

#[test]
fn an_unchanged_body_is_not_copied() {
    let call = chat(r#"{"model":"m","messages":[]}"#).unwrap();
    assert_eq!(call.openai_body("m").as_ptr(), call.body.as_ptr());
}

#[test]
fn extension_fields_are_stripped_wherever_they_stand() {
    for body in [
        r#"{"x_priority":3,"model":"m"}"#,
        r#"{"x_priority":3,"x_client_id":"c","model":"m"}"#,
        r#"{"model":"m","x_priority":3,"x_client_id":"c"}"#,
        r#"{"x_client_id":"c","model":"m","x_priority":3}"#,
    ] {
        assert_eq!(sent(body, "m"), r#"{"model":"m"}"#, "{body}");
    }
    let call = chat(r#"{"x_client_id":"c","model":"m","x_priority":3}"#).unwrap();
    assert_eq!(call.priority, Some(3));
    assert_eq!(call.client_id.as_deref(), Some("c"));
}

#[test]
fn usage_is_asked_for_on_a_stream_whose_client_did_not() {
    let value = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    for body in [
        r#"{"model":"m","stream":true}"#,
        r#"{"x_priority":1,"model":"m","stream":true}"#,
        r#"{"model":"m","stream":true,"stream_options":null}"#,
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#,
    ] {
        let seen = value(sent(body, "m"));
        assert_eq!(seen["stream_options"]["include_usage"], true, "{body}");
        assert_eq!(seen["model"], "m");
    }
    let asked = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    assert!(chat(asked).unwrap().usage_requested);
    assert_eq!(sent(asked, "m"), asked);
}

#[test]
fn fields_we_act_on_are_checked_and_named() {
    assert_eq!(refusal_pointer("{"), "");
    assert_eq!(refusal_pointer("[]"), "");
    assert_eq!(refusal_pointer(r#"{"model":"m"} x"#), "");
    assert_eq!(refusal_pointer(r#"{"messages":[]}"#), "/model");
    assert_eq!(refusal_pointer(r#"{"model":1}"#), "/model");
    assert_eq!(refusal_pointer(r#"{"model":"a","model":"b"}"#), "/model");
    assert_eq!(
        refusal_pointer(r#"{"model":"m","stream":"yes"}"#),
        "/stream"
    );
    for options in ["[]", "[true]", "true"] {
        let body = format!(r#"{{"model":"m","stream_options":{options}}}"#);
        assert_eq!(refusal_pointer(&body), "/stream_options", "{options}");
    }
    assert_eq!(
        refusal_pointer(r#"{"model":"m","max_tokens":-2}"#),
        "/max_tokens"
    );
    assert_eq!(
        refusal_pointer(r#"{"model":"m","x_priority":10}"#),
        "/x_priority"
    );
    let long = format!(r#"{{"model":"m","x_client_id":"{}"}}"#, "c".repeat(65));
    assert_eq!(refusal_pointer(&long), "/x_client_id");
}

#[test]
fn a_key_written_with_escapes_is_the_same_key() {
    assert_eq!(chat(r#"{"mod\u0065l":"m"}"#).unwrap().model, "m");
    assert_eq!(
        refusal_pointer(r#"{"mod\u0065l":"m","model":"n"}"#),
        "/model"
    );
}

#[test]
fn reject_if_busy_is_read_and_stripped_but_foreign_options_pass() {
    let call = chat(r#"{"model":"m","options":{"rejectIfBusy":true}}"#).unwrap();
    assert!(call.reject_if_busy);
    assert_eq!(&call.openai_body("m")[..], br#"{"model":"m"}"#);
    let foreign = r#"{"model":"m","options":{"num_ctx":1}}"#;
    assert_eq!(sent(foreign, "m"), foreign);
}

#[test]
fn a_model_in_the_path_needs_none_in_the_body() {
    let body = Bytes::from_static(br#"{"prompt":"hi"}"#);
    let call = parse(
        ApiDialect::WorkersAi,
        Operation::Run,
        Some("@cf/x".into()),
        body,
    )
    .unwrap();
    assert_eq!(call.model, "@cf/x");
    assert!(!call.stream);
}

#[test]
fn the_adapter_is_read_where_the_body_names_one() {
    let lora = |body: &str| chat(body).unwrap().lora().map(|name| name.into_owned());
    assert_eq!(lora(r#"{"model":"m","lora":"a"}"#).as_deref(), Some("a"));
    assert_eq!(
        lora(r#"{"model":"m","lora":"a\"b"}"#).as_deref(),
        Some("a\"b")
    );
    assert_eq!(
        lora(r#"{"model":"m","lora":"a","lora":"b"}"#).as_deref(),
        Some("b")
    );
    assert_eq!(lora(r#"{"model":"m","lora":7}"#), None);
    assert_eq!(lora(r#"{"model":"m"}"#), None);
    let has = |body: &str| chat(body).unwrap().has_lora();
    assert!(has(r#"{"model":"m","lora":"a"}"#) && has(r#"{"model":"m","lora":7}"#));
    assert!(!has(r#"{"model":"m","lora":null}"#) && !has(r#"{"model":"m"}"#));
}

#[test]
fn a_member_gives_way_to_others_wherever_it_stands() {
    let with = |body: &str, added: &str| {
        let call = exchange_member(chat(body).unwrap(), "lora", added).unwrap();
        let text = String::from_utf8(call.openai_body("b").to_vec()).unwrap();
        (text, call.lora().map(|name| name.into_owned()))
    };
    for body in [
        r#"{"lora":"a","model":"m","n":1}"#,
        r#"{"model":"m","lora":"a","n":1}"#,
        r#"{"model":"m","n":1,"lora":"a"}"#,
        r#"{"lora":"a","model":"m","lora":"b","x_priority":1,"n":1}"#,
        r#"{"x_priority":1,"model":"m","l\u006fra":"a","n":1,"lora":"a"}"#,
    ] {
        let gone = (r#"{"model":"b","n":1}"#.to_owned(), None);
        assert_eq!(with(body, ""), gone, "{body}");
        let exchanged = (
            r#"{"lora":"c","x":{},"model":"b","n":1}"#.to_owned(),
            Some("c".to_owned()),
        );
        assert_eq!(with(body, r#""lora":"c","x":{}"#), exchanged, "{body}");
    }
    let payload = chat(r#"{"model":"m"}"#).unwrap();
    let payload = |body: &'static str| {
        let call = payload
            .clone()
            .with_payload(Bytes::from_static(body.as_bytes()), None);
        exchange_member(call, "lora", r#""lora":"c""#).unwrap().body
    };
    assert_eq!(payload(r#"{"lora":"a"}"#), r#"{"lora":"c"}"#);
    assert_eq!(payload(r#"{ }"#), r#"{"lora":"c" }"#);
    assert_eq!(payload(r#"["lora"]"#), r#"["lora"]"#);
}

#[test]
fn a_body_that_was_changed_is_read_again_and_keeps_what_was_said_before() {
    let call = chat(r#"{"model":"m","x_priority":1,"x_client_id":"c","n":1}"#).unwrap();
    assert_eq!(&call.stripped_body()[..], br#"{"model":"m","n":1}"#);
    let changed = Bytes::from_static(br#"{"model":"m","n":2,"max_tokens":5}"#);
    let again = reparse(call, changed).unwrap();
    assert_eq!(
        (again.priority, again.client_id.as_deref()),
        (Some(1), Some("c"))
    );
    assert_eq!(again.max_tokens, Some(5));
    let sent = again.openai_body("b");
    assert_eq!(&sent[..], br#"{"model":"b","n":2,"max_tokens":5}"#);
}

#[test]
fn the_end_of_a_string_is_found_from_any_of_its_bytes() {
    for length in [0, 1, 7, 15, 63, 64, 65, 130, 300] {
        for escape in ["", "\\\"", "\\\\", "\\n", "\\u00e9", "é", "\\\\\\\""] {
            let inner = format!(
                "{}{escape}{}{escape}",
                "a".repeat(length),
                "b".repeat(length / 2)
            );
            let text = format!("{{\"x\":\"{inner}\",\"y\":\"z\"}}");
            let begin = 6;
            let end = begin + inner.len();
            assert_eq!(string_end(text.as_bytes(), begin), Some(end), "{text}");
            let later = begin + length;
            assert_eq!(string_end(text.as_bytes(), later), Some(end), "{text}");
        }
    }
    assert_eq!(string_end(b"\"never ends", 1), None);
    assert_eq!(string_end(b"\"the last byte\"", 1), Some(14));
}

proptest! {
    #[test]
    fn the_end_of_a_string_is_the_first_quote_that_is_not_escaped(
        inner in proptest::collection::vec(prop::sample::select(&b"\\\\\"ab"[..]), 0..400),
        at in 0_usize..80,
    ) {
        let mut end = None;
        let mut is_escaped = false;
        for (offset, byte) in inner.iter().enumerate().skip(at) {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    end = Some(offset);
                    break;
                }
                _ => {}
            }
        }
        prop_assert_eq!(string_end(&inner, at), end);
    }
}
