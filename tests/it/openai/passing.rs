//! The part of a client's request that a backend receives.

use super::CHAT;
use crate::support::{
    Authority, Node, ScriptedServer, TestClient, TlsFront, accounts, chat, endpoint, json_answer,
    model, one_model,
};

fn head_lines(request: &str) -> Vec<(String, String)> {
    let head = request.split("\r\n\r\n").next().unwrap();
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    };
    head.lines().skip(1).map(field).collect()
}

fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn the_backend_sees_the_body_byte_for_byte_but_for_the_model_and_our_own_fields() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let with_name = format!("{}, backend_model: llama-q4", endpoint(backend.address, 1));
    let node = Node::start(&format!("models:\n{}", model("m", &[with_name], ""))).await;
    let sent = r#"{ "x_client_id":"u7", "model" : "m","messages":[{"role":"user","content":"h\u00e9\ud83d\ude00 \/ é"}] , "big":12345678901234567890123,"exp":1.50E+10, "nested":{"model":"m","x_priority":1,"a":[null , true]}, "x_priority":3,"tail":""  }"#;
    let seen = r#"{ "model" : "llama-q4","messages":[{"role":"user","content":"h\u00e9\ud83d\ude00 \/ é"}] , "big":12345678901234567890123,"exp":1.50E+10, "nested":{"model":"m","x_priority":1,"a":[null , true]},"tail":""  }"#;
    assert_eq!(node.post(CHAT, sent).await.status, 200);
    assert_eq!(body_of(&backend.requests()[0]), seen);
    assert_eq!(node.events(1).await[0]["client_id"], "u7");
}

#[tokio::test]
async fn credentials_and_internal_names_stay_here_and_the_endpoints_key_goes_instead() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let with_key = format!("{}, api_key: \"sk-back\"", endpoint(backend.address, 1));
    let config = format!(
        "{}headers: {{ pass: [x-custom] }}\nmodels:\n{}",
        accounts(""),
        model("m", &[with_key], "")
    );
    let node = Node::start(&config).await;
    let headers = "Authorization: Bearer key-a\r\nCookie: s=secret1\r\nX-Api-Key: secret2\r\n\
                   x_api_key: secret3\r\nCF-AI-Neurons: secret4\r\ncf_ai_x: secret5\r\n\
                   x-infergate-site: secret6\r\nX-Infergate-Anything: secret7\r\n\
                   Connection: keep-alive, X-Hop\r\nConnection: x-hop-2\r\nX-Hop: secret8\r\n\
                   X-Hop-2: secret9\r\nKeep-Alive: secret10\r\nTE: secret11\r\n\
                   Proxy-Authorization: secret12\r\nX-Request-Id: secret13\r\n\
                   Accept-Encoding: gzip\r\ntraceparent: 00-aa-bb-01\r\nx-custom: kept\r\n\
                   X-Auth-Key: secret14\r\nX-Auth-Email: secret15\r\napi-key: secret16\r\n\
                   x-goog-api-key: secret17\r\nOpenAI-Organization: secret18\r\n\
                   CF-Access-Client-Secret: secret19\r\nX-Real-IP: secret20\r\nRange: secret21\r\n\
                   Forwarded: secret22\r\nIf-None-Match: secret23\r\nx-client-request-id: mine-7\r\n\
                   x-stainless-lang: python\r\n";
    let answer = node.post_as(headers, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = backend.requests().remove(0);
    assert!(
        !request.contains("secret") && !request.contains("key-a"),
        "{request}"
    );
    let lines = head_lines(&request);
    let all = |name: &str| -> Vec<&str> {
        lines
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
            .collect()
    };
    assert_eq!(all("authorization"), ["Bearer sk-back"]);
    assert_eq!(all("host"), [backend.address.to_string()]);
    assert_eq!(all("content-type"), ["application/json"]);
    assert_eq!(all("content-length").len(), 1);
    assert_eq!(all("traceparent"), ["00-aa-bb-01"]);
    assert_eq!(all("x-custom"), ["kept"]);
    assert_eq!(all("x-stainless-lang"), ["python"]);
    assert_eq!(all("accept-encoding"), ["identity"]);
    assert_eq!(
        all("x-request-id"),
        [answer.header("x-request-id").unwrap()]
    );
    for absent in ["connection", "keep-alive", "te", "cookie", "x-api-key"] {
        assert_eq!(all(absent), [""; 0], "{absent}");
    }
    assert_eq!(node.events(1).await[0]["client_request_id"], "mine-7");
}

#[tokio::test]
async fn an_external_endpoint_gets_less_of_a_clients_headers_than_an_own_one() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let front = TlsFront::start(&authority.certify("127.0.0.1"), backend.address).await;
    let external = format!(
        "url: \"https://{}\", max_concurrent_requests: 1, api_key: sk-1, ca_file: \"{}\"",
        front.address,
        authority.write(dir.path())
    );
    let models = model("m", &[external], "");
    let node = Node::start(&format!(
        "headers: {{ pass: [x-tenant] }}\nmodels:\n{models}"
    ))
    .await;
    let headers = "x-tenant: secret1\r\nbaggage: secret2\r\nx-stainless-os: secret3\r\n\
                   x-auth-key: secret4\r\ntraceparent: 00-aa-bb-01\r\nuser-agent: t\r\n";
    let answer = node.post_as(headers, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = backend.requests().remove(0);
    assert!(!request.contains("secret"), "{request}");
    let lines = head_lines(&request);
    for (name, value) in [
        ("traceparent", "00-aa-bb-01"),
        ("user-agent", "t"),
        ("authorization", "Bearer sk-1"),
        ("content-type", "application/json"),
    ] {
        assert!(lines.contains(&(name.into(), value.into())), "{request}");
    }
}

