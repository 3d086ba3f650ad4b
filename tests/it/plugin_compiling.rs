//! A plugin that a compiler is long over holds up nothing else of the configuration.

use serde_json::{Value, json};

use crate::support::{
    Node, SimulatedServer, accounts, chat, eventually, flat_price, one_model, slow_to_compile,
};

/// Some 25 MB of code; a component has at most 32.
const FUNCTIONS_MAX: usize = 48_000;

/// A folder with one plugin after the other, and configurations that name them.
struct PluginFixture {
    dir: tempfile::TempDir,
    server: SimulatedServer,
}

impl PluginFixture {
    async fn new() -> PluginFixture {
        PluginFixture {
            dir: tempfile::tempdir().unwrap(),
            server: SimulatedServer::fast().await,
        }
    }

    /// Model `m` with a plugin of this code, with so many permits, for these accounts.
    fn config(&self, code: &[u8], permits: u32, accounts: &str) -> String {
        let file = self.dir.path().join(format!("{}.wasm", code.len()));
        std::fs::write(&file, code).unwrap();
        let more = "    tariff: { cost_per_infer: 1 }\n    plugins: { billing: p }\n";
        format!(
            "{accounts}{}plugins:\n  - {{ name: p, world: billing-formula, dev: true, file: \"{}\" }}\n",
            one_model(self.server.address, permits, more),
            file.display()
        )
    }

    /// Reloads with a plugin that is compiled for longer than a reload waits: what was answered, and how
    /// many functions it took.
    async fn reload_slowly(&self, node: &Node, permits: u32, accounts: &str) -> (Value, usize) {
        for functions in [300, 1_200, 5_000, 20_000] {
            let code = slow_to_compile(2.0, functions);
            let answer = node
                .reload_once(&self.config(&code, permits, accounts))
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let report = answer.json();
            if report["compiling"] == json!(["p"]) {
                return (report, functions);
            }
            node.reload(&self.config(&flat_price(1.0), 1, accounts))
                .await;
        }
        panic!("the compiler of this machine is too fast for this test");
    }
}

async fn price(node: &Node, key: &str) -> f64 {
    let headers = format!("authorization: Bearer {key}\r\n");
    let answer = node
        .post_as(&headers, "/v1/chat/completions", &chat("m", ""))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("cf-ai-neurons").unwrap().parse().unwrap()
}

async fn permits(node: &Node) -> Value {
    node.state().await["models"][0]["endpoints"][0]["permits"]["limit"].clone()
}

#[tokio::test]
async fn keys_and_endpoints_take_effect_at_once_and_the_price_when_its_plugin_is_compiled() {
    let shelf = PluginFixture::new().await;
    let both = accounts("");
    let only_b: String = both
        .lines()
        .filter(|line| !line.contains("id: a"))
        .map(|line| format!("{line}\n"))
        .collect();
    let node = Node::start(&shelf.config(&flat_price(1.0), 1, &both)).await;
    assert_eq!(
        (price(&node, "key-a").await, price(&node, "key-b").await),
        (1.0, 1.0)
    );

    let (report, _) = shelf.reload_slowly(&node, 2, &only_b).await;
    assert_eq!(permits(&node).await, 2);
    let gone = "authorization: Bearer key-a\r\n";
    let refused = node
        .post_as(gone, "/v1/chat/completions", &chat("m", ""))
        .await;
    assert_eq!(refused.status, 401);
    let state = node.state().await;
    assert_eq!(state["config"]["generation"], report["generation"]);
    // It may be ready by now: then it is in effect as a whole.
    if state["config"]["compiling"] == json!(["p"]) {
        assert_eq!(state["config"]["last_reload_error"], Value::Null);
    }

    eventually("nothing is compiled any more", async || {
        (node.state().await["config"]["compiling"] == json!([])).then_some(())
    })
    .await;
    // What `compiling` no longer names is in effect.
    assert_eq!(price(&node, "key-b").await, 2.0);
    // Shown a little after it has taken effect.
    eventually("the later configuration is shown", async || {
        let config = node.state().await["config"].clone();
        (config["generation"].as_u64() > report["generation"].as_u64()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_plugin_whose_compiler_fails_leaves_the_rest_applied_and_is_told() {
    let shelf = PluginFixture::new().await;
    let both = accounts("");
    let node = Node::start(&shelf.config(&flat_price(1.0), 1, &both)).await;
    let (_, functions) = shelf.reload_slowly(&node, 2, &both).await;
    // One that takes several times as long, so that its compiler is there to be ended.
    let code = slow_to_compile(3.0, (functions * 8).min(FUNCTIONS_MAX));
    let answer = node.reload_once(&shelf.config(&code, 3, &both)).await;
    let report = answer.json();
    assert_eq!(report["compiling"], json!(["p"]), "{report}");
    // The child seen first may be the one before, at its end.
    let error = eventually(
        "its compiler runs, is ended, and that is told",
        async || {
            if let Some(compiler) = compiler_of(&node) {
                let mut kill = std::process::Command::new("kill");
                kill.args(["-KILL", &compiler]).status().unwrap();
            }
            let error = node.state().await["config"]["last_reload_error"].clone();
            error.is_object().then_some(error)
        },
    )
    .await;
    assert_eq!(error["problems"][0]["path"], "plugins[0].file");
    let message = error["problems"][0]["message"].as_str().unwrap();
    assert!(message.contains("ended by signal 9"), "{message}");
    assert_eq!(permits(&node).await, 3);
    assert!(price(&node, "key-a").await < 3.0);
}

/// The compiler that a gateway has started, by its process id.
fn compiler_of(node: &Node) -> Option<String> {
    let parent = format!("PPid:\t{}\n", node.pid());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| {
            let status = std::fs::read_to_string(process.path().join("status")).ok()?;
            let is_child = status.contains(&parent);
            is_child.then(|| process.file_name().to_string_lossy().into_owned())
        })
        .next()
}
