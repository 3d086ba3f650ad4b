//! A gateway on NVIDIA devices while their driver fails: what is ready serves on, nothing is granted on unknown figures.
//!
//! The driver is a library built here, which shows simulated cards; models are real processes that take their memory.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::gpu_host::order;
use crate::support::{Node, NvmlDouble, TestResponse, eventually};

const CARD_MIB: u64 = 24_000;

/// A host with simulated cards that the driver shows as its own, and a gateway on it.
struct Host {
    driver: NvmlDouble,
    cards: String,
    node: Node,
}

impl Host {
    /// Starts a gateway on `cards` cards, with models by their name, memory and card.
    async fn start(cards: usize, faults: &str, models: &[(&str, u64, usize)]) -> Host {
        Host::start_with("nvml", (cards, faults), models).await
    }

    /// The same with these `gpu.devices`.
    async fn start_with(
        devices: &str,
        (cards, faults): (usize, &str),
        models: &[(&str, u64, usize)],
    ) -> Host {
        let driver = NvmlDouble::new("");
        let lines: Vec<String> = (0..cards).map(|at| card(driver.dir(), at)).collect();
        let cards = lines.concat();
        driver.set(&format!("{cards}{faults}"));
        let models = models.iter().map(|model| model_text(driver.dir(), *model));
        let config = format!(
            "gpu:\n  devices: {devices}\n  ports: 11000-11999\n  reserve_mib: 0\n  ledger: {{ directory: {}/ledger }}\nmodels:\n{}",
            driver.dir().display(),
            models.collect::<String>()
        );
        let node = Node::start_in(&config, &driver.environment()).await;
        Host {
            driver,
            cards,
            node,
        }
    }

    /// Sets the faults of the driver.
    fn set(&self, faults: &str) {
        self.driver.set(&format!("{}{faults}", self.cards));
    }

    async fn ask(&self, model: &str, timeout_ms: u64) -> TestResponse {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] });
        let headers = format!("x-infergate-timeout-ms: {timeout_ms}\r\n");
        let path = "/v1/chat/completions";
        self.node.post_as(&headers, path, &body.to_string()).await
    }

    async fn serve(&self, model: &str) {
        let response = self.ask(model, 60_000).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }

    async fn report(&self) -> Value {
        self.node.get("/gpu").await.json()
    }

    async fn slot(&self, model: &str) -> Value {
        let report = self.report().await;
        let mut slots = report["slots"].as_array().unwrap().iter();
        slots.find(|it| it["model"] == model).unwrap().clone()
    }

    async fn becomes(&self, model: &str, state: &str) -> Value {
        eventually(&format!("{model} is {state}"), async || {
            let slot = self.slot(model).await;
            (slot["state"] == state).then_some(slot)
        })
        .await
    }

    /// Waits until the free memory of every device is unknown, while `model` is served.
    async fn is_blind_and_serves(&self, model: &str) {
        eventually("free memory is unknown", async || {
            self.serve(model).await;
            let report = self.report().await;
            let mut devices = report["devices"].as_array().unwrap().iter();
            let is_blind = devices.all(|device| device["free_mib"].is_null());
            (is_blind && report["problem"].is_string()).then_some(())
        })
        .await;
    }
}

/// Makes a simulated card; returns its line for the driver.
fn card(dir: &Path, index: usize) -> String {
    let folder = dir.join(format!("card{index}"));
    std::fs::create_dir(&folder).unwrap();
    let described = json!({ "total_mib": CARD_MIB, "pages": 240 });
    std::fs::write(folder.join("card.json"), described.to_string()).unwrap();
    format!("card {CARD_MIB} 240 {}\n", folder.display())
}

/// A model whose process takes its memory of one card, whatever device it was given.
fn model_text(dir: &Path, (id, mib, card): (&str, u64, usize)) -> String {
    let program = env!("CARGO_BIN_EXE_infergate");
    let folder = dir.join(format!("card{card}"));
    let command = json!([
        program,
        "simulate",
        "--address",
        "127.0.0.1:{port}",
        "--ttft-ms",
        "1",
        "--tokens-per-sec",
        "0",
        "--vram-card",
        folder,
        "--vram-mib",
        mib.to_string(),
    ]);
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: {mib} }}, process: {{ command: {command} }} }}\n"
    )
}

/// Ready models serve on, a cold one is refused by its deadline, and is loaded once the driver answers again.
async fn serves_on_and_grants_nothing_during(fault: &str) {
    let host = Host::start(1, "", &[("ready", 8000, 0), ("cold", 8000, 0)]).await;
    host.serve("ready").await;
    let before = host.becomes("ready", "ready").await;
    host.set(fault);
    host.is_blind_and_serves("ready").await;
    let refused = host.ask("cold", 500).await;
    assert!([408, 429].contains(&refused.status), "{}", refused.text());
    let cold = host.slot("cold").await;
    assert_eq!(
        (&cold["state"], &cold["leases"]),
        (&json!("cold"), &json!([]))
    );
    host.serve("ready").await;
    assert_eq!(host.slot("ready").await["pid"], before["pid"]);
    host.set("");
    host.serve("cold").await;
    assert!(host.report().await["problem"].is_null());
    assert_eq!(host.slot("ready").await["pid"], before["pid"]);
}

