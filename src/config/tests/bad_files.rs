//! Mistakes one at a time: for each, where the problem is and what the message says.

use super::*;
use crate::upstream::BACKENDS;

/// Cases of two lines each: what is done to [`GOOD`], and how the one problem begins up to its
/// path, with a part of its message. `add` puts text at the end, `put` replaces the first place
/// of a text. `⏎` and `⇥` stand for a line end and a tab, `⟨backends⟩` for the names of all backends.
fn check(cases: &str) {
    let backends: Vec<&str> = BACKENDS.iter().map(|row| row.name).collect();
    let backends = backends.join(", ");
    let mut lines = cases.trim().lines();
    while let (Some(edit), Some(expected)) = (lines.next(), lines.next()) {
        let edit = edit.replace('⏎', "\n").replace('⇥', "\t");
        let text = match (edit.strip_prefix("add "), edit.strip_prefix("put ")) {
            (Some(end), _) => format!("{GOOD}{end}\n"),
            (_, Some(put)) => {
                let (from, to) = put.split_once(" =>").unwrap();
                assert!(GOOD.contains(from), "{from}");
                GOOD.replacen(from, to.strip_prefix(' ').unwrap_or(to), 1)
            }
            _ => panic!("a case begins with add or put: {edit}"),
        };
        let found = problems(&text);
        let [problem] = &found[..] else {
            panic!("one problem in\n{text}\n{found:#?}")
        };
        let shown = problem.to_string();
        let place = shown.strip_suffix(&*problem.message).unwrap();
        let expected = expected.trim_start().replace("⟨backends⟩", &backends);
        let part = expected.strip_prefix(place).unwrap_or("not at this place");
        assert!(
            problem.message.contains(part),
            "in\n{text}\nexpected {expected}\nfound    {problem}"
        );
    }
}

