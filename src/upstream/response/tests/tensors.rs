//! Answers of the Open Inference Protocol, cut anywhere.

use infergate_core::api::dialect::RequestBody;
use serde_json::{Value, json};

use super::*;

const PATH: &str = "/v2/models/m/infer";

fn call(outputs: &[&str]) -> Call {
    let outputs: Vec<Value> = outputs.iter().map(|name| json!({ "name": name })).collect();
    let body = json!({ "inputs": [], "outputs": outputs }).to_string();
    let request = RequestBody {
        operation: Operation::Infer,
        path_model: Some("m".into()),
        task: None,
        content_type: None,
        path: PATH,
        json_bytes: None,
        body: body.into(),
        length: None,
    };
    ApiDialect::OpenInference.rules().parse(request).unwrap()
}

fn output(name: &str, datatype: &str, bytes: usize) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": [bytes], "parameters": { "binary_data_size": bytes } })
}

/// An answer with costs before, between and behind the client's tensors: its JSON, and the tensors.
fn binary_answer() -> (String, Vec<u8>) {
    let json = json!({ "model_name": "served", "outputs": [
        output("COST_METRIC_input_tokens", "INT64", 8), output("y", "UINT8", 300),
        output("COST_METRIC_steps", "FP32", 8), output("none", "UINT8", 0), output("z", "UINT8", 7),
        output("COST_METRIC_output_tokens", "INT32", 4),
    ] });
    let y: Vec<u8> = (0..300).map(|n| n as u8).collect();
    let steps = [0.5_f32.to_le_bytes(), 2.0_f32.to_le_bytes()].concat();
    let tensors = [
        &11_i64.to_le_bytes()[..],
        &y,
        &steps,
        b"zzzzzzz",
        &5_i32.to_le_bytes(),
    ];
    (json.to_string(), tensors.concat())
}

/// Bytes for the client, how the answer ended, and its transformer.
fn read(
    call: &Call,
    length: usize,
    body: &[u8],
    step: usize,
) -> (Vec<u8>, Result<(), ResponseError>, ResponseTransformer) {
    let mut answer = backend("triton").unwrap().decoder(call, Task::DumbPipe);
    let length = length.to_string();
    answer.begin(200, |name| match name {
        "inference-header-content-length" => Some(length.as_bytes()),
        _ => None,
    });
    let mut sent = Vec::new();
    for chunk in body.chunks(step) {
        let mut out = BytesMut::new();
        match answer.push(chunk, &mut out) {
            Ok(PushOutput::First(len)) => {
                assert!(out.is_empty());
                sent.extend_from_slice(&chunk[..len]);
            }
            Ok(PushOutput::Out) => sent.extend_from_slice(&out),
            Err(error) => return (sent, Err(error), answer),
        }
    }
    let mut out = BytesMut::new();
    let ended = answer.finish(&mut out);
    sent.extend_from_slice(&out);
    (sent, ended, answer)
}

#[test]
fn costs_leave_an_answer_in_binary_wherever_it_is_cut() {
    let (json, tensors) = binary_answer();
    let body = [json.as_bytes(), &tensors].concat();
    let y = &tensors[8..308];
    for (named, names, expected) in [
        (&[][..], vec!["y", "none", "z"], [y, b"zzzzzzz"].concat()),
        (&["z"], vec!["z"], b"zzzzzzz".to_vec()),
        (&["y", "COST_METRIC_steps"], vec!["y"], y.to_vec()),
    ] {
        let call = call(named);
        for step in [1, 2, 3, 5, 64, 333, 4096] {
            let (sent, ended, answer) = read(&call, json.len(), &body, step);
            assert_eq!(ended, Ok(()), "{step}");
            let length = answer.tensor_json_bytes().unwrap();
            let seen: Value = serde_json::from_slice(&sent[..length]).unwrap();
            let outputs = seen["outputs"].as_array().unwrap();
            let outputs: Vec<_> = outputs
                .iter()
                .map(|it| it["name"].as_str().unwrap())
                .collect();
            assert_eq!(
                (outputs, &sent[length..]),
                (names.clone(), &*expected),
                "{step}"
            );
            assert_eq!(seen["model_name"], "m");
            let reported = answer.reported_metrics();
            let usage = reported.usage.unwrap();
            assert_eq!((usage.input_tokens, usage.output_tokens), (11, 5));
            assert_eq!(reported.metrics, [("steps".to_owned(), 2.5)]);
            assert!(answer.is_done() && !answer.passes_length());
        }
    }
}

#[test]
fn an_answer_in_binary_that_is_not_whole_is_none() {
    let (json, tensors) = binary_answer();
    let body = [json.as_bytes(), &tensors].concat();
    let call = call(&[]);
    for cut in [0, 1, json.len(), json.len() + 100, body.len() - 1] {
        let (_, ended, answer) = read(&call, json.len(), &body[..cut], 7);
        assert_eq!(ended, Err(ResponseError::EndedEarly), "{cut}");
        assert!(!answer.is_done());
    }
    let longer = [&body[..], b"x"].concat();
    assert_eq!(
        read(&call, json.len(), &longer, 7).1,
        Err(ResponseError::Malformed)
    );
    assert_eq!(
        read(&call, json.len() - 1, &body, 7).1,
        Err(ResponseError::Malformed)
    );
    assert_eq!(
        read(&call, RESPONSE_BYTES_MAX + 1, &body, 7).1,
        Err(ResponseError::ResponseTooLong)
    );
}
