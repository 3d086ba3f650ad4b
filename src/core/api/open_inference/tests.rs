//! Requests, answers and tasks' payloads as they pass.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Refusal;
use crate::api::call::{ApiDialect, Call, Operation};
use crate::api::dialect::{Dialect, RequestBody};
use crate::api::dialects::route;
use crate::api::route::RouteTarget;
use crate::model::Task;
use crate::task::BuiltinTask;

const PATH: &str = "/v2/models/m/infer";

fn read(path: &str, json_bytes: Option<&str>, body: &[u8]) -> Result<Call, Refusal> {
    OpenInference.parse(RequestBody {
        operation: Operation::Infer,
        path_model: Some("m".into()),
        task: None,
        content_type: None,
        path,
        json_bytes,
        body: Bytes::copy_from_slice(body),
        length: None,
    })
}

fn call_of(body: &Value) -> Call {
    read(PATH, None, body.to_string().as_bytes()).unwrap()
}

fn fault(body: &Value) -> (String, String) {
    match read(PATH, None, body.to_string().as_bytes()) {
        Err(Refusal::BadRequest { pointer, message }) => (pointer, message),
        other => panic!("{other:?}"),
    }
}

fn input(name: &str, parameters: Value) -> Value {
    json!({ "name": name, "shape": [1], "datatype": "FP32", "parameters": parameters })
}

fn target(method: &'static str, path: &'static str) -> RouteTarget<'static> {
    let found = route(method, path);
    assert_eq!(found.dialect, ApiDialect::OpenInference, "{path}");
    found.target
}

#[test]
fn a_model_stands_in_the_path_with_its_version_or_without() {
    let call = |model: &str| RouteTarget::Call(Operation::Infer, Some(model.to_owned().into()));
    assert_eq!(target("POST", PATH), call("m"));
    for path in [
        "/v2/models/@cf/a/b/infer",
        "/v2/models/%40cf%2Fa%2Fb/versions/3/infer?x=1",
    ] {
        assert_eq!(target("POST", path), call("@cf/a/b"), "{path}");
    }
    let page = |version: Option<&str>, page| {
        let named = VersionedModel {
            model: "m".into(),
            version: version.map(str::to_owned),
        };
        RouteTarget::OpenInference(Box::new(OpenInferenceRoute::Model(named, page)))
    };
    assert_eq!(
        target("GET", "/v2/models/m"),
        page(None, ModelPage::Metadata)
    );
    assert_eq!(
        target("GET", "/v2/models/m/"),
        page(None, ModelPage::Metadata)
    );
    let versioned = "/v2/models/m/versions/1/config";
    assert_eq!(target("GET", versioned), page(Some("1"), ModelPage::Config));
    assert_eq!(
        target("GET", "/v2/models/m/stats"),
        page(None, ModelPage::Stats)
    );
    assert_eq!(
        target("GET", "/v2/models/m/ready"),
        page(None, ModelPage::Ready)
    );
}