#[test]
fn unknown_and_missing_keys_are_named_with_their_place() {
    check(
        r#"
add thread: 4
  line 9: thread: unknown key `thread`: did you mean `threads`?
add banana: 4
  line 9: banana: the keys here are listen, node, cluster, anonymous
add "odd key": 4
  line 9: ["odd key"]: unknown key
add limits: { requst_body_mib: 4 }
  line 9: limits.requst_body_mib: did you mean `request_body_mib`?
add limits:⏎  request_body_mb: 4
  line 10: limits.request_body_mb: did you mean `request_body_mib`?
add drain_timeout_secs: 5
  line 9: drain_timeout_secs: it belongs at `timeouts.drain_timeout_secs` or `jobs.worker.drain_timeout_secs`
put task: text-generation => algorithm: fair⏎    task: text-generation
  line 6: models[0].algorithm: it belongs at `models[].queue.algorithm`
put "http://127.0.0.1:9001" => "http://h:1", max_concurrency: 4
  line 8: models[0].endpoints[0].max_concurrency: did you mean `max_concurrent_requests`?
add accounts:⏎  - id: acme⏎    api_keys: []
  line 11: accounts[0].api_keys: did you mean `api_keys_sha256`?
add node: { name: x }
  line 9: node.name: the keys here are id, site
put listen:⏎  clients: [{ address: "127.0.0.1:8080" }]⏎ =>
  line 1: listen: `listen` is required
put clients: [{ address: "127.0.0.1:8080" }] => admin: { address: "127.0.0.1:1" }
  line 1: listen.clients: `clients` is required: add it (a list)
put { address: "127.0.0.1:8080" } => {}
  line 2: listen.clients[0].address: `address` is required
put - id: llama⏎    task => - task
  line 5: models[0].id: `id` is required: add it (text)
put     task: text-generation =>
  line 5: models[0].task: `task` is required: add it (one of text-generation, text-classification, text-embeddings
put     backend: openai =>
  line 5: models[0].backend: `backend` is required: add it (one of ⟨backends⟩)
put url: "http://127.0.0.1:9001" => priority: 1
  line 8: models[0].endpoints[0].url: `url` is required
add accounts: [{ weight: 1 }]
  line 9: accounts[0].id: `id` is required
"#,
    );
}

#[test]
fn wrong_types_say_what_was_found_and_what_to_write() {
    check(
        r#"
add threads: four
  line 9: threads: expected a whole number from 0 to 1024, found "four"
add threads: "4"
  line 9: threads: write it without quotes
add threads: 1.5
  line 9: threads: found 1.5
add threads: ${PORT}
  line 9: threads: found "${PORT}": a value with ${…} is always text
add threads: true
  line 9: threads: found true
add threads:
  line 9: threads: empty: expected a whole number
add limits:
  line 9: limits: empty: expected a mapping
put backend: openai => backend: openai⏎    jobs: { flows: shards }
  line 8: models[0].jobs.flows: expected one of account, model or a mapping of shards, hand, found "shards"
put backend: openai => backend: openai⏎    jobs: { predict_timeout_secs: 2592001 }
  line 8: models[0].jobs.predict_timeout_secs: too large: expected a whole number from -2592000 to 2592000
add limits: 5
  line 9: limits: expected a mapping with keys below it, found 5
add timeouts: { connect_ms: 200ms }
  line 9: timeouts.connect_ms: write 200 alone, the unit stands in the key
add timeouts: { ceiling_secs: 10 min }
  line 9: timeouts.ceiling_secs: write 10 alone
add accounts: acme
  line 9: accounts: expected a list, found "acme": begin each item with `- `
add accounts: { id: acme }
  line 9: accounts: expected a list, found a mapping
add accounts: [acme]
  line 9: accounts[0]: expected a mapping with keys below it, found "acme"
add accounts: [{ id: acme, may_force_site: yes }]
  line 9: accounts[0].may_force_site: YAML 1.2 knows only true and false
add node: { id: 7 }
  line 9: node.id: expected text, found 7: put it in quotes
add events: { file: events.jsonl }
  line 9: events.file: expected a mapping
add events: { file: }
  line 9: events.file: empty: expected a mapping
"#,
    );
}

#[test]
fn words_that_are_not_allowed_are_listed_with_the_nearest() {
    check(
        r#"
put anonymous: allow => anonymous: maybe
  line 3: anonymous: expected one of deny, allow, found "maybe"
put anonymous: allow => anonymous: true
  line 3: anonymous: expected one of deny, allow, found true
put anonymous: allow => anonymous: Allow
  line 3: anonymous: did you mean `allow`?
add log: { level: information }
  line 9: log.level: use off, error, warn, info, debug, trace
add log: { format: xml }
  line 9: log.format: expected one of text, json, found "xml"
add events: { durability: before_last_byte }
  line 9: events.durability: did you mean `before-last-byte`?
put task: text-generation => task: chat
  line 6: models[0].task: expected one of text-generation, text-classification, text-embeddings
put backend: openai => backend: ollama
  line 7: models[0].backend: expected one of ⟨backends⟩, found "ollama"
put backend: openai => backend: llama_server
  line 7: models[0].backend: did you mean `llama-server`?
put task: text-generation => queue: { algorithm: token_fair }⏎    task: text-generation
  line 6: models[0].queue.algorithm: did you mean `token-fair`?
put task: text-generation => queue: { when_unhealthy: drop }⏎    task: text-generation
  line 6: models[0].queue.when_unhealthy: expected one of wait, refuse
"#,
    );
}

#[test]
fn numbers_out_of_range_and_limits_that_cannot_hold_are_refused() {
    check(
        r#"
add threads: -1
  line 9: threads: -1 is too small: expected a whole number from 0 to 1024
add threads: 99999
  line 9: threads: 99999 is too large
add limits: { request_body_mib: 0 }
  line 9: limits.request_body_mib: 0 is too small: expected a whole number from 1 to 1024
add limits: { connections_per_client: 0 }
  line 9: limits.connections_per_client: too small
add trusted_proxies: ["10.0.0.0/8", "unix", "10.0.0.1/8"]
  line 9: trusted_proxies[2]: has bits set beyond its prefix: write a network, an address or `unix`
add trusted_proxies: [proxy.example]
  line 9: trusted_proxies[0]: must be a network such as 10.0.0.0/8 or fd00::/8: write
add trusted_proxies: ["unix:/x"]
  line 9: trusted_proxies[0]: must be a network
add accounts: [{ id: acme, requests_per_minute_by_task: { text-generatoin: 3 } }]
  line 9: accounts[0].requests_per_minute_by_task.text-generatoin: no task is called "text-generatoin": use one of text-generation, text-classification
add accounts: [{ id: acme, requests_per_minute_by_task: { text-generation: 0 } }]
  line 9: accounts[0].requests_per_minute_by_task.text-generation: 0 is too small
add limits: { header_timeout_secs: 0 }
  line 9: limits.header_timeout_secs: too small
add limits: { request_body_mib: 64, buffered_bodies_mib: 32 }
  line 9: limits.buffered_bodies_mib: buffered_bodies_mib (32) is below request_body_mib (64)
add limits:⏎  request_body_mib: 1024
  line 10: limits.request_body_mib: buffered_bodies_mib (512) is below request_body_mib (1024)
add timeouts: { ceiling_secs: 10 }
  line 9: timeouts.ceiling_secs: ceiling_secs (10) is below model_floor_secs (30)
add timeouts: { model_floor_secs: 300 }
  line 9: timeouts.model_floor_secs: ceiling_secs (240) is below model_floor_secs (300)
add timeouts: { connect_ms: 0 }
  line 9: timeouts.connect_ms: too small
add timeouts: { keepalive_secs: 99999999999999999999999 }
  line 9: timeouts.keepalive_secs: too large
put "http://127.0.0.1:9001" => "http://h:1", max_concurrent_requests: 0
  line 8: models[0].endpoints[0].max_concurrent_requests: 0 is too small: expected a whole number from 1 to 65536
put "http://127.0.0.1:9001" => "http://h:1", priority: 4294967296
  line 8: models[0].endpoints[0].priority: too large
add accounts: [{ id: a, weight: 0 }]
  line 9: accounts[0].weight: too small
add accounts: [{ id: a, max_priority: 10 }]
  line 9: accounts[0].max_priority: 10 is too large: expected a whole number from 0 to 9
add accounts: [{ id: a, requests_per_minute: 0 }]
  line 9: accounts[0].requests_per_minute: expected a whole number, at least 1
add events: { file: { path: e.jsonl, max_size_mib: 0 } }
  line 9: events.file.max_size_mib: too small
add events: { file: { path: "" } }
  line 9: events.file.path: must not be empty
add state_dir: ""
  line 9: state_dir: must not be empty
"#,
    );
}

#[test]
fn listeners_need_addresses_of_their_own() {
    check(
        r#"
put { address: "127.0.0.1:8080" } =>
  line 2: listen.clients: at least 1 item
put { address: "127.0.0.1:8080" } => { address: "localhost:8080" }
  line 2: listen.clients[0].address: expected an IP address and a port such as 127.0.0.1:8080 or [::]:8080, found "localhost:8080"
put { address: "127.0.0.1:8080" } => { address: ":8080" }
  line 2: listen.clients[0].address: found ":8080"
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1" }
  line 2: listen.clients[0].address: expected an IP address and a port
put { address: "127.0.0.1:8080" } => { address: 8080 }
  line 2: listen.clients[0].address: expected text, found 8080
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1:8080" }, { address: "127.0.0.1:8080" }
  line 2: listen.clients[1].address: already the address of `listen.clients[0].address`
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1:8080" }, { address: "0.0.0.0:8080" }
  line 2: listen.clients[1].address: collides with 127.0.0.1:8080
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1:9090" }
  line 2: listen.clients[0].address: already the address of `listen.admin.address`
put anonymous: =>   admin: { address: "nowhere" }⏎anonymous:
  line 3: listen.admin.address: expected an IP address and a port
add node: { id: "" }
  line 9: node.id: must not be empty
add node: { site: "a b" }
  line 9: node.site: cannot stand in a name
"#,
    );
}

#[test]
fn models_and_accounts_have_names_of_their_own() {
    check(
        r#"
add   - { id: llama, task: text-embeddings, backend: tei, endpoints: [{ url: "http://h:1" }] }
  line 9: models[1].id: "llama" already stands at `models[0].id`
add   - { id: other, aliases: [llama], task: text-embeddings, backend: tei, endpoints: [{ url: "http://h:1" }] }
  line 9: models[1].aliases[0]: "llama" already stands at `models[0].id`
put task: text-generation => aliases: [a, a]⏎    task: text-generation
  line 6: models[0].aliases[1]: already stands at `models[0].aliases[0]`
put id: llama => id: ""
  line 5: models[0].id: must not be empty
put id: llama => id: "lla ma"
  line 5: models[0].id: ' ' cannot stand in a name
put id: llama => id: "@cf/*"
  line 5: models[0].id: '*' cannot stand in a name
add accounts:⏎  - { id: a }⏎  - { id: a }
  line 11: accounts[1].id: "a" is already the id of `accounts[0]`
add accounts: [{ id: a/b }]
  line 9: accounts[0].id: '/' cannot stand in a name
add accounts: [{ id: a, models: ["@cf/*/x"] }]
  line 9: accounts[0].models[0]: at the end only
add accounts: [{ id: a, models: [""] }]
  line 9: accounts[0].models[0]: must not be empty
add accounts: [{ id: a, api_keys_sha256: [demo-key] }]
  line 9: accounts[0].api_keys_sha256[0]: 64 hex digits of a SHA-256, never the key itself
put task: text-generation => allowed_accounts: [acme]⏎    task: text-generation
  line 6: models[0].allowed_accounts[0]: no account is called "acme"
add accounts: [{ id: anonymous, api_keys_sha256: [abababababababababababababababababababababababababababababababab] }]
  line 9: accounts[0].api_keys_sha256[0]: requests without a key
"#,
    );
}

#[test]
fn endpoints_are_http_urls_with_a_port_and_stand_once() {
    check(
        r#"
put "http://127.0.0.1:9001" => "https://h:0"
  line 8: models[0].endpoints[0].url: from 1 to 65535
put "http://127.0.0.1:9001" => "https://-h"
  line 8: models[0].endpoints[0].url: no certificate can be for this host
put "http://127.0.0.1:9001" => "https://[::g]"
  line 8: models[0].endpoints[0].url: expected http://host:port or https://host
put "http://127.0.0.1:9001" => "http://h:1", ca_file: ca.pem
  line 8: models[0].endpoints[0].ca_file: only an https endpoint has a certificate
put "http://127.0.0.1:9001" => "http://h:1", send_model_config: true
  line 8: models[0].endpoints[0].send_model_config: the model has no `tariff`
put "http://127.0.0.1:9001" => "http://h:1", http2: auto
  line 8: models[0].endpoints[0].http2: HTTP/2 is agreed on in the TLS handshake
put "http://127.0.0.1:9001" => "https://h", ca_file: ""
  line 8: models[0].endpoints[0].ca_file: must not be empty
put "http://127.0.0.1:9001" => "127.0.0.1:9001"
  line 8: models[0].endpoints[0].url: expected http://host:port
put "http://127.0.0.1:9001" => "http://127.0.0.1"
  line 8: models[0].endpoints[0].url: the port is missing
put "http://127.0.0.1:9001" => "http://127.0.0.1:0"
  line 8: models[0].endpoints[0].url: from 1 to 65535
put "http://127.0.0.1:9001" => "http://127.0.0.1:90001"
  line 8: models[0].endpoints[0].url: from 1 to 65535
put "http://127.0.0.1:9001" => "http://u:p@h:1"
  line 8: models[0].endpoints[0].url: use `api_key`
put "http://127.0.0.1:9001" => "http://h:1/v1?x=1"
  line 8: models[0].endpoints[0].url: no query
put "http://127.0.0.1:9001" => "http://:9001"
  line 8: models[0].endpoints[0].url: expected http://host:port
put "http://127.0.0.1:9001" => "http://a b:9001"
  line 8: models[0].endpoints[0].url: expected http://host:port
put "http://127.0.0.1:9001" => "http://[::g]:9001"
  line 8: models[0].endpoints[0].url: expected http://host:port
put "http://127.0.0.1:9001" => "http://h:1" }, { url: "http://H:1/"
  line 8: models[0].endpoints[1].url: already stands at `models[0].endpoints[0]`
put task: text-generation => parameters: { force: { model: x } }⏎    task: text-generation
  line 6: models[0].parameters.force.model: `model` is written by the gateway
put task: text-generation => parameters: { max: { n: "4" } }⏎    task: text-generation
  line 6: models[0].parameters.max.n: expected a number
put "http://127.0.0.1:9001" => "http://h:1" }, { url: "http://H:1/v2", max_concurrent_requests: 5
  line 8: models[0].endpoints[1].max_concurrent_requests: 5 permits, but 4 at `models[0].endpoints[0]` for the same server
put "http://127.0.0.1:9001" => "http://h:1", api_key: "${EMPTY}"
  line 8: models[0].endpoints[0].api_key: must not be empty
put "http://127.0.0.1:9001" => "http://h:1", api_key: "${TWO_LINES}"
  line 8: models[0].endpoints[0].api_key: a line break
add readiness: { require_models: ["*", lama] }
  line 9: readiness.require_models[1]: no model has the id "lama"
put "http://127.0.0.1:9001" => "http://h:1", auth: api-key
  line 8: models[0].endpoints[0].auth: add `api_key`
put "http://127.0.0.1:9001" => "http://h:1", api_key: k, auth: query
  line 8: models[0].endpoints[0].auth: a name is missing
put "http://127.0.0.1:9001" => "http://h:1", api_key: k, auth_name: x
  line 8: models[0].endpoints[0].auth_name: only `auth: header` and `auth: query`
put "http://127.0.0.1:9001" => "http://h:1", api_key: k, auth: header, auth_name: Host
  line 8: models[0].endpoints[0].auth_name: written by the gateway
put "http://127.0.0.1:9001" => "http://h:1", api_key: k, auth: query, auth_name: "a b"
  line 8: models[0].endpoints[0].auth_name: expected the name of a query parameter
put "http://127.0.0.1:9001" => "http://h:1", headers: { "x y": z }
  line 8: models[0].endpoints[0].headers["x y"]: expected the name of a header
put "http://127.0.0.1:9001" => "http://h:1", headers: { Authorization: z }
  line 8: models[0].endpoints[0].headers.Authorization: a key goes into `api_key`
put "http://127.0.0.1:9001" => "http://h:1", headers: { x-a: "1", X-A: "2" }
  line 8: models[0].endpoints[0].headers.X-A: in other letters
put "http://127.0.0.1:9001" => "http://h:1", headers: { x-a: "${TWO_LINES}" }
  line 8: models[0].endpoints[0].headers.x-a: a line break
add tracing: { otlp: { endpoint: "http://c:1", headers: { "x key": z } } }
  line 9: tracing.otlp.headers["x key"]: expected the name of a header
add tracing: { otlp: { endpoint: "http://c:1", headers: { authorization: "${TWO_LINES}" } } }
  line 9: tracing.otlp.headers.authorization: a line break
put "http://127.0.0.1:9001" => "http://h:1", health: { path: health }
  line 8: models[0].endpoints[0].health.path: such as /health
put "http://127.0.0.1:9001" => "http://h:1", loopback: { path: events }
  line 8: models[0].endpoints[0].loopback.path: such as /loopback
put "http://127.0.0.1:9001" => "http://h:1", loopback: { path: /events, lease_secs: 0 }
  line 8: models[0].endpoints[0].loopback.lease_secs: from 1 to
put backend: openai⏎    endpoints: [{ url: "http://127.0.0.1:9001" }] => backend: cog⏎    endpoints: [{ url: "http://h:1", loopback: { path: /x } }]
  line 8: models[0].endpoints[0].loopback: remove the key
put "http://127.0.0.1:9001" => "http://h:1", loopback: {}
  line 8: models[0].endpoints[0].loopback.path: `path` is required
put task: text-generation => out_of_capacity_retries: -1⏎    task: text-generation
  line 6: models[0].out_of_capacity_retries: expected a whole number
put "http://127.0.0.1:9001" => "http://h:1", health: { interval_secs: 0 }
  line 8: models[0].endpoints[0].health.interval_secs: from 1 to
put "http://127.0.0.1:9001" => "http://h:1", backend_model: ""
  line 8: models[0].endpoints[0].backend_model: must not be empty
put backend: openai => backend: tei
  line 7: models[0].backend: `tei` serves text-embeddings and text-classification only
put text-generation⏎    backend: openai => text-embeddings⏎    backend: tgi
  line 7: models[0].backend: `tgi` serves text-generation only
"#,
    );
}

#[test]
fn discovery_has_one_source_that_can_be_asked() {
    check(
        r#"
put - id: llama => - id: llama⏎    discovery: {}
  line 6: models[0].discovery: add one of file, dns, consul, kubernetes
put - id: llama => - id: llama⏎    discovery: 5
  line 6: models[0].discovery: expected a mapping
put - id: llama => - id: llama⏎    discovery: { dns: "h:1", file: f }
  line 6: models[0].discovery.dns: keep one of file, dns, consul, kubernetes
put - id: llama => - id: llama⏎    discovery: { dns: "http://h:1" }
  line 6: models[0].discovery.dns: expected host:port
put - id: llama => - id: llama⏎    discovery: { dns: h }
  line 6: models[0].discovery.dns: the port is missing
put - id: llama => - id: llama⏎    discovery: { dns: "h:0" }
  line 6: models[0].discovery.dns: from 1 to 65535
put - id: llama => - id: llama⏎    discovery: { file: "" }
  line 6: models[0].discovery.file: must not be empty
put - id: llama => - id: llama⏎    discovery: { file: f, every_secs: 0 }
  line 6: models[0].discovery.every_secs: from 1 to 3600
put - id: llama => - id: llama⏎    discovery: { file: f, max_concurrent_requests: 0 }
  line 6: models[0].discovery.max_concurrent_requests: from 1 to 65536
put - id: llama => - id: llama⏎    discovery: { file: f, api_key: "${EMPTY}" }
  line 6: models[0].discovery.api_key: must not be empty
put - id: llama => - id: llama⏎    discovery: { file: f, backend_model: "" }
  line 6: models[0].discovery.backend_model: must not be empty
put - id: llama => - id: llama⏎    discovery: { file: f, url: "http://h:1" }
  line 6: models[0].discovery.url: unknown key `url`
put - id: llama => - id: llama⏎    discovery: { consul: { url: "http://c:8500" } }
  line 6: models[0].discovery.consul.service: `service` is required
put - id: llama => - id: llama⏎    discovery: { consul: { url: "c:8500", service: s } }
  line 6: models[0].discovery.consul.url: expected http://host:port
put - id: llama => - id: llama⏎    discovery: { consul: { url: "http://c:8500", service: "a b" } }
  line 6: models[0].discovery.consul.service: expected letters, digits
put - id: llama => - id: llama⏎    discovery: { consul: { url: "http://c:8500", service: s, tag: "a&b" } }
  line 6: models[0].discovery.consul.tag: expected letters, digits
put - id: llama => - id: llama⏎    discovery: { consul: { url: "http://c:8500", service: s, token: "${TWO_LINES}" } }
  line 6: models[0].discovery.consul.token: a line break
put - id: llama => - id: llama⏎    discovery: { kubernetes: { service: s } }
  line 6: models[0].discovery.kubernetes.namespace: `namespace` is required
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: "a/b" } }
  line 6: models[0].discovery.kubernetes.service: expected at most 63 of a-z
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, port: [1] } }
  line 6: models[0].discovery.kubernetes.port: expected a name or a whole number
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, port: 65536 } }
  line 6: models[0].discovery.kubernetes.port: 65536 is too large
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, port: HTTP } }
  line 6: models[0].discovery.kubernetes.port: expected at most 63 of a-z
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, api: "k:443" } }
  line 6: models[0].discovery.kubernetes.api: expected http://host:port
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, token_file: "" } }
  line 6: models[0].discovery.kubernetes.token_file: must not be empty