#[tokio::test]
async fn the_utilization_of_a_device_is_shown_while_its_driver_tells_it() {
    let host = Host::start(1, "busy 37\n", &[("m", 8000, 0)]).await;
    host.serve("m").await;
    let series = "infergate_gpu_utilization_ratio{device=\"0 Double 100\"}";
    eventually("the share is shown", async || {
        (host.node.metric(series).await == Some(0.37)).then_some(())
    })
    .await;
    host.set("");
    eventually("no share is shown", async || {
        host.node.metric(series).await.is_none().then_some(())
    })
    .await;
    host.serve("m").await;
}

#[tokio::test]
async fn a_driver_that_fails_stops_no_model_and_grants_nothing() {
    serves_on_and_grants_nothing_during("fail 999\n").await;
}

#[tokio::test]
async fn a_driver_that_hangs_stops_no_model_and_grants_nothing() {
    serves_on_and_grants_nothing_during("hang 600000\n").await;
}

/// Models of a card that fails serve on, and the other card is measured and leased.
async fn blinds_no_other_card(fault: &str, problem: &str) {
    let host = Host::start(2, "", &[("first", 14_000, 0), ("second", 14_000, 1)]).await;
    for model in ["first", "second"] {
        host.serve(model).await;
    }
    let first = host.becomes("first", "ready").await;
    host.set(fault);
    eventually("one card is unknown, with its reason", async || {
        let report = host.report().await;
        let is_known = |nth: usize| report["devices"][nth]["free_mib"].is_u64();
        let is_named = report["problem"].as_str()?.contains(problem);
        (is_named && !is_known(0) && is_known(1)).then_some(())
    })
    .await;
    order(&host.node, "second", "unload").await;
    host.becomes("second", "cold").await;
    host.serve("second").await;
    let second = host.becomes("second", "ready").await;
    assert_eq!(second["leases"][0]["device"], "GPU-double-1");
    assert_eq!(second["loads"], 2);
    host.serve("first").await;
    assert_eq!(host.slot("first").await["pid"], first["pid"]);
    host.set("");
    eventually("both are known again", async || {
        let report = host.report().await;
        let mut devices = report["devices"].as_array()?.iter();
        let are_known = devices.all(|device| device["free_mib"].is_u64());
        (are_known && report["problem"].is_null()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_card_that_fails_blinds_no_other_one() {
    blinds_no_other_card("fail_card 0 999\n", "card 0: ").await;
}

#[tokio::test]
async fn a_card_that_hangs_blinds_no_other_one() {
    blinds_no_other_card("hang_card 0\n", "card 0: the driver does not answer").await;
}

#[tokio::test]
async fn a_gateway_ends_while_its_driver_hangs() {
    let mut host = Host::start(1, "", &[("m", 8000, 0)]).await;
    host.serve("m").await;
    let pid = host.slot("m").await["pid"].as_u64().unwrap();
    host.set("hang 600000\n");
    host.is_blind_and_serves("m").await;
    host.node.signal("TERM");
    assert!(host.node.ended().await.success());
    eventually("the model has ended", async || {
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
}

/// A host may start its gateway before the driver's module is loaded.
#[tokio::test]
async fn a_driver_that_does_not_begin_is_a_problem_and_no_host_without_cards() {
    let host = Host::start_with("auto", (1, "no_init 9\n"), &[("m", 8000, 0)]).await;
    eventually("the problem is shown", async || {
        let problem = host.report().await["problem"].clone();
        problem.as_str()?.contains("NVIDIA driver").then_some(())
    })
    .await;
    host.set("");
    host.serve("m").await;
}

#[tokio::test]
async fn models_of_a_lost_device_fail_and_are_loaded_elsewhere_until_it_is_good_again() {
    // By its lease, either model would be on the first card.
    let host = Host::start(2, "", &[("first", 14_000, 0), ("second", 14_000, 1)]).await;
    for model in ["first", "second"] {
        host.serve(model).await;
    }
    let on = |slot: &Value| slot["leases"][0]["device"].as_str().map(str::to_owned);
    let first = host.becomes("first", "ready").await;
    let second = host.becomes("second", "ready").await;
    assert_eq!(on(&first).as_deref(), Some("GPU-double-0"));
    assert_eq!(on(&second).as_deref(), Some("GPU-double-1"));
    host.set("lost 0\n");
    eventually("the model of the lost device has ended", async || {
        host.serve("second").await;
        (host.slot("first").await["pid"] != first["pid"]).then_some(())
    })
    .await;
    // The other device has room for one of them.
    host.serve("first").await;
    let moved = host.becomes("first", "ready").await;
    assert_eq!(on(&moved).as_deref(), Some("GPU-double-1"));
    host.set("lost 0\nlost 1\n");
    eventually("no device is left, and requests are refused", async || {
        let refused = host.ask("first", 2000).await;
        (refused.status == 502).then_some(())
    })
    .await;
    host.set("");
    eventually("requests are served again", async || {
        (host.ask("first", 30_000).await.status == 200).then_some(())
    })
    .await;
    host.serve("second").await;
    let devices = host.report().await["devices"].clone();
    assert_eq!(devices.as_array().unwrap().len(), 2);
}

/// Two models without room together take turns.
async fn take_turns_with(faults: &str) {
    let host = Host::start(1, faults, &[("small", 8000, 0), ("large", 20_000, 0)]).await;
    for model in ["small", "large", "small", "large"] {
        host.serve(model).await;
        let device = host.report().await["devices"][0].clone();
        assert!(
            device["leased_mib"].as_u64().unwrap() <= CARD_MIB,
            "{device}"
        );
    }
    assert_eq!(host.slot("large").await["loads"], 2);
    assert!(host.slot("large").await["problem"].is_null());
}

#[tokio::test]
async fn models_take_turns_where_the_driver_lists_no_processes() {
    take_turns_with("no_processes\n").await;
}

#[tokio::test]
async fn models_take_turns_where_figures_lag() {
    take_turns_with("lag 1500\n").await;
}

#[tokio::test]
async fn memory_that_does_not_come_back_is_outside_and_the_next_load_goes_on_where_it_fits() {
    let models = [
        ("leaves", 12_000, 0),
        ("small", 8000, 0),
        ("large", 14_000, 0),
    ];
    let host = Host::start(1, "no_processes\n", &models).await;
    host.serve("leaves").await;
    // From here on the driver shows what this test says.
    let shows = |used_mib: u64| {
        let line = format!("gpu {CARD_MIB} {used_mib}\nno_processes\n");
        host.driver.set(&line);
    };
    shows(12_000);
    order(&host.node, "leaves", "unload").await;
    host.becomes("leaves", "cold").await;
    let outside_beside = async |leased_mib: u64| {
        eventually("what was not given back is outside", async || {
            let device = host.report().await["devices"][0].clone();
            let is_outside = device["outside_mib"] == 12_000;
            (is_outside && device["leased_mib"] == leased_mib).then_some(())
        })
        .await;
    };
    outside_beside(0).await;
    host.serve("small").await;
    let small = host.becomes("small", "ready").await;
    shows(20_000);
    // Before that is read, the card seems to have room where the small one is.
    outside_beside(8000).await;
    let refused = host.ask("large", 1500).await;
    assert!([408, 429].contains(&refused.status), "{}", refused.text());
    assert_eq!(host.slot("large").await["state"], "cold");
    // It comes back after all.
    shows(8000);
    host.serve("large").await;
    assert_eq!(host.slot("small").await["pid"], small["pid"]);
}

/// The slices of a card are its devices: none holds what the whole card would.
async fn slices_are_devices_with(faults: &str) {
    let host = Host::start(1, faults, &[("fits", 9000, 0), ("huge", 20_000, 0)]).await;
    host.serve("fits").await;
    let slot = host.becomes("fits", "ready").await;
    let device = slot["leases"][0]["device"].as_str().unwrap();
    assert!(device.starts_with("MIG-double-0-"), "{slot}");
    let pid = slot["pid"].as_u64().unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let visible = format!("CUDA_VISIBLE_DEVICES={device}");
    assert!(
        environment
            .split(|byte| *byte == 0)
            .any(|it| it == visible.as_bytes())
    );
    eventually("the model that no slice holds is refused", async || {
        (host.ask("huge", 2000).await.status == 502).then_some(())
    })
    .await;
    let devices = host.report().await["devices"].clone();
    let totals: Vec<_> = devices
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["total_mib"].as_u64())
        .collect();
    assert_eq!(totals, [Some(CARD_MIB / 2); 2]);
}

#[tokio::test]
async fn slices_of_a_card_are_devices_of_their_own() {
    slices_are_devices_with("mig 0\n").await;
}

#[tokio::test]
async fn slices_are_found_where_their_card_may_not_be_asked() {
    slices_are_devices_with("mig 0\nno_parent\n").await;
}

#[tokio::test]
async fn a_card_that_uses_the_memory_of_the_host_is_a_device_of_that_size() {
    let host = Host::start(1, "unified\n", &[("m", 100, 0)]).await;
    host.serve("m").await;
    let total = host.report().await["devices"][0]["total_mib"]
        .as_u64()
        .unwrap();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = meminfo
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap();
    assert!(total > 0 && total <= kib / 1024, "{total} of {kib} KiB");
}
