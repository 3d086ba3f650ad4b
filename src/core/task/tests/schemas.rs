//! Accepted and refused inputs of the input schemas.

use serde_json::{Value, json};

use super::*;

fn problems(schema: &str, instance: &Value) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    validator
        .iter_errors(instance)
        .map(|error| error.instance_path().to_string())
        .collect()
}

fn input_problems(task: Task, instance: &Value) -> Vec<String> {
    let description = BuiltinTask::of(task).description();
    problems(description.input_schema.as_deref().unwrap(), instance)
}

#[test]
fn every_task_but_the_pipe_has_schemas_that_are_valid_and_say_what_they_are() {
    for task in Task::ALL {
        let description = BuiltinTask::of(task).description();
        assert_eq!(description.slug, task.slug());
        assert!(description.wants.is_empty());
        let schemas = [&description.input_schema, &description.output_schema];
        for schema in schemas {
            let Some(schema) = schema else {
                assert_eq!(task, Task::DumbPipe);
                continue;
            };
            let schema: Value = serde_json::from_str(schema).unwrap();
            assert!(jsonschema::meta::is_valid(&schema), "{task:?}");
            assert_eq!(
                schema["$schema"],
                "https://json-schema.org/draft/2020-12/schema"
            );
            assert!(schema["title"].is_string() && schema["description"].is_string());
        }
    }
}

#[test]
fn every_member_of_an_input_says_what_it_is() {
    for task in Task::ALL {
        let Some(schema) = &BuiltinTask::of(task).description().input_schema else {
            continue;
        };
        let schema: Value = serde_json::from_str(schema).unwrap();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let described = property["description"].is_string() && !property["type"].is_null();
            assert!(described, "{task:?} {name}");
        }
    }
}

#[test]
fn the_documented_input_of_each_task_is_taken() {
    let image = json!("iVBORw0KGgo=");
    let bytes = json!([137, 80, 78, 71]);
    let parts = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]);
    let taken = [
        (Task::TextGeneration, json!({"prompt": "hi"})),
        (
            Task::TextGeneration,
            json!({"prompt": "hi", "stream": true, "max_tokens": 5, "temperature": 0.7, "top_p": 1, "top_k": 40, "seed": 1, "repetition_penalty": 1.1, "frequency_penalty": -1, "presence_penalty": 0, "lora": "mine", "raw": true, "response_format": {"type": "json_object"}}),
        ),
        (
            Task::TextGeneration,
            json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts.clone()}]}),
        ),
        (
            Task::TextGeneration,
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "7", "tool_call_id": "a"}], "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto", "stop": null, "n": 1, "user": "u", "logit_bias": {}, "stream_options": {"include_usage": true}}),
        ),
        (
            Task::TextGeneration,
            json!({"prompt": ["a", "b"], "tools": [{"name": "f", "description": "d", "parameters": {}}], "functions": [{"name": "f", "code": "c"}]}),
        ),
        (Task::TextGeneration, json!({"prompt": [1, 2, 3]})),
        (Task::TextEmbeddings, json!({"text": "a"})),
        (
            Task::TextEmbeddings,
            json!({"text": ["a", "b"], "pooling": "cls"}),
        ),
        (
            Task::TextEmbeddings,
            json!({"input": "a", "encoding_format": "base64", "model": "m"}),
        ),
        (Task::TextEmbeddings, json!({"input": vec![7; 5000]})),
        (Task::TextClassification, json!({"text": "good"})),
        (
            Task::TextToImage,
            json!({"prompt": "cat", "negative_prompt": "dog", "width": 256, "height": 2048, "num_steps": 50, "guidance": 7.5, "seed": 1, "strength": 1, "image": bytes.clone(), "mask": image.clone()}),
        ),
        (
            Task::TextToImage,
            json!({"prompt": "cat", "steps": 4, "image_b64": image.clone()}),
        ),
        (Task::TextToSpeech, json!({"text": "hi"})),
        (
            Task::TextToSpeech,
            json!({"prompt": "hi", "lang": "fr", "voice": "v"}),
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": bytes.clone(), "source_lang": "en", "vad_filter": true}),
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": "AAAA", "language": "en"}),
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": {"body": "AAAA", "contentType": "audio/wav"}}),
        ),
        (Task::ImageClassification, json!({"image": bytes.clone()})),
        (Task::ObjectDetection, json!({"image": image.clone()})),
        (
            Task::ImageToText,
            json!({"image": bytes.clone(), "prompt": "p", "max_tokens": 10}),
        ),
        (
            Task::ImageTextToText,
            json!({"image": image.clone(), "prompt": "p"}),
        ),
        (
            Task::ImageTextToText,
            json!({"messages": [{"role": "user", "content": parts}]}),
        ),
        (
            Task::Translation,
            json!({"text": "hi", "target_lang": "fr", "source_lang": "en"}),
        ),
        (
            Task::Summarization,
            json!({"input_text": "long", "max_length": 10}),
        ),
        (
            Task::MultimodalEmbeddings,
            json!({"text": ["a"], "image": [image.clone()]}),
        ),
        (Task::MultimodalEmbeddings, json!({"image": bytes})),
    ];
    for (task, input) in taken {
        assert_eq!(
            input_problems(task, &input),
            Vec::<String>::new(),
            "{task:?} {input}"
        );
    }
}

