//! The shipped estimator counts what the gateway itself counts: max(words × 4/3, UTF-8 bytes ÷ 4).

use fastrand::Rng;
use infergate::parts::Caller;
use infergate_core::AccountId;
use serde_json::{Value, json};

use super::fixtures::{loaded, model, shipped};

const CASES: usize = 20_000;

/// Building blocks of texts: words, scripts without spaces, emoji of several characters, code, and space
/// of many kinds.
const PIECES: [&str; 24] = [
    "word",
    "Internationalisierung",
    "naïve",
    "我们在测试",
    "こんにちは",
    "안녕하세요",
    "مرحبا",
    "🙂",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "fn main() {",
    "x[i]+=y*(z<<3);",
    "\"quoted\\n\"",
    "https://example.com/a?b=c",
    "data:image/png;base64,AAAA",
    "-",
    " ",
    "   ",
    "\n",
    "\t",
    "\r\n",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
];

fn text(rng: &mut Rng) -> String {
    let count = [0, 1, rng.usize(..6), rng.usize(..80)][rng.usize(..4)];
    let mut text = String::new();
    for _ in 0..count {
        text += PIECES[rng.usize(..PIECES.len())];
        if rng.bool() {
            text.push(' ');
        }
    }
    text
}

fn value(rng: &mut Rng) -> Value {
    match rng.usize(..8) {
        0 => Value::Null,
        1 => json!(rng.u32(..9)),
        2 => (0..rng.usize(..5)).map(|_| text(rng)).collect(),
        3 => (0..rng.usize(..5)).map(|_| rng.u32(..1 << 17)).collect(),
        4 => json!([{ "type": "text", "text": text(rng) }, { "type": "image_url" }]),
        _ => json!(text(rng)),
    }
}

fn input(rng: &mut Rng) -> Value {
    let message = json!({ "role": "user", "content": value(rng), "tool_calls": value(rng) });
    let keys = ["prompt", "negative_prompt", "text", "input", "input_text"];
    let mut body = json!({ "model": "m", keys[rng.usize(..keys.len())]: value(rng) });
    for (key, member) in [
        ("messages", json!([message, value(rng)])),
        ("tools", value(rng)),
        ("image", value(rng)),
    ] {
        if rng.bool() {
            body[key] = member;
        }
    }
    body
}

fn output(rng: &mut Rng) -> Value {
    match rng.usize(..8) {
        0 => json!({ "success": true, "result": { "response": value(rng) } }),
        1 => json!({ "output": value(rng) }),
        2 => json!({ "summary": text(rng), "image": text(rng) }),
        3 => json!({ "images": value(rng), "data": [{ "url": text(rng) }] }),
        4 => json!({ "choices": [
            { "message": { "content": value(rng), "reasoning_content": value(rng),
              "tool_calls": [{ "function": { "name": text(rng), "arguments": text(rng) } }] } },
            { "text": text(rng) },
        ] }),
        5 => json!([{ "generated_text": text(rng) }, { "text": value(rng) }]),
        _ => value(rng),
    }
}

/// A body as bytes, now and then of no JSON at all.
fn body(rng: &mut Rng, json: &Value) -> Vec<u8> {
    match rng.usize(..12) {
        0 => text(rng).into_bytes(),
        1 => Vec::new(),
        2 => {
            let text = json.to_string().into_bytes();
            text[..rng.usize(..=text.len())].to_vec()
        }
        3 => (0..rng.usize(..40)).map(|_| rng.u8(..)).collect(),
        _ => json.to_string().into_bytes(),
    }
}

#[test]
fn the_wasm_estimator_counts_what_the_built_in_one_counts() {
    let models = [
        model(json!({ "id": "native" })),
        model(json!({ "id": "wasm", "plugins": { "billing": "wasm-estimator" } })),
    ];
    let (_host, plugins) = loaded(&[shipped("estimator", "billing-estimator")], &models);
    let slots = models.each_ref().map(|model| plugins.billing(model));
    let account = AccountId::from("acme");
    let caller = Caller {
        account: &account,
        request_id: "r",
    };
    let mut rng = Rng::with_seed(9);
    let mut counted = 0;
    for case in 0..CASES {
        let (input, output) = (input(&mut rng), output(&mut rng));
        let bodies = [&input, &output].map(|json| body(&mut rng, json));
        let estimates = slots
            .each_ref()
            .map(|slot| slot.estimate(caller, &bodies[0], &bodies[1]));
        counted += estimates[0].len();
        let shown = bodies.each_ref().map(|body| String::from_utf8_lossy(body));
        assert_eq!(estimates[0], estimates[1], "case {case}: {shown:#?}");
    }
    assert!(
        counted > CASES,
        "{counted} counts: the bodies are of no use"
    );
    let state = &plugins.state()[0];
    assert!(
        state.failures.values().all(|count| *count == 0),
        "{state:#?}"
    );
    assert_eq!(state.calls, CASES as u64);
}

/// The formula itself, where it is easy to say: of one text on either side.
#[test]
fn a_text_has_four_thirds_of_its_words_or_a_quarter_of_its_bytes_in_tokens() {
    let models = [
        model(json!({ "id": "native" })),
        model(json!({ "id": "wasm", "plugins": { "billing": "wasm-estimator" } })),
    ];
    let (_host, plugins) = loaded(&[shipped("estimator", "billing-estimator")], &models);
    let account = AccountId::from("acme");
    let caller = Caller {
        account: &account,
        request_id: "r",
    };
    for (text, tokens) in [
        ("", 0.0),
        (" ", 0.0),
        ("a", 1.0),
        ("a b c d e f", 8.0),
        ("我们在测试文本", 5.0),
        ("👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 12.0),
        ("abcdefghijklmnop", 4.0),
        ("\u{3000}\u{a0} \t", 1.0),
    ] {
        let input = json!({ "prompt": text }).to_string().into_bytes();
        let output = json!({ "response": text }).to_string().into_bytes();
        let expected: Vec<(String, f64)> = ["input_tokens", "output_tokens"]
            .into_iter()
            .filter(|_| tokens > 0.0)
            .map(|name| (name.to_owned(), tokens))
            .collect();
        for model in &models {
            let printed = plugins.billing(model).estimate(caller, &input, &output);
            assert_eq!(printed, expected, "{text:?} by {}", model.id);
        }
    }
}
