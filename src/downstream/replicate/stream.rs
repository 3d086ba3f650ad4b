//! Follows the output of a job as server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! Not the run: a follower that leaves changes nothing. Each event has an id, by which a client goes on after it was cut
//! off. Known by a token in the query, because client libraries send no key here.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::job::{JobId, JobState};
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::downstream::session::Session;
use crate::jobs::{EventPlaceId, JobResult, Jobs, LiveEvent, RunSoFar, StoredJob, StoredRequest};
use crate::pipeline::{
    Downstream, DownstreamClosed, RequestContext, RequestError, RequestHead, ResponseHead,
};

/// Silence after which a comment is sent.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// Look at a job that is followed, in case a hint was lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Follower of one job.
struct Follower<'a> {
    jobs: &'a Jobs,
    id: JobId,
    /// Number of the next event.
    next: u64,
    /// The client has events of this job.
    has_events: bool,
    /// Moment of the last event that a former connection had, milliseconds by the store's clock.
    resumed_ms: Option<u64>,
}

/// Next thing to send.
enum Progress {
    /// Events to send.
    Events(String),
    /// Last events, and then the end.
    End(String),
    /// No event yet.
    Wait,
}

/// Streams the output of a job until it ends.
pub(super) async fn follow(
    jobs: &Jobs,
    session: &mut Session,
    ctx: &mut RequestContext,
    (id, query): (&str, &str),
) -> Result<(), RequestError> {
    let job = find(jobs, id, query).await?;
    let last = last_event(session.request_head());
    let mut head = ResponseHead::new(200);
    head.append("content-type", b"text/event-stream");
    head.append("cache-control", b"no-cache");
    head.append("x-request-id", ctx.request_id().as_bytes());
    head.extend(ctx.page_origin.lines());
    let mut follower = Follower {
        jobs,
        id: job.definition.id,
        next: last.map_or(0, |place| place.number + 1),
        has_events: last.is_some(),
        resumed_ms: last.map(|place| place.ms),
    };
    let sent = follower.run(session, head).await;
    sent.map_err(|_| RequestError::Aborted)
}

/// Finds the job of a token. Whatever is wrong with it, the answer is the same.
async fn find(jobs: &Jobs, id: &str, query: &str) -> Result<StoredJob, Refusal> {
    let unknown = || Refusal::Rejected {
        status: 404,
        pointer: String::new(),
        message: "no such stream, or its time is over".to_owned(),
    };
    let id: JobId = id.parse().map_err(|_| unknown())?;
    let token = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="));
    let token = token.ok_or_else(unknown)?;
    let job = jobs.get(id).await?.ok_or_else(unknown)?;
    if jobs.is_past_keep(&job) {
        return Err(unknown());
    }
    let request = StoredRequest::read(&job.payload).map_err(|_| unknown())?;
    let own = request.stream_token.as_deref().ok_or_else(unknown)?;
    match bool::from(own.as_bytes().ct_eq(token.as_bytes())) {
        true => Ok(job),
        false => Err(unknown()),
    }
}

fn last_event(head: RequestHead<'_>) -> Option<EventPlaceId> {
    EventPlaceId::read(head.headers.text_of("last-event-id")?)
}

