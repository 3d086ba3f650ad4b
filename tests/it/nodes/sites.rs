//! Site selection: by the model's policy, and by callers with the right to force a site.

use serde_json::{Value, json};

use super::{SERVING_NOTHING, member, wait_until_serving_known};
use crate::support::{
    Cluster, Node, PendingPost, ScriptedServer, SimulatedServer, TestResponse, accounts, chat,
    endpoint, eventually, model,
};

const CHAT: &str = "/v1/chat/completions";
const NO_LINE: &str = "    queue: { capacity: 0, total_capacity: 0 }\n";

/// Permits of the far server: more than one, so that a report made during a request still shows room.
const PERMITS: u64 = 4;

/// An edge at `fra`, a fast server at `near`, and one at `far` that answers once it is let. No node has a
/// line.
struct Three {
    fleet: Cluster,
    far: ScriptedServer,
    _near: SimulatedServer,
}

impl Three {
    /// `edge` goes behind the model of the edge, `all` before the models of all nodes.
    async fn start(edge: &str, all: &str) -> Three {
        let (near, far) = (SimulatedServer::fast().await, ScriptedServer::held().await);
        let serving =
            |endpoint: String| format!("{all}models:\n{}", model("m", &[endpoint], NO_LINE));
        let nothing = SERVING_NOTHING.replace(" }\n", &format!("{edge} }}\n"));
        let members = [
            member("edge", "fra", &format!("{all}{nothing}")),
            member("gpu-near", "near", &serving(endpoint(near.address, 8))),
            member(
                "gpu-far",
                "far",
                &serving(endpoint(far.address, PERMITS as u32)),
            ),
        ];
        let fleet = Cluster::start(&members).await;
        for name in ["gpu-near", "gpu-far"] {
            wait_until_serving_known(&fleet.nodes[0], name).await;
        }
        Three {
            fleet,
            far,
            _near: near,
        }
    }

    fn edge(&self) -> &Node {
        &self.fleet.nodes[0]
    }

    /// The site that has served it, by the event.
    async fn site_of(&self, answer: &TestResponse) -> Value {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.header("x-request-id").unwrap();
        eventually("a node has told of the request", async || {
            let files = self.fleet.nodes[1..].iter().map(Node::events_path);
            let texts = files.map(|path| std::fs::read_to_string(path).unwrap_or_default());
            let texts: Vec<String> = texts.collect();
            let line = texts.iter().flat_map(|text| text.lines());
            let line = line.into_iter().find(|line| line.contains(id))?;
            let event: Value = serde_json::from_str(line).ok()?;
            Some(event["site"].clone())
        })
        .await
    }

    /// The last look of the request's trace at the edge.
    async fn look(&self, answer: &TestResponse) -> Value {
        let id = answer.header("x-request-id").unwrap();
        let trace = eventually("the trace of a request", async || {
            let reported = self.edge().get(&format!("/explain/{id}")).await;
            (reported.status == 200).then(|| reported.json())
        })
        .await;
        let steps = trace["steps"].as_array().unwrap();
        let look = steps.iter().rfind(|step| step["step"] == "peer_selection");
        look.unwrap_or_else(|| panic!("a look in {trace:#}"))
            .clone()
    }

    /// Requests that have every permit of the far server until they are let go.
    async fn fills_far(&self, headers: &str) -> Vec<PendingPost> {
        let mut held = Vec::new();
        for count in 1..=PERMITS {
            held.push(self.edge().posting(headers, "").await);
            self.fleet.nodes[2].settles(count, 0).await;
        }
        held
    }
}

fn order(look: &Value) -> Vec<(&str, u64)> {
    let sites = look["sites"].as_array().unwrap().iter();
    let place = |site: &'_ Value| site["rank"].as_u64().unwrap();
    sites
        .map(|site| (site["site"].as_str().unwrap(), place(site)))
        .collect()
}

#[tokio::test]
async fn requests_go_to_the_site_that_the_policy_puts_first_while_it_has_room() {
    let policy = ", plugins: { routing: forced-site }, routing: { site: far }";
    let three = Three::start(policy, "").await;
    eventually("the policy has ranked the sites", async || {
        three.far.next();
        let answer = three.edge().post(CHAT, &chat("m", "")).await;
        let look = three.look(&answer).await;
        (look["sites_by"] == "builtin").then_some(())
    })
    .await;
    // One more may have been let go than came.
    for _ in 0..8 {
        three.far.next();
        let answer = three.edge().post(CHAT, &chat("m", "")).await;
        assert_eq!(three.site_of(&answer).await, "far");
        let look = three.look(&answer).await;
        assert_eq!(order(&look), [("far", 0), ("near", 1)], "{look:#}");
        assert_eq!(look["chosen"], "gpu-far");
    }
    let held = three.fills_far("").await;
    for _ in 0..4 {
        let answer = three.edge().post(CHAT, &chat("m", "")).await;
        assert_eq!(three.site_of(&answer).await, "near");
        let look = three.look(&answer).await;
        assert_eq!(order(&look), [("far", 0), ("near", 1)], "{look:#}");
    }
    for one in held {
        three.far.next();
        assert_eq!(one.answer().await.status, 200);
    }
}

fn sent_by(key: &str, site: &str) -> String {
    format!("Authorization: Bearer {key}\r\nx-infergate-site: {site}\r\n")
}

#[tokio::test]
async fn who_may_force_a_site_is_served_there_or_refused_and_others_are_not_heard() {
    let three = Three::start("", &accounts(", may_force_site: true")).await;
    let edge = three.edge();
    let ask = async |key: &str, site: &str| {
        edge.post_as(&sent_by(key, site), CHAT, &chat("m", ""))
            .await
    };
    for _ in 0..8 {
        let near = ask("key-a", "near").await;
        assert_eq!(three.site_of(&near).await, "near");
        let look = three.look(&near).await;
        assert_eq!(
            (&look["forced_site"], &look["sites_by"]),
            (&json!("near"), &Value::Null)
        );
    }
    three.far.next();
    let far = ask("key-a", "far").await;
    assert_eq!(three.site_of(&far).await, "far");

    let held = three.fills_far(&sent_by("key-a", "far")).await;
    // At its own site the edge has nobody.
    for full in ["far", "fra"] {
        let refused = ask("key-a", full).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert_eq!(refused.json()["error"]["code"], "out_of_capacity");
        assert_eq!(edge.event_of(&refused).await["error_code"], "3040");
    }
    let unknown = ask("key-a", "nowhere").await;
    assert_eq!(unknown.status, 400);
    let error = unknown.json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("known: fra, far, near"), "{message}");
    for ignored in ["far", "nowhere"] {
        let answer = ask("key-b", ignored).await;
        assert_eq!(three.site_of(&answer).await, "near");
    }
    for one in held {
        three.far.next();
        assert_eq!(one.answer().await.status, 200);
    }
}