#[test]
fn what_is_the_operators_is_refused_and_the_rest_is_unknown() {
    for path in [
        "/v2/repository/models/m/load",
        "/v2/repository/models/a/b/unload",
    ] {
        let refused = target("POST", path);
        assert!(
            matches!(
                &refused,
                RouteTarget::Refused(Refusal::Rejected { status: 403, .. })
            ),
            "{refused:?}"
        );
    }
    for (method, path) in [
        ("POST", "/v2/systemsharedmemory/region/a/register"),
        ("GET", "/v2/logging"),
        ("GET", "/v2/models/m/infer"),
        ("POST", "/v2/models//infer"),
        ("POST", "/v2/models/m/versions/../infer"),
        ("POST", "/v2/models/m/versions/a%2Fb/infer"),
        ("POST", "/v2/models/m/versions//infer"),
        ("DELETE", "/v2/models/m"),
    ] {
        let found = target(method, path);
        match found {
            RouteTarget::Unknown | RouteTarget::OpenInference(_) if method == "GET" => {}
            RouteTarget::Unknown => {}
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn a_request_that_names_no_output_is_sent_as_it_came() {
    let body =
        json!({ "id": "7", "inputs": [input("x", json!({}))], "parameters": { "priority": 1 } });
    let call = call_of(&body);
    assert_eq!(call.body, body.to_string());
    assert_eq!(call.content_type.as_deref(), Some("application/json"));
    assert_eq!(call.tensors.as_deref(), Some(&TensorRequest::default()));
    let call = read(
        "/v2/models/m/versions/2/infer?x",
        None,
        body.to_string().as_bytes(),
    );
    assert_eq!(call.unwrap().tensors.unwrap().version.as_deref(), Some("2"));
}

#[test]
fn all_outputs_are_asked_for_where_some_are_named() {
    let inputs = json!([input("x", json!({}))]);
    let json_form = call_of(&json!({ "outputs": [{ "name": "y" }], "inputs": inputs }));
    let sent: Value = serde_json::from_slice(&json_form.body).unwrap();
    assert_eq!(sent, json!({ "inputs": inputs }));
    assert_eq!(json_form.tensors.unwrap().outputs, ["y"]);
    let binary = call_of(&json!({
        "inputs": inputs, "parameters": { "timeout": 5, "binary_data_output": false },
        "outputs": [{ "name": "y" }, { "name": "z", "parameters": { "binary_data": true } }],
    }));
    let sent: Value = serde_json::from_slice(&binary.body).unwrap();
    let parameters = json!({ "timeout": 5, "binary_data_output": true });
    assert_eq!(sent, json!({ "inputs": inputs, "parameters": parameters }));
    assert_eq!(binary.tensors.unwrap().outputs, ["y", "z"]);
    let all = call_of(&json!({
        "inputs": inputs, "parameters": { "binary_data_output": true }, "outputs": [{ "name": "y" }],
    }));
    let sent: Value = serde_json::from_slice(&all.body).unwrap();
    assert_eq!(sent["parameters"], json!({ "binary_data_output": true }));
}

#[test]
fn the_length_of_json_follows_its_edit_and_tensors_stay() {
    let json = json!({
        "inputs": [input("x", json!({ "binary_data_size": 4 }))],
        "outputs": [{ "name": "y", "parameters": { "binary_data": true } }],
    })
    .to_string();
    let body = [json.as_bytes(), b"\xff\0{}"].concat();
    let call = read(PATH, Some(&json.len().to_string()), &body).unwrap();
    let length = call.tensors.as_ref().unwrap().json_bytes.unwrap();
    assert!(serde_json::from_slice::<Value>(&call.body[..length]).is_ok());
    assert_eq!(&call.body[length..], b"\xff\0{}");
    assert_eq!(
        call.content_type.as_deref(),
        Some("application/octet-stream")
    );
}

#[test]
fn what_cannot_pass_is_named_by_its_place() {
    let inputs = json!([input("x", json!({}))]);
    let shared = json!([input("x", json!({ "shared_memory_region": "r" }))]);
    let classes = json!([{ "name": "y", "parameters": { "classification": 2 } }]);
    for (body, place) in [
        (json!({}), "/inputs"),
        (json!({ "inputs": {} }), "/inputs"),
        (json!({ "inputs": [1] }), "/inputs/0"),
        (
            json!({ "inputs": shared }),
            "/inputs/0/parameters/shared_memory_region",
        ),
        (json!({ "inputs": inputs, "outputs": 1 }), "/outputs"),
        (json!({ "inputs": inputs, "outputs": [{}] }), "/outputs/0"),
        (
            json!({ "inputs": inputs, "outputs": classes }),
            "/outputs/0/parameters/classification",
        ),
    ] {
        assert_eq!(fault(&body).0, place, "{body}");
    }
    let body = json!({ "inputs": [input("x", json!({ "binary_data_size": 5 }))] }).to_string();
    for (length, tail) in [
        ("9999", &b""[..]),
        ("x", b""),
        ("-1", b""),
        (&body.len().to_string(), b"1234"),
    ] {
        let whole = [body.as_bytes(), tail].concat();
        assert!(read(PATH, Some(length), &whole).is_err(), "{length}");
    }
    assert!(fault_of_bytes(b"\x1f\x8b\x08").contains("compressed"));
}

fn fault_of_bytes(body: &[u8]) -> String {
    match read(PATH, None, body) {
        Err(Refusal::BadRequest { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

fn edited(answer: &Value, named: &[&str]) -> (Value, AnswerEdit) {
    let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
    let edit = edit_answer(answer.to_string().as_bytes(), "asked", &named).unwrap();
    (serde_json::from_slice(&edit.json).unwrap(), edit)
}

#[test]
fn costs_of_every_shape_are_summed_and_taken_out() {
    let output = |name: &str, shape: Value, data: Value| json!({ "name": name, "datatype": "INT32", "shape": shape, "data": data });
    let answer = json!({ "model_name": "served", "model_version": "1", "outputs": [
        output("COST_METRIC_input_tokens", json!([]), json!([3])),
        output("y", json!([2]), json!([1, 2])),
        output("COST_METRIC_output_tokens", json!([3]), json!([1, 2, 3])),
        output("COST_METRIC_steps", json!([2, 1]), json!([[0.5], [1.25]])),
        output("COST_METRIC_steps", json!([]), json!(0.25)),
        output("COST_METRIC_bad", json!([1]), json!([-1])),
        output("COST_METRIC_text", json!([1]), json!(["a"])),
        output("COST_METRIC_neurons", json!([1]), json!([2.5])),
    ] });
    let (client, edit) = edited(&answer, &[]);
    assert_eq!(
        client,
        json!({ "model_name": "asked", "model_version": "1",
                "outputs": [output("y", json!([2]), json!([1, 2]))] })
    );
    let costs: Vec<(&str, f64)> = edit
        .costs
        .iter()
        .map(|(name, sum)| (name.as_str(), *sum))
        .collect();
    let expected = [
        ("input_tokens", 3.0),
        ("output_tokens", 6.0),
        ("steps", 2.0),
        ("neurons", 2.5),
    ];
    assert_eq!(costs, expected);
    assert!(edit.spans.is_empty());
}

#[test]
fn outputs_that_were_not_named_are_taken_out() {
    let output = |name: &str, bytes: u64| json!({ "name": name, "datatype": "FP32", "shape": [1], "parameters": { "binary_data_size": bytes } });
    let answer = json!({ "model_name": "m", "outputs": [output("y", 4), output("COST_METRIC_a", 4), output("z", 8)] });
    let (client, edit) = edited(&answer, &["z", "COST_METRIC_a"]);
    assert_eq!(client["outputs"], json!([output("z", 8)]));
    let spans: Vec<_> = edit
        .spans
        .iter()
        .map(|span| (span.bytes, &span.purpose))
        .collect();
    assert_eq!((spans[0].0, spans[0].1), (4, &TensorUse::Drop));
    assert!(matches!(spans[1], (4, TensorUse::Cost(_))));
    assert_eq!((spans[2].0, spans[2].1), (8, &TensorUse::Pass));
}

#[test]
fn an_answer_of_another_form_is_none() {
    for answer in [
        "",
        "[]",
        "{}",
        "null",
        r#"{"error":"x"}"#,
        r#"{"outputs":[],"error":"x"}"#,
        r#"{"outputs":{}}"#,
        r#"{"outputs":[1]}"#,
        r#"{"outputs":[{}]}"#,
        r#"{"outputs":[],"outputs":[]}"#,
        r#"{"outputs":[{"name":"y","parameters":{"binary_data_size":-1}}]}"#,
        r#"{"outputs":[{"name":"y","parameters":{"binary_data_size":1,"binary_data_size":1}}]}"#,
    ] {
        assert!(
            edit_answer(answer.as_bytes(), "m", &[]).is_err(),
            "{answer}"
        );
    }
}

fn sum(datatype: &str, bytes: &[u8]) -> Option<f64> {
    let mut costs = ReportedCosts::default();
    let mut sum = CostSum::new("a", datatype);
    // In pieces of every size, as they come from a connection.
    for piece in bytes.chunks(3) {
        sum.push(piece);
    }
    sum.finish(&mut costs);
    costs.get("a")
}

#[test]
fn numbers_of_every_datatype_are_summed() {
    assert_eq!(sum("BOOL", &[1, 0, 1]), Some(2.0));
    assert_eq!(sum("UINT8", &[200, 100]), Some(300.0));
    assert_eq!(sum("INT8", &[5, 0xff]), Some(4.0));
    assert_eq!(sum("INT16", &[0, 1, 0xff, 0xff]), Some(255.0));
    assert_eq!(sum("UINT16", &[0, 1, 1, 0]), Some(257.0));
    assert_eq!(
        sum(
            "INT32",
            &[7_i32.to_le_bytes(), 8_i32.to_le_bytes()].concat()
        ),
        Some(15.0)
    );
    assert_eq!(
        sum("UINT32", &u32::MAX.to_le_bytes()),
        Some(4_294_967_295.0)
    );
    assert_eq!(
        sum(
            "INT64",
            &[1_i64.to_le_bytes(), 2_i64.to_le_bytes()].concat()
        ),
        Some(3.0)
    );
    assert_eq!(sum("UINT64", &9_u64.to_le_bytes()), Some(9.0));
    assert_eq!(
        sum(
            "FP32",
            &[0.5_f32.to_le_bytes(), 1.5_f32.to_le_bytes()].concat()
        ),
        Some(2.0)
    );
    assert_eq!(sum("FP64", &0.1_f64.to_le_bytes()), Some(0.1));
    // 1.5, 2^-24 and 65504 in half precision; 1.0 and 3.0 in bfloat16.
    assert_eq!(sum("FP16", &[0, 0x3e]), Some(1.5));
    assert_eq!(sum("FP16", &[1, 0]), Some(2_f64.powi(-24)));
    assert_eq!(sum("FP16", &[0xff, 0x7b]), Some(65504.0));
    assert_eq!(sum("BF16", &[0x80, 0x3f, 0x40, 0x40]), Some(4.0));
    for (datatype, bytes) in [
        ("BYTES", &[1, 0, 0, 0, b'1'][..]),
        ("INT32", &[1, 0, 0]),
        ("INT32", &[0xff; 4]),
        ("FP16", &[0, 0x7c]),
        ("FP64", &[0xff; 8]),
        ("what", &[1]),
    ] {
        assert_eq!(sum(datatype, bytes), None, "{datatype}");
    }
}

#[test]
fn members_of_a_payload_are_inputs_with_a_row_for_each_text() {
    let payload = json!({
        "text": ["a", "b"], "pooling": "mean", "dimensions": 3, "temperature": 1, "flag": true,
        "x": 0.5, "lora": "l", "stop": ["s"], "none": null, "stream": false,
    });
    let body = infer_body(payload.to_string().as_bytes()).unwrap();
    let sent: Value = serde_json::from_slice(&body).unwrap();
    let input = |name: &str, datatype: &str, data: [Value; 2]| json!({ "name": name, "shape": [2, 1], "datatype": datatype, "data": data });
    let both = |value: Value| [value.clone(), value];
    let expected = [
        input("dimensions", "INT64", both(json!(3))),
        input("flag", "BOOL", both(json!(true))),
        input("lora_name", "BYTES", both(json!("l"))),
        input("pooling", "BYTES", both(json!("mean"))),
        input("stop", "BYTES", both(json!(r#"["s"]"#))),
        input("temperature", "FP32", both(json!(1))),
        input("text", "BYTES", [json!("a"), json!("b")]),
        input("x", "FP32", both(json!(0.5))),
    ];
    let mut inputs = sent["inputs"].as_array().unwrap().clone();
    inputs.sort_by_key(|input| input["name"].to_string());
    assert_eq!(inputs, expected);
    let one = infer_body(br#"{"text":"a","big":1e400}"#).unwrap();
    let one: Value = serde_json::from_slice(&one).unwrap_or_default();
    assert!(one.is_null() || one["inputs"][0]["shape"] == json!([1, 1]));
    assert!(infer_body(b"[]").is_err() && infer_body(b"\xff").is_err());
}

#[test]
fn repeats_of_a_long_member_for_many_texts_are_refused_as_too_large() {
    let texts = |count: usize| vec!["a"; count];
    let sent = |payload: Value| infer_body(payload.to_string().as_bytes());
    let pad = "p".repeat(200_000);
    for payload in [
        json!({ "input_text": "x", "text": texts(1_000), "pad": pad }),
        json!({ "pad": pad, "pads": pad, "text": texts(20) }),
        json!({ "pad": [pad], "text": texts(1_000) }),
    ] {
        assert_eq!(sent(payload), Err(Refusal::BodyTooLarge));
    }
    let fields = "\"\":1,".repeat(100_000);
    let fields = format!("{{{fields}\"a\":1}}");
    assert_eq!(infer_body(fields.as_bytes()), Err(Refusal::BodyTooLarge));
    assert!(sent(json!({ "text": texts(1), "pad": pad })).is_ok());
    assert!(sent(json!({ "text": texts(20_000), "pooling": "cls", "dimensions": 768 })).is_ok());
}

#[test]
fn every_number_of_a_tasks_schema_that_is_no_integer_is_a_fraction() {
    for task in Task::ALL {
        let Some(schemas) = BuiltinTask::of(task).schemas() else {
            continue;
        };
        let schema: Value = serde_json::from_str(schemas.input).unwrap();
        let alternatives = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
        let all = std::iter::once(&schema).chain(alternatives.into_iter().flatten());
        for members in all.filter_map(|schema| schema["properties"].as_object()) {
            for (name, member) in members {
                let types = member["type"].to_string();
                let is_fraction = types.contains("number");
                let is_known = super::task_inputs::FRACTIONS.contains(&name.as_str());
                assert_eq!(is_fraction, is_known, "{}: {name}", task.slug());
            }
        }
    }
}

#[test]
fn text_generation_is_the_prompt_under_another_name() {
    let payload = br#"{"prompt":"a","max_tokens":5,"stream":true,"stop":["x"],"lora":"l"}"#;
    let sent: Value = serde_json::from_slice(&generate_body(payload).unwrap()).unwrap();
    assert_eq!(
        sent,
        json!({ "text_input": "a", "max_tokens": 5, "stop": r#"["x"]"#, "lora_name": "l" })
    );
    assert!(generate_body(br#"{"messages":[]}"#).is_err());
    let piece = br#"{"model_name":"m","text_output":"hi","COST_METRIC_output_tokens":[2,1]}"#;
    let piece = generated_piece(piece).unwrap();
    assert_eq!(piece.text, Some(r#""hi""#));
    assert_eq!(piece.costs.get("output_tokens"), Some(3.0));
    assert_eq!(
        generated_piece(br#"{"text_output":["hi"]}"#).unwrap().text,
        Some(r#""hi""#)
    );
    assert!(generated_piece(br#"{"error":"x"}"#).is_err());
}

fn result_of(outputs: Value) -> Result<Value, MalformedAnswer> {
    let answer = json!({ "model_name": "m", "outputs": outputs }).to_string();
    let (result, _) = task_result(answer.as_bytes())?;
    Ok(serde_json::from_slice(&result).unwrap())
}

#[test]
fn tensors_become_values_lists_and_columns() {
    let output = |name: &str, shape: Value, data: Value| json!({ "name": name, "datatype": "FP32", "shape": shape, "data": data });
    let result = result_of(json!([
        output("summary", json!([1, 1]), json!(["s"])),
        output("embeddings", json!([2, 2]), json!([1, 2, 3, 4])),
        output("one", json!([1, 3]), json!([[1, 2, 3]])),
        output("labels", json!([1, 1]), json!(["a"])),
        output("scores", json!([1]), json!([0.5])),
        output("boxes", json!([1, 1, 4]), json!([1, 2, 3, 4])),
        output("COST_METRIC_a", json!([1]), json!([1])),
        output("none", json!([0, 4]), json!([])),
    ]));
    assert_eq!(
        result.unwrap(),
        json!({ "summary": "s", "embeddings": [[1, 2], [3, 4]], "one": [1, 2, 3], "labels": ["a"],
                "scores": [0.5], "boxes": [[1, 2, 3, 4]], "none": [] })
    );
    for bad in [
        output("a", json!([3]), json!([1, 2])),
        output("a", json!([-1]), json!([1])),
        output("a", json!([4294967296_u64, 4294967296_u64]), json!([1])),
        json!({ "name": "a", "shape": [1], "parameters": { "binary_data_size": 4 } }),
    ] {
        assert!(result_of(json!([bad.clone()])).is_err(), "{bad}");
    }
}

#[test]
fn a_tensor_of_nothing_is_an_empty_list_whatever_its_other_sides_claim() {
    for shape in [
        json!([2, 0]),
        json!([1_000_000_000_000_u64, 0]),
        json!([0, u64::MAX, u64::MAX]),
        json!([1, 0, 1]),
    ] {
        for name in ["y", "labels", "boxes"] {
            let output = json!({ "name": name, "shape": shape, "data": [] });
            let result = result_of(json!([output]));
            assert_eq!(result.unwrap(), json!({ name: [] }), "{shape}");
        }
    }
    let overflow = json!({ "name": "y", "shape": [u64::MAX, 2, 0], "data": [] });
    assert!(result_of(json!([overflow])).is_err());
}

#[test]
fn pages_of_a_server_show_no_costs_and_the_clients_name() {
    let page = json!({
        "name": "served", "outputs": [{ "name": "y" }, { "name": "COST_METRIC_a" }],
        "output": [{ "name": "COST_METRIC_a" }], "model_stats": [{ "name": "served", "version": "1" }],
    });
    let seen = client_page(page.to_string().as_bytes(), "asked").unwrap();
    let seen: Value = serde_json::from_slice(&seen).unwrap();
    assert_eq!(
        seen,
        json!({ "name": "asked", "outputs": [{ "name": "y" }], "output": [],
                "model_stats": [{ "name": "asked", "version": "1" }] })
    );
    assert!(client_page(b"[]", "m").is_none());
    assert!(wants_ready_only(br#"{"ready":true}"#) && !wants_ready_only(b""));
}

/// A body of tensors in binary, and the answer to it.
fn whole_body() -> (Vec<u8>, usize) {
    let json = json!({
        "id": "1", "model_name": "m",
        "inputs": [input("x", json!({ "binary_data_size": 8 }))],
        "outputs": [
            { "name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": { "binary_data_size": 8 } },
            { "name": "COST_METRIC_a", "datatype": "INT64", "shape": [1], "parameters": { "binary_data_size": 8 } },
            { "name": "z", "datatype": "BYTES", "shape": [1], "data": ["a"] },
        ],
    })
    .to_string();
    let length = json.len();
    (
        [
            json.as_bytes(),
            &[0, 1, 2, 3, 4, 5, 6, 7],
            &3_i64.to_le_bytes(),
        ]
        .concat(),
        length,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn mutated_bodies_never_panic_and_never_show_costs(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..6),
        length_edit in -3_i64..4,
    ) {
        let (mut body, length) = whole_body();
        for (place, byte, kind) in edits {
            if body.is_empty() {
                break;
            }
            let at = place.index(body.len());
            match kind {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ => {
                    body.remove(at);
                }
            }
        }
        let length = (length as i64 + length_edit).clamp(0, body.len() as i64) as usize;
        if let Ok(call) = read(PATH, Some(&length.to_string()), &body) {
            let bytes = call.tensors.as_ref().unwrap().json_bytes.unwrap();
            prop_assert!(bytes <= call.body.len());
        }
        let _ = read(PATH, None, &body);
        if let Ok(edit) = edit_answer(&body[..length], "m", &[]) {
            let client: Value = serde_json::from_slice(&edit.json).unwrap();
            for output in client["outputs"].as_array().unwrap() {
                prop_assert!(!output["name"].as_str().unwrap().starts_with("COST_METRIC_"));
            }
            for span in edit.spans {
                if let TensorUse::Cost(mut sum) = span.purpose {
                    sum.push(&body[length..]);
                    sum.finish(&mut ReportedCosts::default());
                }
            }
        }
        let _ = task_result(&body[..length]);
        let _ = generated_piece(&body[..length]);
        let _ = infer_body(&body[..length]).map(|body| serde_json::from_slice::<Value>(&body).map(drop));
    }
}
