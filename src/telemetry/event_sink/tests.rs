//! The event sink against real files: what is written, what is dropped and how it is counted.

use std::fs;
use std::path::Path;

use super::config::{EventSocketConfig, SocketTransport};
use super::socket::tests::hung_receiver;
use super::*;
use crate::telemetry::event::sample_event;

/// Longer than any test: the writer wakes only on request.
const NEVER: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(20);

fn to_file(path: &Path) -> EventsConfig {
    EventsConfig {
        file: Some(EventFileConfig::whole(path.into(), 1, 2)),
        ..EventsConfig::default()
    }
}

/// The whole lines of a file; the writer may be in the middle of the last one.
fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Emits an event unless one is still on its way: a file must not fill up while a test waits.
fn keep_emitting(sink: &EventSink, name: &str) {
    let counts = sink.counts();
    if counts.emitted == counts.written + counts.dropped {
        sink.write(sample_event(name));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !holds() {
        assert!(
            clock.now().0 < LIMIT.as_millis() as u64,
            "not in time: {what}"
        );
        thread::yield_now();
    }
}

#[test]
fn closing_writes_everything_that_was_emitted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let sink = EventSink::start_with(&to_file(&path), Clock::start(), 3000, NEVER).unwrap();
    for number in 0..3000 {
        sink.write(sample_event(&format!("r{number}")));
    }
    assert!(sink.close(LIMIT));
    let (mut names, mut at) = (Vec::new(), vec![path.clone()]);
    for number in 1..3 {
        at.insert(0, path.with_extension(format!("jsonl.{number}")));
    }
    for file in at {
        names.extend(
            lines(&file)
                .into_iter()
                .map(|line| line["request_id"].clone()),
        );
    }
    assert_eq!(names.len(), 3000);
    assert!(
        names
            .iter()
            .enumerate()
            .all(|(n, name)| *name == format!("r{n}"))
    );
    let counts = sink.counts();
    assert_eq!(
        (counts.emitted, counts.written, counts.dropped),
        (3000, 3000, 0)
    );
    assert!(
        directory.path().join("events.jsonl.1").exists(),
        "3,000 lines need a second file"
    );
}

#[test]
fn events_reach_the_file_without_anybody_asking() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let sink = EventSink::start(&to_file(&path), Clock::start()).unwrap();
    sink.write(sample_event("r1"));
    until("the line is in the file", || lines(&path).len() == 1);
    let line = &lines(&path)[0];
    assert_eq!(
        line["time"].as_str().unwrap().len(),
        "2026-11-20T10:00:00.000Z".len()
    );
}

#[test]
fn an_event_wakes_a_writer_at_rest_and_no_interval_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let often = Duration::from_millis(1);
    let sink = EventSink::start_with(&to_file(&path), Clock::start(), 64, often).unwrap();
    for count in 1..4 {
        until("the writer rests", || sink.queue.is_writer_at_rest());
        sink.write(sample_event("r"));
        until("the line is in the file", || lines(&path).len() == count);
    }
    until("the writer rests again", || sink.queue.is_writer_at_rest());
    assert!(sink.close(LIMIT), "closing wakes it as well");
}

#[test]
fn an_overrun_is_counted_and_blocks_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    // A writer that never wakes by itself may still take the first events on its way to sleep.
    let sink = EventSink::start_with(&to_file(&path), Clock::start(), 4, NEVER).unwrap();
    for number in 0..1000 {
        sink.write(sample_event(&format!("r{number}")));
    }
    let lost = sink.write_durable(sample_event("late"));
    assert!(sink.close(LIMIT));
    let counts = sink.counts();
    assert!(counts.dropped_overrun > 0, "{counts:?}");
    assert_eq!(counts.emitted, 1001);
    assert_eq!(counts.written + counts.dropped, counts.emitted);
    assert_eq!(lines(&path).len() as u64, counts.written);
    drop(lost);
}

#[test]
fn a_full_disk_drops_with_a_counter_and_serving_goes_on() {
    let sink = EventSink::start(&to_file(Path::new("/dev/full")), Clock::start()).unwrap();
    sink.write(sample_event("r1"));
    until("the drop is counted", || {
        sink.counts().dropped_write_failed == 1
    });
    assert!(sink.counts().last_error.is_some());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    sink.reconfigure(&to_file(&path));
    until("the new file is written", || {
        keep_emitting(&sink, "again");
        !lines(&path).is_empty()
    });
    until("the error is forgotten", || {
        sink.counts().last_error.is_none()
    });
    assert!(sink.close(LIMIT));
}

