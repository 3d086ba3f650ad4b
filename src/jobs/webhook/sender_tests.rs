//! The sender and the notifications of runs, with a store in a folder and receivers on this host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use infergate_core::job::webhook::DELIVERY_DELAYS;
use infergate_core::job::{
    CanceledBy, DeployableKey, EndReason, JobClass, JobDefinition, JobId, JobKind, JobLimits,
    JobProgress, NewJob, QueueLimits, StoreTime, TakenJob,
};
use infergate_core::model::{FairBy, FlowMode};
use infergate_core::{AccountId, Millis};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::client::{WebhookClient, WebhookClocks};
use super::guard::SystemResolver;
use super::notices::JobNotices;
use super::sender::WebhookSender;
use super::tests::{Received, local_choices, read_request};
use crate::jobs::config::JobChoices;
use crate::jobs::embedded::{EmbeddedSettings, EmbeddedStore};
use crate::jobs::events::{EventPlace, UnrunEnds};
use crate::jobs::live::{LiveOutput, SharedPieces};
use crate::jobs::request::StoredRequest;
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{
    JobStore, NewStoredJob, PendingWebhook, SettlementResult, WebhookSettlement,
};
use crate::jobs::store_clock::StoreClock;
use crate::telemetry::Clock;
use crate::telemetry::job_metrics::JobMetrics;

fn definition(n: u128, now: StoreTime) -> JobDefinition {
    JobDefinition {
        id: JobId::from_random(None, n.to_be_bytes()),
        kind: JobKind::Prediction,
        deployable: DeployableKey::from("vp-a"),
        account: AccountId::from("acme"),
        model: "m".into(),
        flow: "".into(),
        class: JobClass::Normal,
        weight: 1,
        fair_by: FairBy::Time,
        created: now,
        limits: JobLimits {
            deadline: None,
            lifetime: now + Millis::from_secs(3600),
            run_timeout_ms: 1000,
        },
        start_until: now + Millis::from_secs(3600),
        attempts_max: 1,
        cancel_grace_ms: 1000,
        bytes: 100,
        has_webhook: true,
    }
}

fn request(url: &str) -> StoredRequest {
    let text = format!(
        r#"{{"v":1,"input":{{}},"shown_model":"a/b","version":"c","base_url":"http://h","api":"replicate","webhook":"{url}"}}"#
    );
    StoredRequest::read(text.as_bytes()).unwrap()
}

/// A sender with its store; the time of the sender and the wall clock are moved by hand.
pub(super) struct Bench {
    pub(super) store: Arc<EmbeddedStore>,
    pub(super) signals: Arc<JobSignals>,
    pub(super) client: Arc<WebhookClient>,
    clock: StoreClock,
    ahead_ms: Arc<AtomicU64>,
    wall_secs: Arc<AtomicU64>,
    pub(super) metrics: Arc<JobMetrics>,
    revived: Arc<AtomicBool>,
    _folder: TempDir,
}

