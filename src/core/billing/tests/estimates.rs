//! The gateway's own count.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::billing::{WordCount, estimate, tokens_of_words};

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
fn input_tokens_are_words_times_four_thirds_of_each_text_under_a_prompt_like_key() {
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
    assert_eq!(
        input(
            json!({"messages": [{"content": "a b c"}, {"content": [{"type": "text", "text": "a b c"}, {"type": "image_url"}]}]})
        ),
        8
    );
    assert_eq!(input(json!({"text": ["a b c"], "pooling": "x y z"})), 4);
    assert_eq!(input(json!({"input_text": "a b c", "prompt": 7})), 4);
    assert_eq!(input(json!({"image": "AAAA"})), 0);
    assert_eq!(input(json!([])), 0);
}

#[test]
fn output_tokens_are_the_words_of_a_text_or_the_length_of_a_list() {
    assert_eq!(output(json!("a b c")), (4, 0));
    assert_eq!(output(json!(["a", "b", "c"])), (3, 0));
    assert_eq!(
        output(json!({"result": {"response": "a b c"}, "success": true})),
        (4, 0)
    );
    assert_eq!(
        output(json!({"output": ["a", "b"], "status": "succeeded"})),
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
    fn words_counted_in_pieces_are_the_words_of_the_whole(pieces in proptest::collection::vec("[ab \u{2003}\n]{0,6}", 0..12)) {
        let mut words = WordCount::default();
        for piece in &pieces {
            words.push(piece);
        }
        let whole = pieces.concat();
        prop_assert_eq!(words.words(), whole.split_whitespace().count() as u64);
        prop_assert_eq!(words.tokens(), tokens_of_words(words.words()));
    }

    #[test]
    fn no_bodies_make_the_estimate_panic(input in proptest::collection::vec(any::<u8>(), 0..60), output in "[\\[\\]{}\":,a-c0-9 ]{0,60}") {
        let _ = estimate(&input, output.as_bytes());
        for (_, value) in estimate(output.as_bytes(), &input) {
            prop_assert!(value > 0.0 && value.fract() == 0.0);
        }
    }
}