put - id: llama => - id: llama⏎    discovery: { kubernetes: { namespace: n, service: s, api: "http://k:1", ca_file: c } }
  line 6: models[0].discovery.kubernetes.ca_file: only an https API
put - id: llama => - id: llama⏎    discovery: { file: f, kubernetes: { namespace: n, service: s } }
  line 6: models[0].discovery.kubernetes: keep one of file, dns, consul, kubernetes
"#,
    );
}

#[test]
fn variables_that_are_unset_or_misspelt_are_errors() {
    check(
        r#"
put "http://127.0.0.1:9001" => "http://h:1", api_key: "${NO_SUCH}"
  line 8: models[0].endpoints[0].api_key: environment variable NO_SUCH is not set
add node: { id: "${A}-${B}" }
  line 9: node.id: environment variables A, B are not set
add state_dir: "${HOME"
  line 9: state_dir: without its `}`
add state_dir: "${}"
  line 9: state_dir: not a variable's name
"#,
    );
}

#[test]
fn other_nodes_are_let_in_at_an_own_address_with_all_three_files_by_a_name_that_can_be_certified() {
    check(
        r#"
put anonymous: =>   peers: { address: "127.0.0.1:7070" }⏎anonymous:
  line 3: listen.peers.tls: `tls` is required
put anonymous: =>   peers: { address: "127.0.0.1:7070", tls: { certificate: c, private_key: k } }⏎anonymous:
  line 3: listen.peers.tls.client_ca: `client_ca` is required
put anonymous: =>   peers: { address: "127.0.0.1:7070", tls: { certificate: c, private_key: "", client_ca: a } }⏎anonymous:
  line 3: listen.peers.tls.private_key: must not be empty
put anonymous: =>   peers: { address: "127.0.0.1:8080", tls: { certificate: c, private_key: k, client_ca: a } }⏎anonymous:
  line 3: listen.peers.address: is already the address of `listen.clients[0].address`
put anonymous: =>   peers: { address: "127.0.0.1:7070", tls: { certificate: c, private_key: k, client_ca: a } }⏎node: { id: "a." }⏎anonymous:
  line 4: node.id: is no DNS name
put anonymous: =>   peers: { address: "127.0.0.1:7070", tls: { certificate: c, private_key: k, client_ca: a } }⏎node: { id: "10.0.0.1" }⏎anonymous:
  line 4: node.id: is no DNS name
"#,
    );
}