impl Bench {
    pub(super) fn new(choices: JobChoices) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let store_clock = StoreClock::start(clock);
        let signals = Arc::new(JobSignals::default());
        let settings = Arc::new(EmbeddedSettings::default());
        settings.keep_ms.store(3_600_000, Ordering::SeqCst);
        let place = EventPlace {
            node: "n".into(),
            site: "s".into(),
        };
        let renderer = Arc::new(UnrunEnds { place, clock });
        let metrics = crate::jobs::conformance::metrics();
        let store = EmbeddedStore::open(
            &folder.path().join("jobs"),
            store_clock,
            settings,
            Arc::clone(&signals),
            renderer,
            Arc::clone(&metrics),
        );
        let (ahead_ms, wall_secs) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (ahead, wall) = (Arc::clone(&ahead_ms), Arc::clone(&wall_secs));
        let clocks = WebhookClocks {
            store: Arc::new(move || store_clock.now() + Millis(ahead.load(Ordering::SeqCst))),
            unix_secs: Arc::new(move || wall.load(Ordering::SeqCst)),
        };
        let client = WebhookClient::new(
            folder.path(),
            choices,
            Box::new(SystemResolver),
            None,
            clocks,
            Arc::clone(&metrics),
        );
        Bench {
            store: Arc::new(store.unwrap()),
            signals,
            client: Arc::new(client),
            clock: store_clock,
            ahead_ms,
            wall_secs,
            metrics,
            revived: Arc::default(),
            _folder: folder,
        }
    }

    fn sender(&self) -> WebhookSender {
        WebhookSender::new(
            Arc::clone(&self.store) as _,
            Arc::clone(&self.client),
            Arc::clone(&self.signals),
            Arc::clone(&self.revived),
            Arc::clone(&self.metrics),
        )
    }

    /// Moves the sender's time to a moment.
    fn advance_to(&self, at: StoreTime) {
        let ahead = at.since(self.clock.now()).0;
        self.ahead_ms.fetch_max(ahead, Ordering::SeqCst);
        self.signals.webhooks.notify_one();
    }

    /// Waits until nothing is under way. Returns the moment at which something is due.
    async fn next_due(&self) -> StoreTime {
        let deliveries = &self.client.deliveries;
        loop {
            let due = deliveries.next_due().filter(|due| *due > deliveries.now());
            match due.filter(|_| deliveries.status().in_flight == 0) {
                Some(due) => return StoreTime(due.0),
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Waits for a request, and moves the time on until there is one.
    async fn until<T>(&self, request: impl Future<Output = T>) -> T {
        tokio::pin!(request);
        loop {
            tokio::select! {
                received = &mut request => return received,
                due = self.next_due() => self.advance_to(due),
            }
        }
    }

    /// Sender's present time.
    fn now(&self) -> StoreTime {
        self.clock.now() + Millis(self.ahead_ms.load(Ordering::SeqCst))
    }

    /// Notices of a run of an account that tells `url`.
    fn notices(&self, n: u128, account: &str, url: &str) -> Option<JobNotices> {
        let now = self.clock.now();
        let taken = TakenJob {
            definition: Arc::new(JobDefinition {
                account: account.into(),
                ..definition(n, now)
            }),
            progress: JobProgress {
                epoch: 1,
                started: Some(now),
                ..JobProgress::default()
            },
            time_left: Millis::from_secs(10),
            end_reason: EndReason::Timeout,
            is_other_flow: false,
        };
        let live = Arc::default();
        JobNotices::of(&self.client, self.clock, (&taken, &request(url)), live)
    }

    /// Runs `script` beside the sender.
    async fn with_sender<T>(&self, script: impl Future<Output = T>) -> T {
        tokio::select! {
            result = script => result,
            () = self.sender().run() => panic!("the sender does not end"),
        }
    }

    /// Moves the sender's time on.
    fn advance(&self, hours: u64) {
        self.ahead_ms.fetch_add(hours * 3_600_000, Ordering::SeqCst);
        self.signals.webhooks.notify_one();
    }

    /// Stores a job that has ended already.
    pub(super) async fn end_job(&self, n: u128, url: &str) {
        let job = NewStoredJob {
            job: NewJob {
                definition: definition(n, self.clock.now()),
                flows: FlowMode::default(),
                limits: QueueLimits {
                    queue_max: 1000,
                    queue_max_per_account: 1000,
                    bytes_max: 1 << 30,
                },
            },
            payload: request(url).to_payload().into(),
            key: None,
        };
        let id = job.job.definition.id;
        self.store.submit(job).await.unwrap();
        self.store.cancel(id, CanceledBy::User).await.unwrap();
    }

    /// Reads entries until `is_there` of them.
    pub(super) async fn entries(
        &self,
        is_dead: bool,
        is_there: impl Fn(&[PendingWebhook]) -> bool,
    ) -> Vec<PendingWebhook> {
        loop {
            let found = self.store.webhooks(is_dead, 100).await.unwrap();
            if is_there(&found) {
                return found;
            }
        }
    }
}

pub(super) async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

pub(super) async fn accept(listener: &TcpListener) -> (TcpStream, Received) {
    let (mut tcp, _) = listener.accept().await.unwrap();
    let received = read_request(&mut tcp).await;
    (tcp, received)
}

async fn answer(listener: &TcpListener, status: u16) -> Received {
    let (mut tcp, received) = accept(listener).await;
    let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
    tcp.write_all(text.as_bytes()).await.unwrap();
    received
}

#[tokio::test]
async fn a_failed_delivery_is_repeated_with_its_id_and_the_time_of_the_wall() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let url = format!("http://127.0.0.1:{port}/");
    bench
        .with_sender(async {
            // The wall clock is set back, and forward, while the store's goes on.
            let set_wall = |secs| bench.wall_secs.store(secs, Ordering::SeqCst);
            set_wall(1_700_000_000);
            bench.end_job(1, &url).await;
            let first = answer(&listener, 500).await;
            set_wall(1_699_996_400);
            let waiting = bench.entries(false, |found| found[0].attempts == 1).await;
            assert_eq!(&*waiting[0].last_result, "500");
            bench.advance(1);
            let second = answer(&listener, 503).await;
            bench.entries(false, |found| found[0].attempts == 2).await;
            set_wall(1_700_003_600);
            bench.advance(1);
            let third = answer(&listener, 200).await;
            bench.entries(false, <[_]>::is_empty).await;
            let ids = [&first, &second, &third].map(|got| got.header("webhook-id").to_owned());
            assert!(ids[0].ends_with("-completed") && ids[0] == ids[1] && ids[1] == ids[2]);
            let times = [&first, &second, &third].map(|got| got.header("webhook-timestamp"));
            assert_eq!(times, ["1700000000", "1699996400", "1700003600"]);
            let body: serde_json::Value = serde_json::from_slice(&third.body).unwrap();
            assert_eq!(body["status"], "canceled");
            assert!(body["completed_at"].is_string());
        })
        .await;
}

#[tokio::test]
async fn a_dead_letter_says_why_and_is_tried_again_by_hand() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let url = format!("http://127.0.0.1:{port}/");
    bench
        .with_sender(async {
            bench.end_job(1, &url).await;
            answer(&listener, 410).await;
            let dead = bench.entries(true, |found| !found.is_empty()).await;
            assert_eq!((&*dead[0].last_result, dead[0].attempts), ("410", 1));
            assert!(dead[0].is_dead);
            let id = Arc::clone(&dead[0].id);
            let revived = WebhookSettlement::Revived(bench.clock.now());
            let settled = bench.store.settle_webhook(id, revived, "".into()).await;
            assert_eq!(settled, Ok(SettlementResult::Done));
            bench.revived.store(true, Ordering::SeqCst);
            bench.signals.webhooks.notify_one();
            let again = answer(&listener, 200).await;
            assert_eq!(again.header("webhook-id"), &*dead[0].id);
            bench.entries(false, <[_]>::is_empty).await;
        })
        .await;
}