impl Follower<'_> {
    async fn run(
        &mut self,
        session: &mut Session,
        head: ResponseHead,
    ) -> Result<(), DownstreamClosed> {
        session.start(head).await?;
        // A client that has to wait hears so at once, with the head of the response.
        let mut silence = COMMENT_EVERY;
        // The store is read where more than new text may have come.
        let mut is_look = true;
        loop {
            let watch = self.jobs.watch(self.id);
            let live = self.jobs.live(&self.id);
            let changed = watch.changed.notified();
            let added = async {
                match &live {
                    Some(live) => live.changed.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::pin!(changed, added);
            changed.as_mut().enable();
            // Polled once before the look, so that no event is missed.
            let _ = futures_util::poll!(added.as_mut());
            match self.progress(is_look).await {
                Progress::End(text) => return session.finish(text.into()).await,
                Progress::Events(text) => {
                    silence = Duration::ZERO;
                    self.write_unless_slow(session, text).await?;
                    is_look = false;
                    continue;
                }
                Progress::Wait => {}
            }
            if silence >= COMMENT_EVERY {
                silence = Duration::ZERO;
                session.write(self.comment().await).await?;
            }
            tokio::select! {
                () = &mut changed => is_look = true,
                () = &mut added => is_look = false,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    silence += LOOK_EVERY;
                    is_look = true;
                }
                () = session.closed() => return Err(DownstreamClosed),
            }
        }
    }

    /// Writes events. A client that does not take them while many others are added is cut off: it may resume.
    async fn write_unless_slow(
        &self,
        session: &mut Session,
        text: String,
    ) -> Result<(), DownstreamClosed> {
        let live = self.jobs.live(&self.id);
        let behind = async {
            match &live {
                Some(live) => live.falls_behind(self.next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            written = session.write(text.into()) => written,
            () = behind => {
                tracing::debug!(job = %self.id, "a follower that is slow was cut off");
                Err(DownstreamClosed)
            }
        }
    }

    /// Comment for a client that hears nothing else, with the place of a job that is queued.
    async fn comment(&self) -> Bytes {
        match self.jobs.position(self.id).await {
            Some(position) => format!(": queued, position {position}\n\n").into(),
            None => Bytes::from_static(b": waiting\n\n"),
        }
    }

    /// Looks at what the client has not got.
    async fn progress(&mut self, is_look: bool) -> Progress {
        if !is_look && let Some(live) = self.jobs.live(&self.id) {
            let part = live.after(self.next);
            if !part.is_broken && !part.is_ended {
                return match self.write(&part.events) {
                    text if text.is_empty() => Progress::Wait,
                    text => Progress::Events(text),
                };
            }
        }
        let Ok(Some(job)) = self.jobs.get(self.id).await else {
            return Progress::Wait;
        };
        let is_over = job.state.is_terminal();
        let Some(live) = self.jobs.live(&self.id) else {
            return match is_over {
                true => self.whole(&job),
                false => Progress::Wait,
            };
        };
        let part = live.after(self.next);
        if part.is_broken {
            return match self.has_events {
                true => Progress::End(gone_event(&job)),
                false if is_over => self.whole(&job),
                false => match live.so_far() {
                    Some(so_far) => self.catch_up(so_far),
                    None => Progress::Wait,
                },
            };
        }
        let mut text = self.write(&part.events);
        match (is_over, text.is_empty()) {
            (true, _) if part.is_ended => {
                text.push_str(&end_events(&job, self.next));
                Progress::End(text)
            }
            // Ended without this run's last word: what is stored counts.
            (true, true) if !self.has_events => self.whole(&job),
            (true, _) => {
                text.push_str(&end_events(&job, self.next));
                Progress::End(text)
            }
            (false, true) => Progress::Wait,
            (false, false) => Progress::Events(text),
        }
    }

    /// Begins with the present run. What it has put out before the first event that is left is one event.
    fn catch_up(&mut self, so_far: RunSoFar) -> Progress {
        let mut text = String::new();
        if let Some((place, beginning)) = so_far.beginning {
            let id = format!("{}:{}", place.ms, place.number);
            write_event(&mut text, "output", &id, &beginning);
            self.has_events = true;
        }
        text.push_str(&self.write(&so_far.events));
        self.next = so_far.next;
        match text.is_empty() {
            true => Progress::Wait,
            false => Progress::Events(text),
        }
    }

    /// Writes new events.
    fn write(&mut self, events: &[LiveEvent]) -> String {
        let mut text = String::new();
        for event in events {
            let id = format!("{}:{}", event.place.ms, event.place.number);
            write_event(&mut text, "output", &id, &event.text);
            self.next = event.place.number + 1;
            self.has_events = true;
        }
        text
    }

    /// The whole output as one event, and the end.
    fn whole(&self, job: &StoredJob) -> Progress {
        let mut text = String::new();
        let moment = job.ended.unwrap_or_default().0;
        let lacks_some = self.resumed_ms.is_some_and(|resumed| resumed < moment);
        if lacks_some && job.state == JobState::Succeeded {
            // An end would tell the client that it has everything.
            return Progress::End(gone_event(job));
        }
        if !self.has_events {
            let result = job.result.as_deref().map(JobResult::read);
            let output = result.and_then(|result| result.output);
            let output = output.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
            if let Some(output) = output.as_ref().map(joined_text) {
                write_event(&mut text, "output", &format!("{moment}:0"), &output);
            }
        }
        text.push_str(&end_events(job, 1));
        Progress::End(text)
    }
}

/// The texts of an output, joined; another output as JSON.
fn joined_text(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            list.iter().filter_map(Value::as_str).collect()
        }
        other => other.to_string(),
    }
}

/// Events of the end: the error of a failed job, and `done`.
fn end_events(job: &StoredJob, number: u64) -> String {
    let mut text = String::new();
    let id = format!("{}:{number}", job.ended.unwrap_or_default().0);
    let reason = match job.state {
        JobState::Succeeded => None,
        JobState::Canceled | JobState::Aborted => Some("canceled"),
        _ => {
            let result = job.result.as_deref().map(JobResult::read);
            let detail = result.and_then(|result| result.error).unwrap_or_default();
            let data = serde_json::json!({ "detail": detail }).to_string();
            write_event(&mut text, "error", &id, &data);
            Some("error")
        }
    };
    let data = match reason {
        None => "{}".to_owned(),
        Some(reason) => serde_json::json!({ "reason": reason }).to_string(),
    };
    write_event(&mut text, "done", &id, &data);
    text
}

/// Events of a stream that cannot go on, whatever its job does.
fn gone_event(job: &StoredJob) -> String {
    let mut text = String::new();
    let detail = "events that came before are gone: `urls.get` has the whole output at the end";
    let data = serde_json::json!({ "detail": detail }).to_string();
    let id = format!("{}:0", job.definition.created.0);
    write_event(&mut text, "error", &id, &data);
    text
}

/// Writes an event with one `data` for each line of its text. A carriage return ends a line as well: readers would drop
/// what follows one within a line.
fn write_event(out: &mut String, name: &str, id: &str, text: &str) {
    // Writing to a string does not fail.
    let _ = write!(out, "event: {name}\nid: {id}\n");
    for line in text.split('\n') {
        for line in line.strip_suffix('\r').unwrap_or(line).split('\r') {
            let _ = writeln!(out, "data: {line}");
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_several_lines_is_one_event() {
        let mut out = String::new();
        write_event(&mut out, "output", "5:1", "a\n b\n");
        assert_eq!(out, "event: output\nid: 5:1\ndata: a\ndata:  b\ndata: \n\n");
        let mut out = String::new();
        write_event(&mut out, "output", "5:1", "a\r\nb\rc");
        assert_eq!(out, "event: output\nid: 5:1\ndata: a\ndata: b\ndata: c\n\n");
    }

    #[test]
    fn an_output_is_text_where_it_can_be() {
        assert_eq!(joined_text(&serde_json::json!(["a", "b"])), "ab");
        assert_eq!(joined_text(&serde_json::json!({ "a": 1 })), r#"{"a":1}"#);
    }
}