/// A file of a node in a fleet, with what stands under `cluster` besides.
fn in_fleet(listen: &str, node: &str, cluster: &str) -> String {
    let peers = "  peers: { address: \"127.0.0.1:7070\", tls: { certificate: c, private_key: k, client_ca: a } }⏎";
    let listen = listen.replace("PEERS", peers);
    format!("put anonymous: => {listen}{node}cluster: {{ {cluster} }}⏎anonymous:")
}

#[test]
fn a_fleet_takes_a_name_a_way_to_the_node_and_a_secret() {
    let gossip = r#"gossip: "127.0.0.1:7071""#;
    let node = "node: { id: a1 }⏎";
    let with = |more: &str| in_fleet("PEERS", node, &format!("{gossip}, {more}"));
    let at = |more: &str| in_fleet("PEERS", node, more);
    let long = format!("node: {{ id: {} }}⏎", "a.".repeat(70) + "a");
    let cases = [
        (
            in_fleet("", node, gossip),
            "line 4: cluster: add `listen.peers`",
        ),
        (
            in_fleet("PEERS", "", gossip),
            "line 4: cluster: add `node.id`",
        ),
        (
            in_fleet("PEERS", &long, gossip),
            "line 4: node.id: too long",
        ),
        (
            at(r#"seeds: ["h:1"]"#),
            "line 5: cluster.gossip: `gossip` is required",
        ),
        (
            at("gossip: here"),
            "line 5: cluster.gossip: expected an IP address and a port",
        ),
        (
            at(r#"gossip: "0.0.0.0:7071", secret: 0123456789abcdef"#),
            "line 5: cluster.gossip: add `cluster.advertise`",
        ),
        (
            at(r#"gossip: "127.0.0.1:0""#),
            "line 5: cluster.gossip: add `cluster.advertise`",
        ),
        (
            with(r#"advertise: "[::]:7071""#),
            "line 5: cluster.advertise: other nodes cannot send to",
        ),
        (
            at(r#"gossip: "10.0.0.1:7071""#),
            "line 5: cluster: add `secret`",
        ),
        (
            with("secret: 0123456789abcde"),
            "line 5: cluster.secret: shorter than 16 bytes",
        ),
        (
            with(r#"node_names: ["gpu/1", "a*"]"#),
            "line 5: cluster.node_names[0]: no pattern of names",
        ),
        (
            with(r#"node_names: ["gpu-*"]"#),
            "line 5: cluster.node_names: this node's own `node.id`",
        ),
        (
            with(r#"seeds: ["a2"]"#),
            "line 5: cluster.seeds[0]: the port is missing",
        ),
        (
            with(r#"seeds: ["[::1]:0"]"#),
            "line 5: cluster.seeds[0]: expected host:port",
        ),
        (
            with("discovery: konsul"),
            "line 5: cluster.discovery: did you mean `consul`?",
        ),
        (
            with("discovery: consul"),
            "line 5: cluster: add `consul` with `url` and `service`",
        ),
        (
            with(r#"consul: { url: "http://c:1", service: s }"#),
            "line 5: cluster.consul: never asked",
        ),
        (
            with(r#"discovery: consul, consul: { url: "c:1", service: s }"#),
            "line 5: cluster.consul.url: expected http://host:port",
        ),
        (
            with(
                r#"discovery: consul, consul: { url: "http://c:1", service: s, datacenter: "d c" }"#,
            ),
            "line 5: cluster.consul.datacenter: expected letters, digits",
        ),
    ];
    for (edit, expected) in cases {
        check(&format!("{edit}\n  {expected}"));
    }
}

#[test]
fn what_is_not_supported_yet_says_so() {
    check(
        r#"
add tls: {}
  line 9: tls: is not supported yet
put backend: openai⏎    endpoints: [{ url: "http://127.0.0.1:9001" }] => backend: cog⏎    trainer: llama⏎    endpoints: [{ url: "http://127.0.0.1:9001", max_concurrent_requests: 1 }]
  line 8: models[0].trainer: trainings are not posted to servers of backend `cog` yet
"#,
    );
}

#[test]
fn what_is_no_socket_of_a_model_server_is_named() {
    check(
        r#"
put http://127.0.0.1:9001 => unix:run/m.sock
  line 8: models[0].endpoints[0].url: expected `unix:` and the absolute path of a socket
put http://127.0.0.1:9001 => unix:/run/m.sock:v1
  line 8: models[0].endpoints[0].url: behind the path of a socket only a path prefix
put url: "http://127.0.0.1:9001" => url: "unix:/run/m.sock", http2: auto
  line 8: models[0].endpoints[0].http2: HTTP/2 is agreed on in the TLS handshake
put { url: "http://127.0.0.1:9001" } => { url: "unix:/run/m" }, { url: "unix:/run/m" }
  line 8: models[0].endpoints[1].url: this endpoint already stands at
"#,
    );
}

#[test]
fn what_a_listener_cannot_speak_is_named() {
    check(
        r#"
put [{ address: "127.0.0.1:8080" }] => [{ address: "127.0.0.1:8080" }]⏎  admin: { tls: { certificate: c } }
  line 3: listen.admin.tls.private_key: `private_key` is required
put { address: "127.0.0.1:8080" } => { address: "unix:relative" }
  line 2: listen.clients[0].address: expected `unix:` and an absolute path
put { address: "127.0.0.1:8080" } => { address: "unix:/a" }, { address: "unix:/a" }
  line 2: listen.clients[1].address: unix:/a is already the address of `listen.clients[0].address`
put { address: "127.0.0.1:8080" } => { address: "unix:/a", tls: { certificate: c, private_key: k } }
  line 2: listen.clients[0].tls: a socket in the file system has no TLS
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1:8080", http2: clear, tls: { certificate: c, private_key: k } }
  line 2: listen.clients[0].http2: `clear` is for plain text
put { address: "127.0.0.1:8080" } => { address: "127.0.0.1:8080", tls: { certificate: c } }
  line 2: listen.clients[0].tls.private_key: `private_key` is required
"#,
    );
}

#[test]
fn a_key_that_was_renamed_is_refused_with_its_new_name_and_its_line() {
    check(
        r#"
put - id: llama => - id: llama⏎    ladder: [n]
  line 6: models[0].ladder: `ladder` is called `fallbacks` now: rename the key
put - id: llama => - id: llama⏎    ladder: n
  line 6: models[0].ladder: `ladder` is called `fallbacks` now: rename the key
"#,
    );
}

/// A second model before the first one, with more keys.
fn other(task: &str, more: &str) -> String {
    format!(
        "- {{ id: long-nome, task: {task}, backend: openai, endpoints: [{{ url: \"http://h:1\" }}]{more} }}⏎  - id: llama"
    )
}

#[test]
fn fallbacks_are_other_models_of_the_task_once_each_without_a_circle() {
    let other_text = other("text-generation", "");
    let embedding = other("text-embeddings", "");
    let back = other("text-generation", ", fallbacks: [llama]");
    check(&format!(
        r#"
put - id: llama => - id: llama⏎    fallbacks: [n]
  line 6: models[0].fallbacks[0]: no model is called "n": add it under `models`
put - id: llama => - id: llama⏎    fallbacks: [llama]
  line 6: models[0].fallbacks[0]: a model is not its own fallback
put - id: llama => - id: llama⏎    fallbacks: [a]⏎    aliases: [a]
  line 6: models[0].fallbacks[0]: "a" is an alias: write the model's id, "llama"
put - id: llama => {other_text}⏎    fallbacks: [long-name]
  line 7: models[1].fallbacks[0]: did you mean "long-nome"?
put - id: llama => {other_text}⏎    fallbacks: [long-nome, long-nome]
  line 7: models[1].fallbacks[1]: named as a fallback already
put - id: llama => {embedding}⏎    fallbacks: [long-nome]
  line 7: models[1].fallbacks[0]: "long-nome" does text-embeddings and this model text-generation
put - id: llama => {back}⏎    fallbacks: [long-nome]
  line 7: models[1].fallbacks[0]: a circle: the fallbacks of "long-nome" lead to "llama"
put - id: llama => - id: llama⏎    fallbacks: [1]
  line 6: models[0].fallbacks[0]: expected text
put - id: llama => - id: llama⏎    fallbacks: [a, a, a, a, a, a, a, a, a]
  line 6: models[0].fallbacks: at most 8 items
put - id: llama => - id: llama⏎    fallbacks: n
  line 6: models[0].fallbacks: expected a list
put - id: llama => - id: llama⏎    pin_primary: 1
  line 6: models[0].pin_primary: expected true or false
"#
    ));
}

#[test]
fn plugins_have_names_digests_and_grants_that_exist() {
    check(
        r#"
add plugins: [{ world: billing-formula, file: f, dev: true }]
  line 9: plugins[0].name: `name` is required
add plugins: [{ name: p, file: f, dev: true }]
  line 9: plugins[0].world: `world` is required: add it (one of task-schema, task-schema-streaming
add plugins: [{ name: p, world: billing-formula, dev: true }]
  line 9: plugins[0].file: `file` is required
add plugins: [{ name: p, world: billing, file: f, dev: true }]
  line 9: plugins[0].world: found "billing": did you mean `billing-
add plugins: [{ name: p, world: billing-formula, file: f }]
  line 9: plugins[0].sha256: `sha256` is required: `sha256sum FILE`
add plugins: [{ name: p, world: billing-formula, file: f, dev: false }]
  line 9: plugins[0].sha256: `dev: true` takes the file
add plugins: [{ name: p, world: billing-formula, file: f, sha256: abc }]
  line 9: plugins[0].sha256: expected the 64 hex digits of the file's SHA-256, found "abc"
add plugins: [{ name: p, world: billing-formula, file: "", dev: true }]
  line 9: plugins[0].file: must not be empty
add plugins: [{ name: p q, world: billing-formula, file: f, dev: true }]
  line 9: plugins[0].name: ' ' cannot stand in a name
add plugins: [{ name: "", world: billing-formula, file: f, dev: true }]
  line 9: plugins[0].name: must not be empty
add plugins:⏎  - { name: p, world: billing-formula, file: f, dev: true }⏎  - { name: p, world: routing-policy, file: g, dev: true }
  line 11: plugins[1].name: "p" is already the name of `plugins[0]`
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [logs] }]
  line 9: plugins[0].grants[0]: did you mean `log`?
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [clock] }]
  line 9: plugins[0].grants[0]: log, counters and tables:<name>, nothing else
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [tables] }]
  line 9: plugins[0].grants[0]: one by one, as in "tables:price_book"
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [log, log] }]
  line 9: plugins[0].grants[1]: already stands above
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: ["tables:t"] }]
  line 9: plugins[0].grants[0]: no table is called "t": add it under `plugins[0].tables`
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, tables: { t: t.json } }]
  line 9: plugins[0].tables.t: not granted: add "tables:t" to `plugins[0].grants`, or remove it
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [counters], counters: [a, a] }]
  line 9: plugins[0].counters[1]: "a" already stands above
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: [counters], counters: ["a b"] }]
  line 9: plugins[0].counters[0]: cannot stand in a name
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, grants: ["tables:t"], tables: { t: "" } }]
  line 9: plugins[0].tables.t: must not be empty
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, limits: { memory_mib: 4096 } }]
  line 9: plugins[0].limits.memory_mib: 4096 is too large: expected a whole number from 1 to 128
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, limits: { deadline_ms: 0 } }]
  line 9: plugins[0].limits.deadline_ms: 0 is too small
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, limits: { fuel: 1 } }]
  line 9: plugins[0].limits.fuel: the keys here are memory_mib, deadline_ms, output_kib, set_kib
add plugins: [{ name: p, world: routing-policy, file: f, dev: true, on_failure: closed }]
  line 9: plugins[0].on_failure: "closed" is for tasks: when a routing plugin fails
add plugins: [{ name: p, world: task-schema, file: f, dev: true, on_failure: open }]
  line 9: plugins[0].on_failure: expected one of builtin, closed, passthrough, cut, found "open"
add plugins: [{ name: p, world: task-schema, file: f, dev: true, mode: per-request }]
  line 9: plugins[0].mode: only routing policies have a mode
add plugins: [{ name: p, world: billing-formula, file: f, dev: true, openai_answers: shape }]
  line 9: plugins[0].openai_answers: only tasks shape answers
add plugins: [{ name: p, world: task-schema, file: f, dev: true, settings: [1] }]
  line 9: plugins[0].settings: expected a mapping with keys below it, found a list
add plugins: [{ name: p, world: task-schema, file: f, dev: true, instance: pooled }]
  line 9: plugins[0].instance: expected one of auto, fresh
"#,
    );
}

#[test]
fn a_model_names_plugins_that_are_declared_for_that_role_or_built_in() {
    check(
        r#"
put task: text-generation => plugins: { billing: nuerons }⏎    task: text-generation
  line 6: models[0].plugins.billing: no plugin and no built-in is called "nuerons": did you mean `neurons`?
put task: text-generation => plugins: { routing: round-robin }⏎    task: text-generation
  line 6: models[0].plugins.routing: or use one of latency, random, forced-site, resource-flow, affinity
put task: text-generation => plugins: { task: translation }⏎    task: text-generation
  line 6: models[0].plugins.task: the built-in "translation" is for models of that task, and this one's is text-generation
put task: text-generation => plugins: { routing: neurons }⏎    task: text-generation
  line 6: models[0].plugins.routing: no plugin and no built-in is called "neurons"
put task: text-generation => plugins: { price: neurons }⏎    task: text-generation
  line 6: models[0].plugins.price: the keys here are task, billing, routing
put anonymous: allow⏎models:⏎  - id: llama => anonymous: allow⏎plugins: [{ name: p, world: billing-formula, file: f, dev: true }]⏎models:⏎  - id: llama⏎    plugins: { routing: p }
  line 7: models[0].plugins.routing: "p" is declared with the world billing-formula, which decides about billing: declare it under `plugins`
put anonymous: allow⏎models:⏎  - id: llama => anonymous: allow⏎plugins: [{ name: check, world: task-schema, file: f, dev: true }]⏎models:⏎  - id: llama⏎    plugins: { task: chek }
  line 7: models[0].plugins.task: did you mean `check`?
"#,
    );
}

#[test]
fn prices_are_numbers_from_zero_on_and_tasks_have_backends_that_serve_them() {
    check(
        r#"
put task: text-generation => tariff: { cost_per_infer: -1 }⏎    task: text-generation
  line 6: models[0].tariff.cost_per_infer: -1 is too small: expected a number, at least 0
put task: text-generation => tariff: { cost_per_infer: .inf }⏎    task: text-generation
  line 6: models[0].tariff.cost_per_infer: expected a number, at least 0, found ".inf"
put task: text-generation => tariff: { coefficients: { output_tokens: .nan } }⏎    task: text-generation
  line 6: models[0].tariff.coefficients.output_tokens: expected a number, found ".nan"
put task: text-generation => tariff: { coefficients: { output_tokens: 1e999 } }⏎    task: text-generation
  line 6: models[0].tariff.coefficients.output_tokens: expected a number, found "1e999"
put task: text-generation => tariff: { coefficients: { output_tokens: -1e-06 } }⏎    task: text-generation
  line 6: models[0].tariff.coefficients.output_tokens: is below 0
put task: text-generation => tariff: { coefficients: { output_tokens: "0.5" } }⏎    task: text-generation
  line 6: models[0].tariff.coefficients.output_tokens: write it without quotes
put task: text-generation => tariff: { coefficients: { "output tokens": 1 } }⏎    task: text-generation
  line 6: models[0].tariff.coefficients["output tokens"]: ' ' cannot stand in a name
put task: text-generation => tariff: { coefficient: { output_tokens: 1 } }⏎    task: text-generation
  line 6: models[0].tariff.coefficient: did you mean `coefficients`?
add tariff: { cost_per_infer: 1 }
  line 9: tariff: it belongs at `models[].tariff`
put task: text-generation => metrics_trust: maybe⏎    task: text-generation
  line 6: models[0].metrics_trust: expected one of trust, estimate, compare
put task: text-generation => metrics: { output_tokens: total }⏎    task: text-generation
  line 6: models[0].metrics.output_tokens: expected one of cumulative, incremental
add accounts: [{ id: a, neurons_per_day: -1 }]
  line 9: accounts[0].neurons_per_day: too small
put task: text-generation => task: object-detection
  line 7: models[0].backend: backend `openai` serves text-generation and text-embeddings and text-to-image and text-to-speech and automatic-speech-recognition and text-classification only, and the task is object-detection: use triton or cog or http
put text-generation⏎    backend: openai => translation⏎    backend: tei
  line 7: models[0].backend: backend `tei` serves text-embeddings and text-classification only, and the task is translation: use triton or cog or http
"#,
    );
}

#[test]
fn yaml_mistakes_come_with_their_line_and_advice() {
    check(
        r#"
add threads: 1⏎threads: 2
  line 10: threads: this key already stands on line 9
put id: llama => id: llama⏎    id: llama
  line 6: models[0].id: already stands on line 5
put id: llama => id: @cf/meta/llama
  line 5: models[0].id: begins with `@` needs quotes
add accounts: [{ id: a, models: [*] }]
  line 9: accounts[0]: needs quotes
add limits:⏎⇥request_body_mib: 4
  line 10: limits: indent with spaces
put anonymous: allow => anonymous: allow: deny
  line 3: check the indentation, or quote
add node: { id: "open }
  line 9: node.id: never closed
add   anonymous: deny
  line 9: models[1]: indentation
add <<: { threads: 1 }
  line 9: merge keys
add threads: !secret 1
  line 9: threads: tag
add ? [a]⏎: 1
  line 9: a key must be plain text
add node: *nothing
  line 9: node: no `&name` above it
add node: &n { id: *n }
  line 9: node.id: inside its own anchor
add ---⏎threads: 1
  line 9: a second document
"#,
    );
}

#[test]
fn headers_that_never_pass_are_not_listed() {
    check(
        r#"
add headers: { pass: [authorization] }
  line 9: headers.pass[0]: `authorization` never passes
add headers: { pass: [x-tenant, X-Trace] }
  line 9: headers.pass[1]: write "x-trace"
add headers: { pass: ["x tenant"] }
  line 9: headers.pass[0]: is not the name of a header
add headers: { pass: [x-infergate-site] }
  line 9: headers.pass[0]: `x-infergate-site` never passes
"#,
    );
}

#[test]
fn an_origin_is_listed_as_browsers_write_it() {
    check(
        r#"
add cors: { origins: ["https://a.example/"] }
  line 9: cors.origins[0]: remove it
add cors: { origins: ["*", "https://a.example/app"] }
  line 9: cors.origins[1]: an origin has no path
add cors: { origins: ["a.example"] }
  line 9: cors.origins[0]: write scheme://host[:port]
add cors: { origins: ["https://A.example"] }
  line 9: cors.origins[0]: write "https://a.example"
add cors: { origins: ["https://a.example:443"] }
  line 9: cors.origins[0]: browsers leave out the port 443
"#,
    );
}