#[tokio::test]
async fn a_receiver_that_hangs_does_not_delay_another() {
    let ((hanging, hung_port), (good, good_port)) = (listener().await, listener().await);
    let mut choices = local_choices(hung_port);
    choices.jobs.webhooks.ports.push(good_port);
    choices.jobs.webhooks.timeout_secs = 60;
    let bench = Bench::new(choices);
    bench
        .with_sender(async {
            for n in 0..10 {
                bench
                    .end_job(n, &format!("http://127.0.0.1:{hung_port}/"))
                    .await;
            }
            // As many as one account may have in flight there.
            let mut held = Vec::new();
            for _ in 0..4 {
                held.push(accept(&hanging).await);
            }
            bench
                .end_job(100, &format!("http://127.0.0.1:{good_port}/"))
                .await;
            answer(&good, 200).await;
            bench.entries(false, |found| found.len() == 10).await;
        })
        .await;
}

#[tokio::test]
async fn a_delivery_goes_on_after_a_restart() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let url = format!("http://127.0.0.1:{port}/");
    bench
        .with_sender(async {
            bench.end_job(1, &url).await;
            // Cut while it is under way.
            accept(&listener).await;
        })
        .await;
    // The next process has another reader; here all live entries are listed instead.
    bench.revived.store(true, Ordering::SeqCst);
    bench
        .with_sender(async {
            answer(&listener, 200).await;
            bench.entries(false, <[_]>::is_empty).await;
        })
        .await;
}

