//! The gateway's own count.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::billing::{TextCount, estimate};

fn count(name: &str, input: &Value, output: &[u8]) -> u64 {
    let all = estimate(input.to_string().as_bytes(), output);
    all.iter()
        .find(|(found, _)| found == name)
        .map_or(0, |(_, value)| *value as u64)
}

fn input(input: Value) -> u64 {
    count("input_tokens", &input, b"")
}

fn output(output: Value) -> (u64, u64) {
    let output = output.to_string();
    let of = |name| count(name, &json!({}), output.as_bytes());
    (of("output_tokens"), of("output_images"))
}

#[test]
fn input_tokens_are_the_larger_of_words_and_bytes_of_each_text_under_a_prompt_like_key() {
    assert_eq!(input(json!({"prompt": "one two three"})), 4);
    assert_eq!(
        input(json!({"prompt": "one two", "system_prompt": "one two"})),
        2 + 2
    );
    assert_eq!(
        input(json!({"negative_prompt": " a\n\tb\u{2003}c ", "n": 1})),
        4
    );
    assert_eq!(input(json!({"prompt": ["a b c", "d e f"]})), 8);
    assert_eq!(input(json!({"prompt": [1, 2, 3]})), 3);
    assert_eq!(input(json!({"prompt": [[1, 2], [3]]})), 3);
    assert_eq!(
        input(
            json!({"messages": [{"content": "a b c"}, {"content": [{"type": "text", "text": "a b c"}]}]})
        ),
        8
    );
    assert_eq!(input(json!({"text": ["a b c"], "pooling": "x y z"})), 4);
    assert_eq!(input(json!({"input_text": "a b c", "prompt": 7})), 4);
    assert_eq!(input(json!([])), 0);
    // 6,000 Chinese characters without a space are no single token.
    assert_eq!(input(json!({"prompt": "字".repeat(6000)})), 4500);
    assert_eq!(input(json!({"prompt": "x".repeat(12_000)})), 3000);
}

#[test]
fn tools_calls_and_images_are_part_of_the_input() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let asked = json!({"messages": [{"content": "a b c"}], "tools": tools});
    assert_eq!(input(asked), 4 + tools.to_string().len() as u64 / 4);
    assert_eq!(input(json!({"prompt": "a b c", "tools": null})), 4);
    let call = json!([{"id": "1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]);
    let called = json!({"messages": [{"content": null, "tool_calls": call}]});
    assert!(input(called) >= call.to_string().len() as u64 / 4);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let parts = json!([{"type": "text", "text": "a b c"}, image, image]);
    assert_eq!(
        input(json!({"messages": [{"content": parts}]})),
        4 + 2 * 1024
    );
    assert_eq!(input(json!({"prompt": "a b c", "image": [1, 2]})), 4 + 1024);
    for nothing in [json!(null), json!(""), json!([])] {
        assert_eq!(input(json!({"prompt": "a b c", "image": nothing})), 4);
    }
    // What another task works on is no text of a prompt.
    assert_eq!(input(json!({"image": "AAAA"})), 0);
}

#[test]
fn output_tokens_are_the_larger_of_words_and_bytes_of_a_text_or_of_a_list_taken_together() {
    assert_eq!(output(json!("a b c")), (4, 0));
    assert_eq!(output(json!("字字字字")), (3, 0));
    assert_eq!(output(json!(["a ", "b ", "c"])), (4, 0));
    assert_eq!(output(json!(["a", "b", "c"])), (1, 0));
    assert_eq!(
        output(json!({"result": {"response": "a b c"}, "success": true})),
        (4, 0)
    );
    assert_eq!(
        output(json!({"output": ["a", " b"], "status": "succeeded"})),
        (2, 0)
    );
    assert_eq!(
        output(json!({"choices": [{"message": {"content": "a b c"}}, {"text": "a b c"}]})),
        (8, 0)
    );
    assert_eq!(output(json!([{"generated_text": "a b c"}])), (4, 0));
    assert_eq!(output(json!({"response": null})), (0, 0));
    assert_eq!(output(json!([])), (0, 0));
    assert_eq!(output(json!({"shape": [1, 2], "data": [[1, 2]]})), (0, 0));
    assert_eq!(count("output_tokens", &json!({}), b"plain words here"), 4);
}

#[test]
fn reasoning_refusals_sounds_and_calls_are_output() {
    let of = |message: Value| output(json!({"choices": [{"message": message}]})).0;
    for name in ["content", "reasoning_content", "reasoning", "refusal"] {
        assert_eq!(of(json!({ name: "a b c" })), 4, "{name}");
    }
    let function = json!({"name": "weather", "arguments": "{\"city\":\"Oslo\"}"});
    assert_eq!(of(json!({ "tool_calls": [{"function": function}] })), 1 + 3);
    assert_eq!(of(json!({ "function_call": function })), 1 + 3);
    let sound = json!({"data": "A".repeat(32_000), "transcript": "a b c"});
    assert_eq!(of(json!({ "audio": sound })), 10 + 4);
}

#[test]
fn images_are_counted_when_they_look_like_some() {
    let file = "A".repeat(300);
    assert_eq!(output(json!({"image": "AAEC"})), (0, 1));
    assert_eq!(output(json!({"images": ["AAEC", "AAEC"]})), (0, 2));
    assert_eq!(
        output(json!(["https://x/1.png", "https://x/2.png"])),
        (0, 2)
    );
    assert_eq!(output(json!("data:image/png;base64,AA")), (0, 1));
    assert_eq!(output(json!(file)), (0, 1));
    assert_eq!(
        output(json!({"data": [{"b64_json": "AA"}, {"url": "u"}]})),
        (0, 2)
    );
    assert_eq!(output(json!({"image": ""})), (0, 0));
    for image in [
        &b"\x89PNG\r\n\x1a\nx"[..],
        b"\xff\xd8\xff\xe0",
        b"RIFF\0\0\0\0WEBPVP8 ",
    ] {
        assert_eq!(count("output_images", &json!({}), image), 1);
    }
    assert_eq!(
        count("output_images", &json!({}), b"RIFF\0\0\0\0WAVEfmt "),
        0
    );
}

proptest! {
    #[test]
    fn a_text_counted_in_pieces_has_the_tokens_of_the_whole(pieces in proptest::collection::vec("[ab字 \u{2003}\n]{0,6}", 0..12)) {
        let mut count = TextCount::default();
        for piece in &pieces {
            count.push(piece);
        }
        let whole = pieces.concat();
        let words = whole.split_whitespace().count() as u64;
        prop_assert_eq!(count.words(), words);
        prop_assert_eq!(count.tokens(), (words * 4 / 3).max(whole.len() as u64 / 4));
    }

    #[test]
    fn no_bodies_make_the_estimate_panic(input in proptest::collection::vec(any::<u8>(), 0..60), output in "[\\[\\]{}\":,a-c0-9 ]{0,60}") {
        let _ = estimate(&input, output.as_bytes());
        for (_, value) in estimate(output.as_bytes(), &input) {
            prop_assert!(value > 0.0 && value.fract() == 0.0);
        }
    }
}