#[test]
fn without_a_file_nothing_is_counted_and_nothing_waits() {
    let sink = EventSink::start(&EventsConfig::default(), Clock::start()).unwrap();
    sink.write(sample_event("r1"));
    let mut stored = sink.write_durable(sample_event("r2"));
    assert_eq!(stored.try_recv(), Ok(StoreResult::NoFile));
    assert!(sink.close(LIMIT));
    assert_eq!(sink.counts(), EventCounts::default());
}

#[test]
fn a_durable_event_is_answered_once_it_is_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let sink = EventSink::start_with(&to_file(&path), Clock::start(), 64, NEVER).unwrap();
    let stored: Vec<_> = (0..20)
        .map(|n| sink.write_durable(sample_event(&format!("r{n}"))))
        .collect();
    for stored in stored {
        assert_eq!(stored.blocking_recv(), Ok(StoreResult::OnDisk));
    }
    assert_eq!(lines(&path).len(), 20);

    let full = EventSink::start(&to_file(Path::new("/dev/full")), Clock::start()).unwrap();
    let stored = full.write_durable(sample_event("r1"));
    assert_eq!(stored.blocking_recv(), Ok(StoreResult::Lost));
}

#[test]
fn the_file_can_be_changed_taken_away_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let sink = EventSink::start(&to_file(&path("a")), Clock::start()).unwrap();
    sink.write(sample_event("r1"));
    sink.reconfigure(&to_file(&path("b")));
    until("the new file is there", || {
        keep_emitting(&sink, "r2");
        path("b").exists()
    });
    sink.reconfigure(&EventsConfig::default());
    sink.write(sample_event("nobody reads this"));
    sink.reconfigure(&to_file(&path("c")));
    until("the third file is there", || {
        keep_emitting(&sink, "r3");
        path("c").exists()
    });
    assert!(sink.close(LIMIT));
    assert_eq!(lines(&path("a"))[0]["request_id"], "r1");
    assert_eq!(lines(&path("b"))[0]["request_id"], "r2");
    assert_eq!(lines(&path("c"))[0]["request_id"], "r3");
    for name in ["a", "b", "c"] {
        let unread = |line: &serde_json::Value| line["request_id"] == "nobody reads this";
        assert!(!lines(&path(name)).iter().any(unread), "{name}");
    }
    let counts = sink.counts();
    assert_eq!((counts.written, counts.dropped), (counts.emitted, 0));
}

#[test]
fn what_comes_after_the_end_is_dropped_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let sink = EventSink::start(&to_file(&directory.path().join("a")), Clock::start()).unwrap();
    assert!(sink.close(LIMIT));
    assert!(sink.close(LIMIT), "closing twice is harmless");
    sink.write(sample_event("late"));
    assert_eq!(sink.counts().dropped_closed, 1);
}

#[test]
fn a_writer_that_ends_early_leaves_no_waiter_behind() {
    let (shared, queue) = (Arc::<SinkState>::default(), Arc::new(EventQueue::new(8)));
    let (alive, _done) = mpsc::sync_channel(0);
    let config = EventsConfig::default();
    let writer = EventWriter::new(&config, Clock::start(), &shared, &queue, NEVER, alive);
    let (stored, receiver) = oneshot::channel();
    queue.push(EventContent::Event(sample_event("waits")), Some(stored));
    queue.push(EventContent::Event(sample_event("does not")), None);
    // As by a panic: it has not run.
    drop(writer);
    assert_eq!(receiver.blocking_recv(), Ok(StoreResult::Lost));
    assert_eq!(shared.dropped_closed.load(Ordering::Relaxed), 2);
    let late = queue.push(EventContent::Event(sample_event("late")), None);
    assert!(matches!(late, PushResult::Closed(None)));
}

/// Neurons and intervals of lines.
fn billed(lines: impl Iterator<Item = serde_json::Value>) -> Vec<(f64, f64)> {
    let pair = |line: serde_json::Value| {
        let number = |name: &str| line[name].as_f64().unwrap();
        (number("neurons"), number("sample_interval"))
    };
    lines.map(pair).collect()
}