#[tokio::test]
async fn the_oldest_of_too_many_messages_are_given_up() {
    let (_listener, port) = listener().await;
    let mut choices = local_choices(port);
    choices.jobs.webhooks.pending_max_per_account = 2;
    let bench = Bench::new(choices);
    for n in 0..5 {
        bench.end_job(n, &format!("http://127.0.0.1:{port}/")).await;
    }
    bench
        .with_sender(async {
            let dead = bench.entries(true, |found| found.len() == 3).await;
            let first = definition(0, bench.clock.now()).id;
            assert_eq!(dead[2].job, first);
            assert_eq!(&*dead[2].last_result, "too many messages wait");
        })
        .await;
}

#[tokio::test]
async fn news_of_a_run_go_out_while_it_goes_on_and_are_cut_at_its_end() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let request = request(&format!("http://127.0.0.1:{port}/"));
    let now = bench.clock.now();
    let taken = TakenJob {
        definition: Arc::new(definition(1, now)),
        progress: JobProgress {
            epoch: 1,
            started: Some(now),
            ..JobProgress::default()
        },
        time_left: Millis::from_secs(10),
        end_reason: EndReason::Timeout,
        is_other_flow: false,
    };
    let (live, pieces) = (Arc::new(LiveOutput::default()), SharedPieces::default());
    live.set_pieces(Arc::clone(&pieces));
    let output = Arc::clone(&live);
    let notices = JobNotices::of(&bench.client, bench.clock, (&taken, &request), output);
    assert!(notices.is_some());
    let id = taken.definition.id.as_str();
    let run = async {
        let start = answer(&listener, 500).await;
        assert_eq!(start.header("webhook-id"), format!("{id}-start"));
        for text in ["ab", "c"] {
            pieces.lock().push(text.to_owned());
            live.push(text, now);
        }
        let (held, output) = accept(&listener).await;
        assert_eq!(output.header("webhook-id"), format!("{id}-output-1"));
        let body: serde_json::Value = serde_json::from_slice(&output.body).unwrap();
        assert_eq!(body["status"], "processing");
        assert_eq!(body["output"], serde_json::json!(["ab", "c"]));
        held
    };
    let mut held = JobNotices::during(notices, run).await;
    // Cut: the receiver sees the end of the connection without having answered.
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut held, &mut rest).await;
    assert!(read.is_err() || rest.is_empty());
}

#[tokio::test]
async fn a_receiver_that_wants_the_end_alone_gets_no_news() {
    let bench = Bench::new(local_choices(80));
    let now = bench.clock.now();
    let taken = TakenJob {
        definition: Arc::new(definition(1, now)),
        progress: JobProgress::default(),
        time_left: Millis::from_secs(10),
        end_reason: EndReason::Timeout,
        is_other_flow: false,
    };
    let mut request = request("http://127.0.0.1/");
    let has_news = |request: &StoredRequest| {
        let output = Arc::default();
        JobNotices::of(&bench.client, bench.clock, (&taken, request), output).is_some()
    };
    request.webhook_events = Some(vec!["completed".into(), "logs".into()]);
    assert!(!has_news(&request));
    request.webhook_events = Some(vec!["output".into()]);
    assert!(has_news(&request));
    request.webhook = None;
    assert!(!has_news(&request));
}

/// Takes connections without an answer, as a receiver does whose program is down.
async fn break_off(listener: &TcpListener) -> Received {
    accept(listener).await.1
}

#[tokio::test]
async fn a_receiver_that_is_down_gets_every_attempt_of_the_schedule_within_a_fifth() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let url = format!("http://127.0.0.1:{port}/");
    bench
        .with_sender(async {
            bench.end_job(1, &url).await;
            let start = bench.now();
            let mut attempts = Vec::new();
            for _ in DELIVERY_DELAYS {
                let got = bench.until(break_off(&listener)).await;
                attempts.push((bench.now(), got.header("webhook-id").to_owned()));
            }
            let gaps = attempts.windows(2).map(|two| two[1].0.since(two[0].0).0);
            for (gap, delay) in gaps.zip(&DELIVERY_DELAYS[1..]) {
                // A failing receiver is left alone for a minute at most; the test itself takes some time.
                let late = Millis::from_secs(70).0;
                let is_near = delay.0 - delay.0 / 5 <= gap && gap <= delay.0 + delay.0 / 5 + late;
                assert!(is_near, "{gap} ms where {delay:?} are due");
            }
            let dead = bench.entries(true, |found| !found.is_empty()).await;
            assert_eq!(dead[0].attempts as usize, DELIVERY_DELAYS.len());
            assert!(attempts.iter().all(|(_, id)| **id == *dead[0].id));
            let hours = bench.now().since(start).0 / 3_600_000;
            assert!((60..=92).contains(&hours), "{hours} hours");
        })
        .await;
}

