//! Metrics and reports of a GPU host over runs with loads, evictions, crashes, drains and refusals.
//!
//! Processes, leases and memory are real; only the card is simulated.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::gpu_host::{ask_as, becomes, host, host_with, order, serve, signal, slot};
use crate::support::{Node, eventually};

fn model(id: &str, mib: u64, arguments: &str, more: &str) -> String {
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: {mib} }}, \
         process: {{ preset: simulate, arguments: [\"--ttft-ms\", \"50\"{arguments}] }}{more} }}\n"
    )
}

async fn metric_is(node: &Node, series: &str, expected: f64) {
    let mut seen = None;
    eventually(&format!("{series} is {expected}"), async || {
        seen = node.metric(series).await;
        (seen == Some(expected)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn metrics_count_loads_evictions_crashes_and_requests_for_cold_models() {
    let dir = tempfile::tempdir().unwrap();
    let slow = ", \"--load-secs\", \"600\"";
    let models = [
        model("a", 16_000, "", ""),
        model("b", 16_000, "", ""),
        model("slow", 100, slow, ""),
        model("huge", 99_000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "a").await;
    serve(&node, "b").await;
    becomes(&node, "a", "cold").await;
    becomes(&node, "b", "ready").await;
    signal(&slot(&node, "b").await, "-KILL");
    let crashes = "infergate_instance_crashes_total{model=\"b\"}";
    metric_is(&node, crashes, 1.0).await;
    let refused = ask_as(&node, "x-infergate-queue: reject\r\n", "slow").await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    for (series, expected) in [
        ("gpu_device_up{device=\"0 simulated\"}", 1.0),
        ("gpu_over_lease_mib{device=\"0 simulated\"}", 0.0),
        ("instance_loads_total{model=\"a\",result=\"ready\"}", 1.0),
        ("instance_load_seconds_count{model=\"a\"}", 1.0),
        (
            "instance_evictions_total{model=\"a\",reason=\"victim\"}",
            1.0,
        ),
        ("instance_crashes_total{model=\"a\"}", 0.0),
        ("instances{model=\"huge\",state=\"cold\"}", 1.0),
        ("model_swap_wait_seconds_count{model=\"a\"}", 1.0),
        (
            "vram_estimate_mib{model=\"a\",source=\"manifest\"}",
            16_000.0,
        ),
        ("cold_requests_total{model=\"a\",result=\"served\"}", 1.0),
        (
            "cold_requests_total{model=\"slow\",result=\"refused\"}",
            1.0,
        ),
        ("vram_claims{kind=\"job\"}", 0.0),
        ("orphans_killed_total", 0.0),
        ("gpu_reports_dropped_total", 0.0),
    ] {
        metric_is(&node, &format!("infergate_{series}"), expected).await;
    }
    let total = "infergate_gpu_memory_bytes{device=\"0 simulated\",kind=\"total\"}";
    let (total, mib) = (node.metric(total).await.unwrap(), 1_048_576.0);
    assert!(
        (20_000.0 * mib..=24_000.0 * mib).contains(&total),
        "{total}"
    );
    let lost = "infergate_gpu_swap_lost_seconds_total{device=\"0 simulated\"}";
    let lost = node.metric(lost).await.unwrap();
    assert!(lost > 0.0, "b came after a had left: {lost}");
    // A client whose time is over before the model is there.
    let left = ask_as(&node, "x-infergate-timeout-ms: 4000\r\n", "slow").await;
    assert_ne!(left.status, 200);
    eventually("the request is counted", async || {
        let of = async |result: &str| {
            let series =
                format!("infergate_cold_requests_total{{model=\"slow\",result=\"{result}\"}}");
            node.metric(&series).await.unwrap()
        };
        (of("refused").await + of("left").await == 2.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_gateway_without_a_host_has_no_metric_of_one() {
    let node = Node::start("models: []\n").await;
    let text = node.get("/metrics").await.text();
    for word in ["infergate_gpu_", "infergate_vram_", "infergate_orphans"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

/// Receiver of reports, which takes only those with the bearer token `secret`.
struct ReportReceiver {
    address: SocketAddr,
    reports: Arc<Mutex<Vec<Value>>>,
    _tasks: JoinSet<()>,
}

impl ReportReceiver {
    async fn start() -> ReportReceiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reports = Arc::<Mutex<Vec<Value>>>::default();
        let to = Arc::clone(&reports);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(receive(stream, Arc::clone(&to)));
            }
        });
        ReportReceiver {
            address,
            reports,
            _tasks: tasks,
        }
    }

    /// Keys of `gpu` that send reports here, and to files in `dir`.
    fn keys(&self, dir: &Path) -> String {
        format!(
            "  reports: {{ url: \"http://{}/reports\", token: secret, every_secs: 1, file: {} }}\n  events: {{ file: {} }}\n",
            self.address,
            dir.join("reports.jsonl").display(),
            dir.join("lifecycle.jsonl").display()
        )
    }

    fn of(&self, kind: &str) -> Vec<Value> {
        let reports = self.reports.lock();
        let own = reports.iter().filter(|report| report["report"] == kind);
        own.cloned().collect()
    }
}

async fn receive(mut stream: TcpStream, reports: Arc<Mutex<Vec<Value>>>) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let Some(end) = text.find("\r\n\r\n") else {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        assert!(text.starts_with("post /reports http/1.1"), "{text}");
        assert!(text.contains("authorization: bearer secret\r\n"), "{text}");
        let length = text.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        let whole = end + 4 + length;
        while bytes.len() < whole {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let body: Vec<u8> = bytes.drain(..whole).skip(end + 4).collect();
        reports.lock().push(serde_json::from_slice(&body).unwrap());
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn sum(reports: &[Value], member: &str) -> f64 {
    reports.iter().map(|it| it[member].as_f64().unwrap()).sum()
}

#[tokio::test]
async fn reports_cover_a_run_with_a_crash_and_a_drain_to_the_millisecond() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = ReportReceiver::start().await;
    let models = [model("m", 8000, "", "")];
    let node = Node::start(&host_with(dir.path(), &receiver.keys(dir.path()), &models)).await;
    // Loaded before it is asked for: a request that waits takes its permit a little after the grant.
    order(&node, "m", "load").await;
    let first = becomes(&node, "m", "ready").await["instance"].clone();
    for _ in 0..3 {
        serve(&node, "m").await;
    }
    signal(&slot(&node, "m").await, "-KILL");
    eventually("the crash is seen", async || {
        (slot(&node, "m").await["state"] != "ready").then_some(())
    })
    .await;
    order(&node, "m", "retry").await;
    let second = becomes(&node, "m", "ready").await["instance"].clone();
    assert_ne!(first, second);
    for _ in 0..3 {
        serve(&node, "m").await;
    }
    order(&node, "m", "unload").await;
    becomes(&node, "m", "cold").await;
    let lifecycle = dir.path().join("lifecycle.jsonl");
    let life_secs = |instance: &Value| {
        let events = lines(&lifecycle);
        let of = |state: &str| {
            let mut own = events.iter().filter(|it| it["instance"] == *instance);
            own.find(|it| it["to"] == state)?["ms"].as_u64()
        };
        // The search for leases began a little before they were held.
        let end = of("reclaiming").or_else(|| of("failed"))?;
        Some((end - of("loading")?) as f64 / 1000.0)
    };
    let reports = eventually("all time of both lives is reported", async || {
        let reports = receiver.of("instance");
        let is_whole = [&first, &second].iter().all(|instance| {
            let mut own = reports.clone();
            own.retain(|it| it["instance_id"] == **instance);
            life_secs(instance).is_some_and(|life| sum(&own, "metric_duration") >= life - 0.002)
        });
        is_whole.then_some(reports)
    })
    .await;
    for report in &reports {
        let times = ["active_time", "boot_time", "idle_time"];
        let total: f64 = times.iter().map(|it| report[it].as_f64().unwrap()).sum();
        let duration = report["metric_duration"].as_f64().unwrap();
        assert!((total - duration).abs() <= 0.001, "{report}");
        let active = report["utilization"].as_f64().unwrap() * duration;
        assert!((active - report["active_time"].as_f64().unwrap()).abs() <= 0.001);
        assert_eq!(report["deployment_key"], "m");
        assert_eq!(report["docker_image_uri"], Value::Null);
        assert_eq!(report["hardware"], "simulated");
        assert_eq!(report["compute_unit_count"], 1);
        assert_eq!(report["instance_metadata"]["slot"], "m#0");
        assert_eq!(report["instance_metadata"]["devices"], json!(["sim0"]));
    }
    assert!(sum(&reports, "boot_time") > 0.0 && sum(&reports, "idle_time") > 0.0);
    // One request at a time: active is when a permit was held, as the events of the requests have it.
    let events = node.events(6).await;
    let held = sum(&events, "inference_time_ms") / 1000.0;
    let active = sum(&reports, "active_time");
    assert!(held > 0.2, "six answers of 50 ms and longer: {held}");
    assert!(
        (active - held).abs() <= 6.0 * 0.005,
        "{active} against {held}"
    );
    let weighted = reports.iter().map(|it| {
        it["mean_concurrency"].as_f64().unwrap() * it["metric_duration"].as_f64().unwrap()
    });
    assert!((weighted.sum::<f64>() - active).abs() <= 0.01);
    eventually("the file has what was posted", async || {
        let written = lines(&dir.path().join("reports.jsonl"));
        let written = written.iter().filter(|it| it["report"] == "instance");
        (written.count() == receiver.of("instance").len()).then_some(())
    })
    .await;
    let recorded = lines(&lifecycle);
    for event in ["transition", "lease", "load", "setup", "failure"] {
        assert!(recorded.iter().any(|it| it["event"] == event), "{event}");
    }
    metric_is(&node, "infergate_gpu_reports_dropped_total", 0.0).await;
}

#[tokio::test]
async fn each_load_has_a_setup_report_with_its_outcome_and_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = ReportReceiver::start().await;
    let command = |id: &str, script: &str| {
        format!(
            "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: 100 }}, \
             process: {{ command: [\"sh\", \"-c\", \"{script}\"] }} }}\n"
        )
    };
    let models = [
        model("ok", 1000, "", ""),
        model("canceled", 1000, ", \"--load-secs\", \"600\"", ""),
        command("failing", "echo no weights; exit 3"),
        command("greedy", "echo CUDA error: out of memory; exit 1"),
        command("late", "echo asleep; exec sleep 600")
            .replace("process: {", "process: { ready_timeout_secs: 1,"),
    ];
    let node = Node::start(&host_with(dir.path(), &receiver.keys(dir.path()), &models)).await;
    for name in ["ok", "failing", "greedy", "late", "canceled"] {
        order(&node, name, "load").await;
    }
    eventually(
        "the process of the load that is given up has started",
        async || slot(&node, "canceled").await["pid"].as_u64(),
    )
    .await;
    order(&node, "canceled", "unload").await;
    for (name, status) in [
        ("ok", "ready"),
        ("failing", "failed"),
        ("greedy", "out_of_memory"),
        ("late", "timed_out"),
        ("canceled", "aborted"),
    ] {
        let report = eventually(&format!("{name} is reported"), async || {
            let mut reports = receiver.of("setup").into_iter();
            reports.find(|it| it["deployment_key"] == name)
        })
        .await;
        assert_eq!(report["status"], status, "{report}");
        assert_eq!(report["instance_metadata"]["slot"], format!("{name}#0"));
        let of = |member: &str| report[member].as_str().unwrap().to_owned();
        assert!(of("started_at") <= of("completed_at"), "{report}");
        assert!(of("instance_id").starts_with(&format!("{name}#0-")));
        let runtime = &report["runtime_metadata"];
        assert_eq!(runtime["argv_digest"].as_str().unwrap().len(), 64);
        assert!(runtime["estimate_mib"].as_u64().unwrap() >= 100, "{report}");
        let log = match name {
            "failing" => "no weights\n",
            "greedy" => "CUDA error: out of memory\n",
            "late" => "asleep\n",
            _ => continue,
        };
        assert_eq!(report["logs"], log);
    }
    let reports = receiver.of("setup");
    let ready = reports.iter().filter(|it| it["deployment_key"] == "ok");
    assert_eq!(ready.count(), 1, "one report for one load");
}
