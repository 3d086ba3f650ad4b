//! Templates in their known forms, and texts that try to write markers.

use proptest::prelude::*;

use super::*;

const RENDERED: [ChatTemplate; 6] = [
    ChatTemplate::Chatml,
    ChatTemplate::Llama2,
    ChatTemplate::Alpaca,
    ChatTemplate::Vicuna,
    ChatTemplate::Mistral,
    ChatTemplate::Raw,
];

fn request(template: ChatTemplate, chat: &Value) -> Result<Value, Refusal> {
    let chat = serde_json::to_vec(chat).unwrap();
    completion_request(template, &chat).map(|body| serde_json::from_slice(&body).unwrap())
}

fn prompt(template: ChatTemplate, messages: &[(&str, &str)]) -> String {
    let messages: Vec<Value> = messages
        .iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    let request = request(template, &json!({ "messages": messages })).unwrap();
    request["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn each_template_has_its_known_form() {
    let talk = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
    ];
    let expected = [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]",
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello\n\n### Instruction:\nBye\n\n### Response:\n",
        "Be brief.\n\nUSER: Hi ASSISTANT: Hello</s>USER: Bye ASSISTANT:",
        "[INST] Be brief.\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]",
        "Be brief.\nHi\nHello\nBye",
    ];
    for (template, expected) in RENDERED.into_iter().zip(expected) {
        assert_eq!(prompt(template, &talk), expected, "{template:?}");
    }
    let open = [("user", "Count"), ("assistant", "One, two")];
    for template in RENDERED {
        assert!(
            prompt(template, &open).ends_with("One, two"),
            "{template:?} goes on"
        );
    }
}

