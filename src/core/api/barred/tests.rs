//! Names in each place of a request from which a server would take them.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::api::call::ApiDialect;
use crate::api::dialect::{Dialect, RequestBody};
use crate::api::{body, open_inference};

const TRITON: BarredNames = BarredNames {
    names: &["lora_name", "lora_config"],
    text: Some("sampling_parameters"),
};
const PLAIN: BarredNames = BarredNames::only(&["lora_path"]);

fn open_inference(operation: Operation, json_bytes: Option<usize>, body: &[u8]) -> Call {
    let json_bytes = json_bytes.map(|bytes| bytes.to_string());
    open_inference::OpenInference
        .parse(RequestBody {
            operation,
            path_model: Some("m".into()),
            task: None,
            content_type: None,
            path: "/v2/models/m/infer",
            json_bytes: json_bytes.as_deref(),
            body: Bytes::copy_from_slice(body),
            length: None,
        })
        .unwrap()
}

fn infer(body: &str) -> Call {
    open_inference(Operation::Infer, None, body.as_bytes())
}

fn generate(body: &str) -> Call {
    open_inference(Operation::Generate, None, body.as_bytes())
}

fn run(text: &str) -> Call {
    let body = Bytes::copy_from_slice(text.as_bytes());
    body::parse(
        ApiDialect::WorkersAi,
        Operation::Run,
        Some("m".into()),
        body,
    )
    .unwrap()
}

fn name(name: &'static str, pointer: &str) -> Option<Barred> {
    Some(BarredFault::Name(name).at(pointer.into()))
}

fn unreadable(pointer: &str) -> Option<Barred> {
    Some(BarredFault::Unreadable.at(pointer.into()))
}

/// An input of texts in JSON.
fn texts(name: &str, data: &Value) -> Value {
    json!({ "name": name, "shape": [1], "datatype": "BYTES", "data": data })
}

/// A request with tensors in binary, each a name and its bytes.
fn binary(inputs: &[(&str, &[u8])]) -> Call {
    let heads = inputs.iter().map(|(name, bytes)| {
        json!({ "name": name, "shape": [1], "datatype": "BYTES", "parameters": { "binary_data_size": bytes.len() } })
    });
    let json = json!({ "inputs": heads.collect::<Vec<_>>() }).to_string();
    let tail = inputs.iter().flat_map(|(_, bytes)| bytes.iter().copied());
    let body: Vec<u8> = json.bytes().chain(tail).collect();
    open_inference(Operation::Infer, Some(json.len()), &body)
}

fn element(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&length, text.as_bytes()].concat()
}

