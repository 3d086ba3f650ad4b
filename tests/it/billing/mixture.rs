//! A mixture of requests of which three in ten are cut, against an engine that counts what it works:
//! what is billed is what was worked and could be seen.

use std::collections::HashSet;
use std::sync::Arc;

use fastrand::Rng;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{Node, STREAM_HEAD, chunk, eventually, json_answer, one_model};

const WORKERS: u64 = 8;
const OUTPUT_PRICE: f64 = 10.0;
const CUT_PERCENT: u32 = 30;

/// Work that a request asks of the engine, written in its prompt.
#[derive(Clone, Copy)]
struct Work {
    stream: bool,
    reports: bool,
    /// Words of the prompt, and of the answer.
    prompt: u64,
    words: u64,
    /// Words after which the client leaves; of a whole answer it leaves before the first.
    cut: Option<u64>,
}

impl Work {
    fn roll(rng: &mut Rng) -> Work {
        let (stream, words) = (rng.bool(), rng.u64(1..60));
        let cut = rng.u32(..100) < CUT_PERCENT;
        let after = if stream { rng.u64(..words) } else { 0 };
        Work {
            stream,
            reports: rng.bool(),
            prompt: rng.u64(3..80),
            words,
            cut: cut.then_some(after),
        }
    }

    fn body(self, id: &str) -> String {
        let prompt = "word ".repeat(self.prompt as usize);
        json!({
            "model": "m", "stream": self.stream, "x_client_id": id,
            "messages": [{ "role": "user", "content": prompt.trim_end() }],
            "engine": { "id": id, "reports": self.reports, "words": self.words, "cut": self.cut },
        })
        .to_string()
    }

    /// Neurons of what was worked and could be seen; a token is three quarters of a word.
    fn worth(self) -> f64 {
        let seen = self.cut.unwrap_or(self.words);
        tokens(self.prompt) + OUTPUT_PRICE * tokens(seen)
    }
}

fn tokens(words: u64) -> f64 {
    (words * 4 / 3) as f64
}

/// Ids of the requests that the engine has been sent.
type StartedRequests = Arc<Mutex<HashSet<String>>>;

async fn engine(listener: TcpListener, started: StartedRequests) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        tcp.set_nodelay(true).unwrap();
        connections.spawn(serve(tcp, Arc::clone(&started)));
    }
}

async fn serve(mut tcp: TcpStream, started: StartedRequests) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if tcp.read_buf(&mut read).await.ok()? == 0 {
                return None;
            }
            continue;
        };
        if head.starts_with("GET ") {
            let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            tcp.write_all(ok.as_bytes()).await.ok()?;
            return None;
        }
        let Ok(asked) = serde_json::from_str::<Value>(body) else {
            if tcp.read_buf(&mut read).await.ok()? == 0 {
                return None;
            }
            continue;
        };
        read.clear();
        answer(&mut tcp, &asked, &started).await?;
    }
}

/// Works; where the client is to leave it falls silent until the connection closes.
async fn answer(tcp: &mut TcpStream, asked: &Value, started: &StartedRequests) -> Option<()> {
    let work = &asked["engine"];
    let (words, cut) = (work["words"].as_u64()?, work["cut"].as_u64());
    started.lock().insert(work["id"].as_str()?.to_owned());
    let prompt = asked["messages"][0]["content"].as_str()?;
    let prompt = tokens(prompt.split_whitespace().count() as u64);
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": tokens(words) });
    let reports = work["reports"] == true;
    if asked["stream"] == true {
        let mut out = STREAM_HEAD.to_owned();
        for word in 1..=cut.unwrap_or(words) {
            let text = format!("w{word:03} ");
            let event = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
            out += &chunk(&format!("data: {event}\n\n"));
        }
        if cut.is_none() {
            if reports {
                let last = json!({ "choices": [], "usage": usage });
                out += &chunk(&format!("data: {last}\n\n"));
            }
            out += &chunk("data: [DONE]\n\n");
            out += "0\r\n\r\n";
        }
        tcp.write_all(out.as_bytes()).await.ok()?;
    } else if cut.is_none() {
        let content = "word ".repeat(words as usize);
        let choice = json!({ "index": 0, "message": { "role": "assistant", "content": content } });
        let mut whole = json!({ "id": "x", "choices": [choice] });
        if reports {
            whole["usage"] = usage;
        }
        let whole = json_answer(&whole.to_string());
        tcp.write_all(whole.as_bytes()).await.ok()?;
    }
    if cut.is_some() {
        let mut rest = [0; 1];
        let _ = tcp.read(&mut rest).await;
        return None;
    }
    Some(())
}

async fn ask(node: &Node, started: &StartedRequests, id: &str, work: Work) {
    let mut client = node.client().await;
    let path = "/v1/chat/completions";
    client.post("", path, &work.body(id)).await;
    match work.cut {
        None => assert_eq!(client.response().await.status, 200),
        Some(0) => {
            eventually("the engine has the request", async || {
                started.lock().contains(id).then_some(())
            })
            .await;
        }
        Some(after) => client.saw(&format!("w{after:03} ")).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_billed_of_a_mixture_with_cuts_is_what_was_worked_and_seen() {
    // `INFERGATE_MIXTURE=10000` for more of them.
    let count: u64 = std::env::var("INFERGATE_MIXTURE").map_or(1000, |n| n.parse().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let started = StartedRequests::default();
    let mut engines = JoinSet::new();
    engines.spawn(engine(listener, Arc::clone(&started)));
    let tariff = format!(
        "    tariff: {{ coefficients: {{ input_tokens: 1, output_tokens: {OUTPUT_PRICE} }} }}\n"
    );
    let node = Node::start(&one_model(address, 64, &tariff)).await;
    let workers = (0..WORKERS).map(async |worker| {
        let mut rng = Rng::with_seed(worker);
        let mut asked = Vec::new();
        for turn in 0..count / WORKERS {
            let (id, work) = (format!("{worker}-{turn}"), Work::roll(&mut rng));
            ask(&node, &started, &id, work).await;
            asked.push((id, work));
        }
        asked
    });
    let asked = join_all(workers).await.concat();
    let events = node.events(asked.len()).await;
    assert_eq!(events.len(), asked.len());
    let (mut billed, mut worked) = (0.0, 0.0);
    for (id, work) in &asked {
        let event = events.iter().find(|event| event["client_id"] == **id);
        let event = event.unwrap_or_else(|| panic!("no event of {id}"));
        let neurons = event["neurons"].as_f64().unwrap_or(0.0);
        assert!(neurons > 0.0, "worked for nothing: {event}");
        if work.cut.is_none() && work.reports {
            assert_eq!(neurons, work.worth(), "{event}");
            assert_eq!(event["metrics_source"], "reported");
        }
        billed += neurons;
        worked += work.worth();
    }
    let share = billed / worked;
    println!("{count} requests: billed {billed} of {worked} worked and seen ({share:.4})");
    assert!(
        (0.95..=1.05).contains(&share),
        "billed {share} of what was worked"
    );
}