#[tokio::test]
async fn of_an_answers_headers_only_those_on_the_list_reach_the_client() {
    let answer = json_answer("{}").replacen(
        "\r\n",
        "\r\nServer: vllm-7\r\nX-Upstream-Host: gpu-7\r\nSet-Cookie: a=b\r\nAlt-Svc: h3\r\n\
         Refresh: 0\r\nX-Ratelimit-Remaining-Requests: 7\r\nOpenAI-Organization: org-own\r\n\
         Cache-Control: no-store\r\nOpenAI-Processing-Ms: 12\r\nX-Tenant: t\r\n",
        1,
    );
    let backend = ScriptedServer::new(&[&answer]).await;
    let config = one_model(backend.address, 1, "");
    let node = Node::start(&format!("headers: {{ pass: [x-tenant] }}\n{config}")).await;
    let answer = node.post(CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for absent in [
        "server",
        "x-upstream-host",
        "set-cookie",
        "alt-svc",
        "refresh",
        "x-ratelimit-remaining-requests",
        "openai-organization",
    ] {
        assert_eq!(answer.header(absent), None, "{absent}");
    }
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("openai-processing-ms"), Some("12"));
    assert_eq!(answer.header("x-tenant"), Some("t"));
}

#[tokio::test]
async fn without_a_key_of_its_own_a_backend_gets_no_authorization() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&format!(
        "{}{}",
        accounts(""),
        one_model(backend.address, 1, "")
    ))
    .await;
    node.post_as("Authorization: Bearer key-a\r\n", CHAT, &chat("m", ""))
        .await;
    let lines = head_lines(&backend.requests()[0]);
    assert!(lines.iter().all(|(name, _)| name != "authorization"));
}

#[tokio::test]
async fn a_body_sent_as_a_form_is_told_to_the_backend_as_the_json_it_is() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let body = chat("m", "");
    for kind in ["", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: h\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(
            TestClient::exchange(node.clients, request).await.status,
            200
        );
    }
    for request in backend.requests() {
        let mut lines = head_lines(&request);
        lines.retain(|(name, _)| name == "content-type");
        assert_eq!(lines, [("content-type".into(), "application/json".into())]);
    }
}

/// Response of `status` whose head describes the bytes of its body.
fn described(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nETag: \"old\"\r\n\
         Content-Range: bytes 0-1/2\r\nContent-MD5: b2xk\r\nContent-Encoding: identity\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const DESCRIPTIONS: [&str; 4] = ["etag", "content-range", "content-md5", "content-encoding"];

#[tokio::test]
async fn a_rewritten_body_is_not_described_as_the_old_one_was() {
    let refusing = ScriptedServer::new(&[&described("422 No", "{\"detail\":\"old\"}")]).await;
    let squeezed = described("400 No", "\u{1f}old").replace("identity", "gzip");
    let squeezing = ScriptedServer::new(&[&squeezed]).await;
    let whole = r#"{"choices":[{"message":{"content":"a"}}]}"#;
    let answering = ScriptedServer::new(&[&described("200 OK", whole)]).await;
    let models = [
        ("refusing", &refusing),
        ("squeezing", &squeezing),
        ("answering", &answering),
    ];
    let models = models.map(|(id, server)| model(id, &[endpoint(server.address, 1)], ""));
    let node = Node::start(&format!("models:\n{}", models.concat())).await;
    let refused = node.post(CHAT, &chat("refusing", "")).await;
    assert_eq!(refused.status, 422);
    let unread = node.post(CHAT, &chat("squeezing", "")).await;
    assert_eq!(unread.status, 400);
    let converted = node.post("/ai/run/answering", r#"{"prompt":"hi"}"#).await;
    assert_eq!(converted.status, 200);
    for answer in [refused, unread, converted] {
        answer.json();
        for name in DESCRIPTIONS {
            assert_eq!(answer.header(name), None, "{name} {}", answer.status);
        }
    }
    let passed = node.post(CHAT, &chat("answering", "")).await;
    assert_eq!(passed.text(), whole);
    for name in DESCRIPTIONS {
        assert!(
            passed.header(name).is_some(),
            "{name}: these bytes are the old ones"
        );
    }
}

#[tokio::test]
async fn answers_say_the_name_that_was_asked_for_where_the_model_wants_that() {
    let whole = r#"{"model":"/srv/llama.gguf","choices":[{"message":{"content":"a"}}]}"#;
    let backend = ScriptedServer::new(&[&json_answer(whole)]).await;
    let with_name = format!("{}, backend_model: llama", endpoint(backend.address, 1));
    let more = |key: &str| format!("    aliases: [\"al/ias\"]\n{key}");
    let renaming = model(
        "m",
        std::slice::from_ref(&with_name),
        &more("    model_in_answers: asked\n"),
    );
    let node = Node::start(&format!("models:\n{renaming}")).await;
    for name in ["m", "al/ias"] {
        let answer = node.post(CHAT, &chat(name, "")).await;
        assert_eq!(answer.text(), whole.replace("/srv/llama.gguf", name));
        let length = answer.header("content-length").unwrap();
        assert_eq!(length, answer.body.len().to_string());
    }
    let plain = model("m", &[with_name], &more(""));
    node.reload(&format!("models:\n{plain}")).await;
    assert_eq!(node.post(CHAT, &chat("al/ias", "")).await.text(), whole);
}
