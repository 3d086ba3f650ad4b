//! The configuration as operators meet it: files in, configurations or problems out.

mod bad_files;
mod good_files;
mod reference;
mod whole_files;

use super::*;

/// A file that loads; tests replace or add what they are about.
const GOOD: &str = r#"listen:
  clients: [{ address: "127.0.0.1:8080" }]
anonymous: allow
models:
  - id: llama
    task: text-generation
    backend: openai
    endpoints: [{ url: "http://127.0.0.1:9001" }]
"#;

fn env(name: &str) -> Option<String> {
    match name {
        "LLM_KEY" => Some("sk-elsewhere".to_owned()),
        "VLLM_KEY" => Some("sk-from-the-environment".to_owned()),
        "CONSUL_HTTP_TOKEN" => Some("a-token".to_owned()),
        "CLUSTER_SECRET" => Some("a-secret-from-the-environment".to_owned()),
        "WEBHOOK_SECRET" => Some("a-webhook-secret-from-the-environment".to_owned()),
        "HOST" => Some("127.0.0.1".to_owned()),
        "PORT" => Some("9001".to_owned()),
        "EMPTY" => Some(String::new()),
        "TWO_LINES" => Some("sk-two\nlines".to_owned()),
        _ => None,
    }
}

fn problems(text: &str) -> Vec<Problem> {
    parse(text, &env)
        .map(|loaded| loaded.config)
        .expect_err("the file has problems")
}