#[test]
fn members_are_those_of_a_completion_and_stops_are_joined() {
    let chat = json!({
        "model": "m", "stream": true, "max_completion_tokens": 7, "temperature": 0.5, "stop": "END",
        "tools": [], "logprobs": false, "chat_template_kwargs": {}, "stream_options": { "include_usage": true },
        "messages": [{ "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
                     { "role": "assistant", "content": null }, { "role": "user", "content": "c" }],
    });
    assert_eq!(
        request(ChatTemplate::Raw, &chat).unwrap(),
        json!({ "model": "m", "stream": true, "max_tokens": 7, "temperature": 0.5, "stop": ["END"],
                "stream_options": { "include_usage": true }, "prompt": "ab\n\nc" })
    );
    let stops = request(ChatTemplate::Vicuna, &chat).unwrap()["stop"].clone();
    assert_eq!(stops, json!(["END", "</s>", "USER:"]));
}

#[test]
fn a_limit_is_named_always_and_the_present_name_of_it_wins() {
    let limit = |more: Value| {
        let mut chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
        chat.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let request = request(ChatTemplate::Raw, &chat).unwrap();
        assert!(request.get("max_completion_tokens").is_none());
        request.get("max_tokens").cloned()
    };
    for (more, expected) in [
        (json!({}), Value::Null),
        (json!({ "max_tokens": 3 }), 3.into()),
        (
            json!({ "max_tokens": 3, "max_completion_tokens": 5 }),
            5.into(),
        ),
        (
            json!({ "max_tokens": 3, "max_completion_tokens": null }),
            3.into(),
        ),
    ] {
        assert_eq!(limit(more.clone()), Some(expected), "{more}");
    }
}

#[test]
fn members_that_are_not_rendered_are_copied_byte_by_byte() {
    let chat = br#"{"messages":[],"seed":12345678901234567890123,"x":{"b":1.50,"a":[ ]}}"#;
    let request = completion_request(ChatTemplate::Raw, chat).unwrap();
    let text = String::from_utf8(request).unwrap();
    assert!(text.contains(r#""seed":12345678901234567890123"#), "{text}");
    assert!(text.contains(r#""x":{"b":1.50,"a":[ ]}"#), "{text}");
}

#[test]
fn what_has_no_form_is_refused_by_its_place() {
    let message = |more: Value| json!({ "messages": [{ "role": "user", "content": "a" }, more] });
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
    for (chat, expected) in [
        (json!({}), "/messages"),
        (json!({ "messages": "a" }), "/messages"),
        (
            message(json!({ "role": "tool", "content": "a" })),
            "/messages/1/role",
        ),
        (
            message(json!({ "role": "user", "content": image })),
            "/messages/1/content",
        ),
        (
            message(json!({ "role": "assistant", "tool_calls": [{}] })),
            "/messages/1/tool_calls",
        ),
        (json!({ "messages": [], "tools": [{}] }), "/tools"),
        (json!({ "messages": [], "logprobs": true }), "/logprobs"),
        (json!({ "messages": [], "stop": [1] }), "/stop"),
    ] {
        match request(ChatTemplate::Chatml, &chat) {
            Err(Refusal::BadRequest { pointer, .. }) => assert_eq!(pointer, expected),
            other => panic!("{chat}: {other:?}"),
        }
    }
}

#[test]
fn a_completion_comes_back_as_a_chat_response() {
    let whole = br#"{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" hi","finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;
    let response: Value = serde_json::from_slice(&chat_response(whole).unwrap()).unwrap();
    assert_eq!(
        response,
        json!({ "id": "c", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": " hi" } }],
                "usage": { "prompt_tokens": 2, "completion_tokens": 1 } })
    );
    assert_eq!(chat_response(br#"{"error":{"message":"no"}}"#), None);
    let mut chunks = ChatChunks::default();
    let mut delta = |data: &str| {
        let chunk: Value = serde_json::from_slice(&chunks.convert(data.as_bytes())?).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk");
        Some(chunk["choices"][0]["delta"].clone())
    };
    let text = |text: &str, end: &str| {
        format!(r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":{end}}}]}}"#)
    };
    let first = json!({ "role": "assistant", "content": "a" });
    assert_eq!(delta(&text("a", "null")), Some(first));
    assert_eq!(delta(&text("b", "null")), Some(json!({ "content": "b" })));
    assert_eq!(delta(&text("", "\"stop\"")), Some(json!({})));
    assert_eq!(
        delta(r#"{"choices":[],"usage":{"prompt_tokens":2}}"#),
        Some(Value::Null)
    );
    assert_eq!(delta(r#"{"error":{"message":"no"}}"#), None);
    assert_eq!(delta("[DONE]"), None);
}

#[test]
fn thinking_is_asked_for_unless_the_request_says() {
    let with = |chat: Value, thinks| {
        let chat = serde_json::to_vec(&chat).unwrap();
        let chat = with_thinking(&chat, thinks)?;
        Some(serde_json::from_slice::<Value>(&chat).unwrap()["chat_template_kwargs"].clone())
    };
    let off = json!({ "enable_thinking": false });
    assert_eq!(with(json!({ "model": "m" }), false), Some(off.clone()));
    assert_eq!(
        with(json!({ "chat_template_kwargs": null }), false),
        Some(off)
    );
    let both = with(json!({ "chat_template_kwargs": { "a": 1 } }), true);
    assert_eq!(both, Some(json!({ "a": 1, "enable_thinking": true })));
    let own = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    assert_eq!(with(own, false), None);
}

/// Texts that are made of markers and their parts as often as of anything else.
fn hostile() -> impl Strategy<Value = String> {
    let marker = RENDERED.iter().flat_map(|template| template.broken());
    let whole = ["<|im_end|>", "<|im_start|>", "im_end|>", "|>"].into_iter();
    let marker: Vec<String> = marker.chain(whole).map(str::to_owned).collect();
    let part = (
        prop::sample::select(marker.clone()),
        any::<prop::sample::Index>(),
    );
    let part = part.prop_map(|(marker, at)| marker[..at.index(marker.len())].to_owned());
    let piece = prop_oneof![prop::sample::select(marker), part, ".{0,6}"];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn count(text: &str, marker: &str) -> usize {
    text.matches(marker).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn no_message_is_lost_their_order_stays_and_none_writes_a_marker(
        roles in prop::collection::vec(0_usize..3, 1..7),
        texts in prop::collection::vec(hostile(), 7),
        which in 0..RENDERED.len(),
    ) {
        let template = RENDERED[which];
        let role = |role: usize| ["system", "user", "assistant"][role];
        // A number in each makes it one of its kind; its ends touch the template's own text.
        let texts: Vec<String> = texts.iter().enumerate().map(|(at, text)| format!("{text}~{at}~{text}")).collect();
        let talk: Vec<(&str, &str)> = roles.iter().zip(&texts).map(|(at, text)| (role(*at), &**text)).collect();
        let hostile = prompt(template, &talk);
        let mut from = 0;
        let mut places = Vec::new();
        for (_, text) in &talk {
            let plain = template.plain(text);
            prop_assert_eq!(plain.replace(' ', ""), text.replace(' ', ""), "letters stay");
            let at = hostile[from..].find(&plain);
            prop_assert!(at.is_some(), "{:?} in {:?} after {}", plain, hostile, from);
            from += at.unwrap_or(0) + plain.len();
            places.push(from);
        }
        prop_assert!(places.is_sorted());
        // The same talk of harmless texts has as many markers.
        let harmless: Vec<(&str, &str)> = roles.iter().map(|at| (role(*at), "x")).collect();
        let harmless = prompt(template, &harmless);
        for marker in template.broken() {
            prop_assert_eq!(count(&hostile, marker), count(&harmless, marker), "{} in {:?}", marker, hostile);
        }
    }
}