#[tokio::test]
async fn a_receiver_that_was_down_for_a_day_gets_all_it_missed() {
    let (listener, port) = listener().await;
    let bench = Bench::new(local_choices(port));
    let url = format!("http://127.0.0.1:{port}/");
    const JOBS: usize = 3;
    bench
        .with_sender(async {
            for n in 0..JOBS {
                bench.end_job(n as u128, &url).await;
            }
            let day = bench.now() + Millis::from_secs(24 * 3600);
            while bench.now() < day {
                bench.until(break_off(&listener)).await;
            }
            let mut ids = std::collections::BTreeSet::new();
            while ids.len() < JOBS {
                let got = bench.until(answer(&listener, 200)).await;
                ids.insert(got.header("webhook-id").to_owned());
            }
            bench.entries(false, <[_]>::is_empty).await;
            assert!(bench.store.webhooks(true, 10).await.unwrap().is_empty());
        })
        .await;
}

#[tokio::test]
async fn jobs_that_tell_a_hanging_receiver_have_four_in_flight_and_cost_others_no_start() {
    let ((hanging, hung_port), (good, good_port)) = (listener().await, listener().await);
    let mut choices = local_choices(hung_port);
    choices.jobs.webhooks.ports.push(good_port);
    choices.jobs.webhooks.timeout_secs = 60;
    let bench = Bench::new(choices);
    let (hung_url, good_url) = (
        format!("http://127.0.0.1:{hung_port}/"),
        format!("http://127.0.0.1:{good_port}/"),
    );
    let run = |n, account, url| {
        let notices = bench.notices(n, account, url);
        JobNotices::during(notices, std::future::pending::<()>())
    };
    let mut runs: FuturesUnordered<_> = (0..300).map(|n| run(n, "acme", &hung_url)).collect();
    let script = async {
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(accept(&hanging).await);
        }
        // Ends of the same account there wait as well.
        bench.end_job(900, &hung_url).await;
        let (other, own) = (run(1000, "other", &good_url), run(1001, "acme", &good_url));
        let received = async { (answer(&good, 200).await, answer(&good, 200).await) };
        let (first, second) = tokio::select! {
            received = received => received,
            _ = other => unreachable!("it does not end"),
            _ = own => unreachable!("it does not end"),
        };
        for got in [first, second] {
            assert!(got.header("webhook-id").ends_with("-start"));
        }
        assert!(hanging.accept().now_or_never().is_none());
        // A place that gets free is the end's, once the sender knows of it.
        while bench.client.deliveries.status().waiting < 297 {
            tokio::task::yield_now().await;
        }
        drop(held.pop());
        let (_, next) = accept(&hanging).await;
        assert!(next.header("webhook-id").ends_with("-completed"));
    };
    bench
        .with_sender(async {
            tokio::select! {
                () = script => {}
                _ = runs.next() => unreachable!("runs do not end"),
            }
        })
        .await;
}

#[tokio::test]
async fn a_lower_bound_of_waiting_messages_applies_at_once() {
    let (listener, port) = listener().await;
    let mut choices = local_choices(port);
    let bench = Bench::new(choices.clone());
    for n in 0..8 {
        bench.end_job(n, &format!("http://127.0.0.1:{port}/")).await;
    }
    bench
        .with_sender(async {
            let mut held = Vec::new();
            for _ in 0..4 {
                held.push(accept(&listener).await);
            }
            choices.jobs.webhooks.pending_max_per_account = 5;
            bench.client.configure(&choices);
            bench.signals.webhooks.notify_one();
            let dead = bench.entries(true, |found| found.len() == 3).await;
            assert_eq!(&*dead[0].last_result, "too many messages wait");
        })
        .await;
}