#[test]
fn members_are_found_by_any_spelling_of_their_names() {
    let found = |body: &str| PLAIN.find(&run(body));
    assert_eq!(found(r#"{"a":"lora_path"}"#), None);
    assert_eq!(found(r#"{"a":{"lora_path":1}}"#), None);
    let barred = name("lora_path", "/lora_path");
    assert_eq!(found(r#"{"lora_path":"a"}"#), barred);
    assert_eq!(found(r#"{"lora_path":"a","lora_path":null}"#), barred);
    assert_eq!(found(r#"{"lora_path":null}"#), None);
    assert_eq!(found(r#"{"lora\u005fpath":"a"}"#), barred);
    assert_eq!(found(r#"{"sampling_parameters":"{"}"#), None);
    // U+0000 ends a name for servers in C.
    assert_eq!(found(r#"{"lora_path\u0000":"a"}"#), unreadable(""));
    let none = BarredNames::only(&[]);
    assert_eq!(none.find(&run(r#"{"lora_path":1}"#)), None);
}

#[test]
fn a_finetune_is_named_once_and_where_it_is_read() {
    let none = BarredNames::only(&[]);
    for body in [
        r#"{"lora":"a","lora":null}"#,
        r#"{"lora":null,"\u006cora":"a"}"#,
    ] {
        let repeated = BarredFault::Repeated.at("/lora".into());
        assert_eq!(none.find(&run(body)), Some(repeated), "{body}");
    }
    assert_eq!(none.find(&run(r#"{"lora":"a"}"#)), None);
    let bytes = |body: &'static str| {
        let body = Bytes::from_static(body.as_bytes());
        TRITON.find(&Call::opaque("m".into(), "image/png".into(), body))
    };
    assert_eq!(
        bytes(r#"{"image":"AAAA","lora":"a"}"#),
        name("lora", "/lora")
    );
    assert_eq!(
        bytes(r#" {"lora_name":"a"}"#),
        name("lora_name", "/lora_name")
    );
    for body in [
        r#"{"image":"AAAA","lora":null}"#,
        "{ no JSON",
        "\u{89}PNG",
        "",
    ] {
        assert_eq!(bytes(body), None, "{body}");
    }
}

#[test]
fn inputs_are_found_by_each_of_their_names() {
    for inputs in [
        r#"{"name":"lora_name","shape":[1],"datatype":"BYTES","data":["a"]}"#,
        r#"{"name":"x","name":"lora_name","shape":[1],"datatype":"BYTES","data":["a"]}"#,
        r#"{"name":"lora_name","name":"lora_name","shape":[1],"datatype":"BYTES","data":["a"]}"#,
        r#"{"name":7,"shape":[1]},{"name":"lora_name","shape":[1]}"#,
        r#"{"n\u0061me":"lora_name","shape":[1]}"#,
    ] {
        let call = infer(&format!(r#"{{"inputs":[{inputs}]}}"#));
        let found = TRITON.find(&call).unwrap();
        assert_eq!(found.fault, BarredFault::Name("lora_name"), "{inputs}");
        assert!(found.pointer.starts_with("/inputs/"), "{inputs}");
    }
    // What C reads as such a name, and a name that cannot be read here.
    for inputs in [r#""lora_name\u0000""#, r#""lora_name\u0000\udc00""#] {
        let call = infer(&format!(
            r#"{{"inputs":[{{"name":{inputs},"shape":[1]}}]}}"#
        ));
        assert_eq!(TRITON.find(&call), unreadable("/inputs/0"), "{inputs}");
    }
    let body = json!({
        "inputs": [texts("lora", &json!(["lora_name"]))], "outputs": [{ "name": "lora_name" }],
    });
    assert_eq!(TRITON.find(&infer(&body.to_string())), None);
}

#[test]
fn parameters_of_a_request_are_found() {
    let parameters = r#""parameters":{"a":1,"lora_name":"x"}"#;
    let barred = name("lora_name", "/parameters/lora_name");
    let body = format!(r#"{{"inputs":[],{parameters}}}"#);
    assert_eq!(TRITON.find(&infer(&body)), barred);
    let body = format!(r#"{{"text_input":"a",{parameters}}}"#);
    assert_eq!(TRITON.find(&generate(&body)), barred);
    assert_eq!(
        TRITON.find(&generate(r#"{"lora_name":"x"}"#)),
        name("lora_name", "/lora_name")
    );
    // Inputs may stand in the parameters, and readers that take more than JSON read on.
    let text = r#"{"parameters":{"sampling_parameters":"{\"lora_name\":\"x\"}"}}"#;
    let barred = name("lora_name", "/parameters/sampling_parameters");
    assert_eq!(TRITON.find(&generate(text)), barred);
    let text = r#"{"parameters":{"\udc00":1,"lora_name":"x"}}"#;
    assert_eq!(TRITON.find(&generate(text)), unreadable("/parameters"));
    // Of another form they are the server's to refuse, and no parameters in the input of a task.
    assert_eq!(
        TRITON.find(&generate(r#"{"parameters":"lora_name"}"#)),
        None
    );
    assert_eq!(TRITON.find(&run(&format!("{{{parameters}}}"))), None);
}

#[test]
fn names_in_a_text_of_parameters_are_found_wherever_it_stands() {
    let within = r#"{"temperature":0,"lora\u005fname":"x"}"#;
    let plain = r#"{"temperature":0,"stop":["lora_name"],"a":{"lora_name":1}}"#;
    let member = |text: &str| json!({ "text_input": "a", "sampling_parameters": text }).to_string();
    let barred = name("lora_name", "/sampling_parameters");
    for call in [generate(&member(within)), run(&member(within))] {
        assert_eq!(TRITON.find(&call), barred);
    }
    assert_eq!(
        TRITON.find(&run(&format!(r#"{{"sampling_parameters":{within}}}"#))),
        barred
    );
    // A second member of the name.
    let twice = format!(
        r#"{{"sampling_parameters":{},"sampling_parameters":"{{}}"}}"#,
        json!(within)
    );
    assert_eq!(TRITON.find(&generate(&twice)), barred);
    for call in [generate(&member(plain)), run(&member(plain))] {
        assert_eq!(TRITON.find(&call), None);
    }

    let tensor = |data: Value| {
        let inputs = [
            texts("x", &json!(["a"])),
            texts("sampling_parameters", &data),
        ];
        TRITON.find(&infer(&json!({ "inputs": inputs }).to_string()))
    };
    assert_eq!(tensor(json!([plain])), None);
    for data in [json!([within]), json!([[plain], [within]]), json!(within)] {
        assert_eq!(tensor(data), name("lora_name", "/inputs/1"));
    }

    let (long, barred) = (element(&"{}".repeat(100)), name("lora_name", "/inputs/1"));
    let plain = ("sampling_parameters", &*element(plain));
    assert_eq!(TRITON.find(&binary(&[("x", &long), plain])), None);
    assert_eq!(
        TRITON.find(&binary(&[("x", &element(within)), plain])),
        None
    );
    let both = [plain.1, &element(within)].concat();
    let named = ("sampling_parameters", &*both);
    assert_eq!(
        TRITON.find(&binary(&[("x", &long), named, ("y", &long)])),
        barred
    );
}

#[test]
fn a_text_that_cannot_be_read_is_barred() {
    // Python's reader takes NaN, and would take the name behind it.
    for text in [
        r#"{"a":NaN,"lora_name":"x"}"#,
        "[]",
        "",
        "{",
        r#"{} {"lora_name":"x"}"#,
    ] {
        let body = json!({ "sampling_parameters": text }).to_string();
        assert_eq!(
            TRITON.find(&generate(&body)),
            unreadable("/sampling_parameters"),
            "{text}"
        );
        let inputs = json!({ "inputs": [texts("sampling_parameters", &json!([text]))] });
        assert_eq!(
            TRITON.find(&infer(&inputs.to_string())),
            unreadable("/inputs/0"),
            "{text}"
        );
        let inputs = binary(&[("sampling_parameters", &element(text))]);
        assert_eq!(TRITON.find(&inputs), unreadable("/inputs/0"), "{text}");
    }
    let deep = (0..20).fold(json!("{}"), |inner, _| json!([inner]));
    for data in [json!([7]), json!({}), deep] {
        let inputs = json!({ "inputs": [texts("sampling_parameters", &data)] });
        assert_eq!(
            TRITON.find(&infer(&inputs.to_string())),
            unreadable("/inputs/0"),
            "{data}"
        );
    }
    for bytes in [&b"\x05\0\0\0{}"[..], b"\x02\0\0", b"\xff\xff\xff\xff{}"] {
        let call = binary(&[("sampling_parameters", bytes)]);
        assert_eq!(TRITON.find(&call), unreadable("/inputs/0"), "{bytes:?}");
    }
    let absent = json!({ "sampling_parameters": null }).to_string();
    assert_eq!(TRITON.find(&generate(&absent)), None);
}