#[test]
fn a_socket_gets_a_share_whose_intervals_sum_up_to_the_bill_of_the_file() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    let directory = tempfile::tempdir().unwrap();
    let (path, socket) = (
        directory.path().join("events.jsonl"),
        directory.path().join("s"),
    );
    let listener = UnixListener::bind(&socket).unwrap();
    let config = EventsConfig {
        unix_socket: Some(EventSocketConfig {
            path: socket,
            transport: SocketTransport::Stream,
        }),
        sample: 0.25,
        // All of them in one file.
        file: Some(EventFileConfig::whole(path.clone(), 64, 1)),
        ..EventsConfig::default()
    };
    let sink = EventSink::start(&config, Clock::start()).unwrap();
    let mut prices = fastrand::Rng::with_seed(3);
    const EVENTS: usize = 2000;
    for _ in 0..EVENTS - 1 {
        let mut event = sample_event("r");
        event.neurons = Some(prices.f64() * 100.0);
        sink.write(event);
    }
    // Rendered before, as those of jobs are.
    sink.write_line(Bytes::from_static(b"{\"neurons\":50.0}\n"));
    let received = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream).lines();
        billed(lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()))
    });
    assert!(sink.close(LIMIT));
    let received = received.join().unwrap();
    let whole = billed(lines(&path).into_iter());
    assert_eq!(whole.len(), EVENTS);
    assert!(whole.iter().all(|(_, interval)| *interval == 1.0));
    assert!(received.iter().all(|(_, interval)| *interval == 4.0));
    let bill: f64 = whole.iter().map(|(neurons, _)| neurons).sum();
    let estimate: f64 = received.iter().map(|(one, interval)| one * interval).sum();
    let variance: f64 = whole.iter().map(|(one, _)| one * one * 3.0).sum();
    // Chosen anew in each run: six standard deviations are never reached.
    assert!((estimate - bill).abs() < 6.0 * variance.sqrt());
    let counts = sink.counts();
    let sent = counts.unix_socket.unwrap();
    assert_eq!((sent.sent, sent.dropped), (received.len() as u64, 0));
    assert_eq!((counts.written, counts.sampled_out), (EVENTS as u64, 0));
}

#[test]
fn a_receiver_that_hangs_does_not_hold_the_file_up_at_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let receiver = directory.path().join("socket");
    let _hung = hung_receiver(&receiver);
    let mut config = to_file(&path);
    config.unix_socket = Some(EventSocketConfig {
        path: receiver,
        transport: SocketTransport::Stream,
    });
    let interval = Duration::from_millis(1);
    let sink = EventSink::start_with(&config, Clock::start(), 10, interval).unwrap();
    sink.write(sample_event("before"));
    until("it is written", || sink.counts().written == 1);
    sink.reconfigure(&to_file(&path));
    sink.write(sample_event("after"));
    until("the file goes on", || sink.counts().written == 2);
    assert!(sink.close(LIMIT));
}

#[test]
fn a_file_is_sampled_where_it_asks_for_it_and_by_its_own_share() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let mut config = to_file(&path);
    config.sample = 0.001;
    let sink = EventSink::start(&config, Clock::start()).unwrap();
    for _ in 0..200 {
        sink.write(sample_event("whole"));
    }
    assert_eq!(
        sink.write_durable(sample_event("whole")).blocking_recv(),
        Ok(StoreResult::OnDisk)
    );
    config.file.as_mut().unwrap().sample = 0.5;
    sink.reconfigure(&config);
    until("the share is followed", || {
        sink.write(sample_event("share"));
        // The one before has been judged then, so that there are not many more than are looked for.
        let whole = sink.write_durable(sample_event("whole")).blocking_recv();
        assert_eq!(whole, Ok(StoreResult::OnDisk));
        sink.counts().sampled_out > 10
    });
    assert!(sink.close(LIMIT));
    let counts = sink.counts();
    assert_eq!(
        counts.emitted,
        counts.written + counts.sampled_out + counts.dropped
    );
    let written = lines(&path);
    assert_eq!(written.len() as u64, counts.written);
    let interval = |line: &serde_json::Value| line["sample_interval"].as_f64().unwrap();
    let halves = written.iter().filter(|line| interval(line) == 2.0).count();
    assert!(halves > 0 && written.len() - halves >= 201);
}

#[test]
fn with_a_socket_alone_nothing_is_lost_for_want_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let config = EventsConfig {
        unix_socket: Some(EventSocketConfig {
            path: directory.path().join("nobody"),
            transport: SocketTransport::Datagram,
        }),
        ..EventsConfig::default()
    };
    let sink = EventSink::start(&config, Clock::start()).unwrap();
    sink.write(sample_event("r1"));
    let stored = sink.write_durable(sample_event("r2"));
    assert_eq!(stored.blocking_recv(), Ok(StoreResult::NoFile));
    assert!(sink.close(LIMIT));
    let counts = sink.counts();
    assert_eq!((counts.emitted, counts.dropped), (2, 0));
    assert_eq!(counts.unix_socket.unwrap().dropped_closed, 2);
}

#[test]
fn lines_of_another_kind_pass_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    let sink = EventSink::start_lines("lines", &to_file(&path), Clock::start(), 8).unwrap();
    sink.write_line(Bytes::from_static(b"{\"a\":1}\n"));
    assert!(sink.close(LIMIT));
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"a\":1}\n");
}