#[test]
fn wrong_input_is_refused_at_the_place_where_it_is_wrong() {
    let refused = [
        (Task::TextGeneration, json!({}), ""),
        (Task::TextGeneration, json!({"prompt": 7}), "/prompt"),
        (Task::TextGeneration, json!({"prompt": ""}), "/prompt"),
        (Task::TextGeneration, json!({"messages": []}), "/messages"),
        (
            Task::TextGeneration,
            json!({"messages": [{"role": "user"}, 7]}),
            "/messages/1",
        ),
        (
            Task::TextGeneration,
            json!({"messages": [{"content": "x"}]}),
            "/messages/0",
        ),
        (
            Task::TextGeneration,
            json!({"prompt": "x", "max_tokens": -1}),
            "/max_tokens",
        ),
        (
            Task::TextGeneration,
            json!({"prompt": "x", "temperature": 6}),
            "/temperature",
        ),
        (
            Task::TextGeneration,
            json!({"prompt": "x", "stream": "yes"}),
            "/stream",
        ),
        (Task::TextEmbeddings, json!({"text": []}), "/text"),
        (Task::TextEmbeddings, json!({"text": ["a", 7]}), "/text/1"),
        (
            Task::TextEmbeddings,
            json!({"text": vec!["a"; 101]}),
            "/text",
        ),
        (
            Task::TextEmbeddings,
            json!({"input": vec!["a"; 2049]}),
            "/input",
        ),
        (Task::TextClassification, json!({"text": null}), "/text"),
        (
            Task::TextToImage,
            json!({"prompt": "x", "width": 255}),
            "/width",
        ),
        (
            Task::TextToImage,
            json!({"prompt": "x", "height": 2049}),
            "/height",
        ),
        (
            Task::TextToImage,
            json!({"prompt": "x", "num_steps": 51}),
            "/num_steps",
        ),
        (
            Task::TextToImage,
            json!({"prompt": "x", "steps": 0}),
            "/steps",
        ),
        (
            Task::TextToImage,
            json!({"prompt": "x", "strength": 1.1}),
            "/strength",
        ),
        (Task::TextToSpeech, json!({"lang": "en"}), ""),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": [0, 256]}),
            "/audio/1",
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": []}),
            "/audio",
        ),
        (
            Task::AutomaticSpeechRecognition,
            json!({"audio": {}}),
            "/audio",
        ),
        (
            Task::ImageClassification,
            json!({"image": [-1]}),
            "/image/0",
        ),
        (Task::ObjectDetection, json!({}), ""),
        (Task::ImageTextToText, json!({"prompt": "x"}), ""),
        (Task::Translation, json!({"text": "x"}), ""),
        (
            Task::Translation,
            json!({"text": "x", "target_lang": "f"}),
            "/target_lang",
        ),
        (
            Task::Summarization,
            json!({"input_text": "x", "max_length": 0}),
            "/max_length",
        ),
        (
            Task::MultimodalEmbeddings,
            json!({"image": [300]}),
            "/image/0",
        ),
        (Task::Translation, json!([]), ""),
    ];
    for (task, input, pointer) in refused {
        assert!(
            input_problems(task, &input).contains(&pointer.to_owned()),
            "{task:?} {input}: {:?}",
            input_problems(task, &input)
        );
    }
}

#[test]
fn a_null_is_as_good_as_absent_where_a_member_may_be_absent() {
    for task in Task::ALL {
        let Some(schema) = &BuiltinTask::of(task).description().input_schema else {
            continue;
        };
        let schema: Value = serde_json::from_str(schema).unwrap();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let null = property["type"]
                .as_array()
                .is_some_and(|t| t.contains(&json!("null")));
            assert_eq!(null, !required.contains(&json!(name)), "{task:?} {name}");
        }
    }
}

#[test]
fn a_null_alone_is_no_input() {
    for (task, instance, member) in [
        (Task::TextGeneration, json!({"prompt": null}), "prompt"),
        (Task::TextGeneration, json!({"messages": null}), "messages"),
        (Task::TextEmbeddings, json!({"text": null}), "text"),
        (Task::TextEmbeddings, json!({"input": null}), "input"),
        (Task::TextToSpeech, json!({"prompt": null}), "prompt"),
        (Task::MultimodalEmbeddings, json!({"image": null}), "image"),
        (
            Task::ImageTextToText,
            json!({"image": null, "prompt": "x"}),
            "image",
        ),
    ] {
        let mut instance = instance;
        assert!(
            !input_problems(task, &instance).is_empty(),
            "{task:?} {instance}"
        );
        instance[member] = json!("x");
        if member == "messages" {
            instance[member] = json!([{"role": "user"}]);
        }
        assert!(
            input_problems(task, &instance).is_empty(),
            "{task:?} {instance}"
        );
    }
}

#[test]
fn results_keep_to_the_output_schemas() {
    for (task, answer, _) in super::finish::variants() {
        let finished = BuiltinTask::of(task)
            .finish(&response(answer.to_string().as_bytes()))
            .unwrap();
        let schema = BuiltinTask::of(task)
            .description()
            .output_schema
            .as_deref()
            .unwrap();
        assert_eq!(
            problems(schema, &json(&finished.edit)),
            Vec::<String>::new(),
            "{task:?} {answer}"
        );
    }
}
