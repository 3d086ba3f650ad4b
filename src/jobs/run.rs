//! Run of one job: the checks at its turn, the pipeline, and the write of what came of it.
//!
//! Not the choice of the job. The permit goes into the pipeline and is free again before the end is written: the
//! model server does not wait for the disk.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::job::{
    EndReason, JobDefinition, JobKind, JobState, ReleaseCause, StoreTime, TakenJob, WorkerId,
};
use infergate_core::model::WhenQuotaUsed;
use infergate_core::trace_context::TRACEPARENT;
use infergate_core::{Millis, Refusal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::attempts::AttemptLog;
use super::ends::{RunDecision, RunFacts, decide, outcome, quota_pause, refusal_text};
use super::events::{self, EndTimes};
use super::file_values::{InputFileRules, JobFiles, OutputNotStored};
use super::kept_ends::KeptEnds;
use super::live::{LiveOutput, LiveOutputs};
use super::moderation::Moderator;
use super::output::OutputCollector;
use super::readiness::{NotRun, before_run, check_trained, stopped};
use super::receiver::JobDownstream;
use super::request::{JobResult, StoredRequest, run_target};
use super::signals::{JobSignals, RunGuard, StopCause};
use super::store::{EndRecord, JobStore, StoredRun};
use super::store_clock::StoreClock;
use super::webhook::{JobNotices, WebhookClient};
use crate::files::Files;
use crate::http1::Fields;
use crate::pipeline::{
    AuthenticatedRequest, InferenceRequest, JobHeader, OwedCharge, RequestContext, RequestError,
    RequestedOperation, run, settle_account,
};
use crate::state::Shared;
use crate::upstream::Permit;

/// API of the submit of a job whose request cannot be read.
const NO_API: &str = "";

/// Parts that runs of one process need.
pub struct RunContext {
    /// State of the gateway.
    pub shared: Arc<Shared>,
    /// Store of the jobs.
    pub store: Arc<dyn JobStore>,
    /// Hints.
    pub signals: Arc<JobSignals>,
    /// Incarnation of the process.
    pub worker: WorkerId,
    /// Clock of the store.
    pub clock: StoreClock,
    /// Outputs as they come.
    pub live: Arc<LiveOutputs>,
    /// Attempts for operators.
    pub attempts: Arc<AttemptLog>,
    /// Client of receivers.
    pub webhooks: Arc<WebhookClient>,
    /// Files of accounts.
    pub files: Arc<Files>,
    /// Ends that the store does not take at the moment.
    pub kept: Arc<KeptEnds>,
    /// Client of moderation.
    pub moderator: Moderator,
}

/// Finished run: its facts, its output and its context, which has the bill.
struct FinishedRun {
    facts: RunFacts,
    result: JobResult,
    ctx: RequestContext,
    /// API of the submit.
    api: Arc<str>,
}

/// Cause for which the files of an output were not waited for.
enum OutputCut {
    Stopped(StopCause),
    Late(EndReason),
}

impl FinishedRun {
    /// The output is not there whole: the job was stopped, or its time was over.
    fn cut(&mut self, cut: OutputCut) {
        self.result.output = None;
        match cut {
            OutputCut::Stopped(cause) => self.facts.stop = cause,
            OutputCut::Late(reason) => {
                self.facts.time_over = Some(reason);
                self.facts.is_cut = true;
            }
        }
    }
}

impl RunContext {
    /// Registers a taken job as a run of this process, until the guard is dropped.
    pub fn register(&self, taken: &TakenJob) -> (RunGuard, watch::Receiver<StopCause>) {
        let (id, epoch) = (taken.definition.id, taken.progress.epoch);
        self.signals.register_run(id, epoch)
    }

    /// Runs a taken job to its end.
    pub async fn run(
        &self,
        stored: StoredRun,
        permit: Permit,
        (_guard, stop): (RunGuard, watch::Receiver<StopCause>),
    ) {
        let StoredRun {
            taken,
            payload,
            weights_changed,
        } = stored;
        self.count_start(&taken);
        let (id, epoch) = (taken.definition.id, taken.progress.epoch);
        self.attempts
            .begin((id, epoch), &permit.target.url, self.clock.now());
        let mut request = match StoredRequest::read(&payload) {
            Ok(request) => request,
            Err(error) => {
                tracing::error!(job = %id, %error, "the stored request of a job cannot be read");
                drop(permit);
                let end = NotRun::Ends(EndReason::InvalidInput, None);
                return self.leave(&taken, end, NO_API).await;
            }
        };
        let choices = self.webhooks.choices();
        let base_url = Arc::clone(&request.base_url);
        let own = JobFiles {
            files: &self.files,
            account: &taken.definition.account,
            callbacks: choices.callbacks_url.as_deref(),
            rules: &InputFileRules::of(&self.shared, &taken.definition.model),
            base_url: &base_url,
        };
        if let Err(not_run) = self.admit(&taken, &request) {
            drop(permit);
            return self.leave(&taken, not_run, &request.api).await;
        }
        let (began, mut stop_of_files) = (Instant::now(), stop.clone());
        let deadline = self.shared.clock.now() + taken.time_left;
        // Receivers see the input as it is stored.
        let noticed = request.webhook.is_some().then(|| request.clone());
        let prepared = self.prepare(&taken, own, &mut request);
        if let Err(not_run) = before_run(&taken, stop.clone(), prepared).await {
            // Others need it while the end is written.
            drop(permit);
            return self.leave(&taken, not_run, &request.api).await;
        }
        let live = self.live.begin((id, epoch), self.clock.now());
        let output = Arc::clone(&live.output);
        let mut receiver = self.receiver((&taken, &request), stop, output);
        receiver.weights_changed = weights_changed;
        let output = Arc::clone(&live.output);
        let noticed = (&taken, noticed.as_ref().unwrap_or(&request));
        let notices = JobNotices::of(&self.webhooks, self.clock, noticed, output);
        let running = Box::pin(self.infer((&taken, deadline), &request, receiver, permit));
        let mut finished = JobNotices::during(notices, running).await;
        let left = Duration::from_millis(taken.time_left.0).saturating_sub(began.elapsed());
        let cut = tokio::select! {
            () = RunContext::keep_output(own, &mut finished) => None,
            cause = stopped(&mut stop_of_files) => Some(OutputCut::Stopped(cause)),
            () = sleep(left) => Some(OutputCut::Late(taken.end_reason)),
        };
        if let Some(cut) = cut {
            finished.cut(cut);
        }
        if self.settle(&taken, finished).await {
            live.end(self.clock.now());
        }
    }

    /// Puts the files of a job's input in their places, and has it moderated where its model says so.
    async fn prepare(
        &self,
        taken: &TakenJob,
        own: JobFiles<'_>,
        request: &mut StoredRequest,
    ) -> Result<(), NotRun> {
        let definition = &taken.definition;
        let job = definition.id;
        let end = definition.limits.next_end(taken.progress.timed_from());
        // Files go by the clock on the wall, which may have been set since the store's began.
        let until_ms = self.files.now_ms() + end.at.since(self.clock.now()).0;
        match own.restore(request, until_ms).await {
            Ok(()) => {}
            Err(Refusal::JobsUnavailable) => {
                tracing::warn!(%job, "a job waits for its files, which cannot be read");
                return Err(NotRun::Released(ReleaseCause::NoServer));
            }
            Err(refusal) => {
                tracing::warn!(%job, ?refusal, "a file of a job's input cannot be used");
                let text = refusal_text(&refusal);
                return Err(NotRun::Ends(EndReason::InvalidInput, Some(text)));
            }
        }
        let spec = {
            let snapshot = self.shared.snapshot.load();
            let model = snapshot.catalog.model(definition.model.as_str());
            model.and_then(|(_, model)| model.jobs.moderation.clone())
        };
        if let Some(spec) = spec
            && !self
                .moderator
                .allows(&spec, definition, &request.input)
                .await
        {
            return Err(NotRun::Ends(EndReason::Moderated, None));
        }
        Ok(())
    }

    /// Ends or releases a job that is not run.
    async fn leave(&self, taken: &TakenJob, not_run: NotRun, api: &str) {
        match not_run {
            NotRun::Ends(reason, text) => self.finish_unrun(taken, (reason, text), api).await,
            NotRun::Released(cause) => self.release(taken, cause, None).await,
            NotRun::Waits(until) => {
                self.release(taken, ReleaseCause::QuotaWait, Some(until))
                    .await;
            }
            NotRun::Lost => {}
        }
    }

    fn receiver(
        &self,
        (taken, request): (&TakenJob, &StoredRequest),
        stop: watch::Receiver<StopCause>,
        live: Arc<LiveOutput>,
    ) -> JobDownstream {
        let snapshot = self.shared.snapshot.load();
        let spec = snapshot.catalog.model(taken.definition.model.as_str());
        let most_mib = spec.map_or(1, |(_, spec)| spec.jobs.output_max_mib);
        let most = usize::try_from(most_mib << 20).unwrap_or(usize::MAX);
        let (_, target) = run_target(&taken.definition.model);
        let mut lines = vec![("content-type", "application/json")];
        let traceparent = request.traceparent.as_deref();
        lines.extend(traceparent.map(|context| (TRACEPARENT, context)));
        let headers = Fields::from_lines(&lines);
        let output = OutputCollector::new(self.shared.clock, most);
        let live = (live, self.clock);
        JobDownstream::new((target, headers), stop, output, live)
    }

    /// Puts media and large values of an output into files, where clients can take URLs for them: below `https:` alone.
    async fn keep_output(own: JobFiles<'_>, finished: &mut FinishedRun) {
        let Some(output) = &finished.result.output else {
            return;
        };
        if !own.base_url.starts_with("https:")
            || !matches!(decide(&finished.facts), RunDecision::End { .. })
        {
            return;
        }
        match own.keep_output(output).await {
            Ok(None) => {}
            Ok(kept) => finished.result.output = kept,
            Err(OutputNotStored) => {
                finished.facts.is_unstored = true;
                finished.result.output = None;
            }
        }
    }

    /// Runs the pipeline for a taken job, up to its end by time, which also its preparation has used.
    async fn infer(
        &self,
        (taken, deadline): (&TakenJob, Millis),
        request: &StoredRequest,
        mut receiver: JobDownstream,
        permit: Permit,
    ) -> FinishedRun {
        let shared = &self.shared;
        let definition = &taken.definition;
        let header = JobHeader {
            event_id: format!("{}:{}", definition.id, taken.progress.epoch).into(),
            account: definition.account.clone(),
            deadline,
            age: self.clock.now().since(definition.created),
        };
        let mut ctx = RequestContext::for_job(shared, shared.drain.enter(), header);
        // A training runs on its trainer's endpoints alone, one at a time on each.
        ctx.can.may_fall_back &= definition.kind != JobKind::Training;
        // After a loss the worker has chosen another endpoint.
        ctx.can.exchanges_permit &= taken.progress.attempts.counted == 0;
        let ended = match self.request(definition, request, &receiver, &mut ctx, permit) {
            Ok(inference) => {
                self.begin_trace(&mut ctx, taken, receiver.weights_changed);
                let account = Arc::clone(&inference.authenticated.account);
                let ended = Box::pin(run(shared, &mut receiver, &mut ctx, inference)).await;
                settle_account(shared, &mut ctx, &account, &ended);
                ended
            }
            Err(refusal) => Err(RequestError::Refused(refusal)),
        };
        let is_late = shared.clock.now() >= deadline;
        let (refusal, is_aborted) = match ended {
            Ok(()) => (None, false),
            Err(RequestError::Refused(refusal)) => (Some(refusal), false),
            Err(RequestError::Aborted) => (None, true),
        };
        let is_success = (200..300).contains(&receiver.status);
        let error = receiver.output.error();
        let has_failed = ctx.has_model_failed;
        let is_cut = is_aborted || (is_success && receiver.output.is_stream_cut());
        let facts = RunFacts {
            status: receiver.status,
            is_cut,
            stop: receiver.stop_cause(),
            time_over: is_late.then_some(taken.end_reason),
            is_too_large: receiver.is_too_large,
            is_unstored: false,
            was_sent: ctx.attempts > 0,
            // A stream that broke off ends with an error event of ours.
            has_error: has_failed || (is_success && !is_cut && error.is_some()),
            when_quota_used: self.quota_rule(definition),
            refusal,
        };
        // What a server says of its own failure may name paths and addresses.
        let text = facts.refusal.as_ref().map(refusal_text).or(error);
        let text = text.filter(|_| !has_failed);
        let output = receiver.output.output().filter(|_| is_success);
        let result = JobResult {
            v: StoredRequest::VERSION,
            output,
            error: text,
            ..JobResult::default()
        };
        FinishedRun {
            facts,
            result,
            ctx,
            api: Arc::clone(&request.api),
        }
    }

    fn quota_rule(&self, definition: &JobDefinition) -> WhenQuotaUsed {
        let snapshot = self.shared.snapshot.load();
        let spec = snapshot.catalog.model(definition.model.as_str());
        spec.map_or_else(WhenQuotaUsed::default, |(_, spec)| {
            spec.jobs.when_quota_used
        })
    }

    fn begin_trace(&self, ctx: &mut RequestContext, taken: &TakenJob, weights_changed: bool) {
        if taken.progress.epoch > 1 {
            ctx.leave_trace_of_sender();
        }
        ctx.begin_trace();
        if weights_changed {
            let now_us = self.shared.clock.micros();
            ctx.trace.record_weights_change(now_us);
        }
    }

    /// Makes the request of the pipeline: account and model as they are now.
    fn request(
        &self,
        definition: &JobDefinition,
        request: &StoredRequest,
        receiver: &JobDownstream,
        ctx: &mut RequestContext,
        permit: Permit,
    ) -> Result<InferenceRequest, Refusal> {
        use crate::pipeline::Downstream;
        let snapshot = Arc::clone(&ctx.snapshot);
        if snapshot.accounts.known(&definition.account).is_none()
            && definition.account.as_str() != infergate_core::AccountId::ANONYMOUS
        {
            return Err(Refusal::NotAllowed);
        }
        let read = AuthenticatedRequest::read(receiver.request_head(), ctx)?;
        let (authenticated, RequestedOperation::Call(operation, path_model)) = read else {
            return Err(Refusal::NoSuchRoute);
        };
        let (at, spec) = snapshot
            .catalog
            .model(definition.model.as_str())
            .ok_or(Refusal::NoSuchModel)?;
        if definition.kind == JobKind::Training {
            let account = &authenticated.account.spec;
            check_trained(&snapshot.catalog, account, definition, request)?;
        }
        let body = request.run_body(definition.kind, spec.task)?;
        // A job of weights comes with a permit of their base. One for an endpoint that its model has not got any more
        // goes back.
        let permit = permit.lend_to(&snapshot.models.get(at).gate);
        let mut body_share = self
            .shared
            .bodies
            .share(&authenticated.account.bodies, snapshot.body_limits());
        if !body_share.grow(body.len() as u64) {
            return Err(Refusal::BodyBudgetSpent);
        }
        Ok(InferenceRequest {
            authenticated,
            operation,
            path_model,
            model: None,
            body,
            body_share,
            permit,
        })
    }

    /// Writes what came of a run. Returns whether the job ends with it.
    async fn settle(&self, taken: &TakenJob, finished: FinishedRun) -> bool {
        let FinishedRun {
            facts,
            mut result,
            mut ctx,
            api,
        } = finished;
        let decision = decide(&facts);
        let (state, reason, is_charged) = match decision {
            RunDecision::End {
                state,
                reason,
                is_charged,
            } => (state, reason, is_charged),
            RunDecision::Release(cause) => {
                match facts.was_sent {
                    true => {
                        ctx.waive_charge();
                        // Its trace is kept; the event is that of the run which ends the job.
                        if let Some((event, _)) = ctx.take_event() {
                            self.note_attempt(taken, event.upstream.as_ref(), event.trace_id);
                        }
                    }
                    false => ctx.discard(),
                }
                drop(ctx);
                let pause = || quota_pause(facts.refusal.as_ref());
                let not_before =
                    (cause == ReleaseCause::QuotaWait).then(|| self.clock.now() + pause());
                self.release(taken, cause, not_before).await;
                return false;
            }
            RunDecision::WaitForQuota => {
                ctx.discard();
                drop(ctx);
                let not_run = self.when_quota_used(taken, WhenQuotaUsed::Wait);
                let is_end = matches!(not_run, NotRun::Ends(..));
                self.leave(taken, not_run, &api).await;
                return is_end;
            }
            RunDecision::Nothing => {
                ctx.discard();
                return true;
            }
        };
        if let Some(reason) = reason {
            let own = result.error.take();
            let is_models = matches!(reason, EndReason::ModelError | EndReason::InvalidInput);
            let text = own.filter(|_| is_models);
            result.error = Some(text.unwrap_or_else(|| reason.text().to_owned()));
        }
        ctx.set_outcome(outcome(state, reason));
        let is_failure_charged = reason == Some(EndReason::ModelError) && ctx.charges_failures();
        if !is_charged && !is_failure_charged {
            ctx.waive_charge();
        }
        let record = self.record(taken, (state, reason), (result, &api), &mut ctx);
        drop(ctx);
        self.write_end(taken, (state, reason), record).await;
        true
    }

    /// Builds result and event of an end.
    fn record(
        &self,
        taken: &TakenJob,
        end: (JobState, Option<EndReason>),
        (mut result, api): (JobResult, &str),
        ctx: &mut RequestContext,
    ) -> (EndRecord, Option<OwedCharge>) {
        let now = self.clock.now();
        let times = EndTimes {
            ended: now,
            started: taken.progress.started,
            taken: taken.progress.taken,
        };
        let Some((mut event, owed)) = ctx.take_event() else {
            let record = EndRecord {
                result: result.to_bytes().into(),
                event: Bytes::new(),
            };
            return (record, None);
        };
        self.note_attempt(taken, event.upstream.as_ref(), event.trace_id);
        let (definition, progress) = (&taken.definition, &taken.progress);
        events::complete_event(&mut event, definition, progress, end, times, api);
        let secs = |from: StoreTime| now.since(from).0 as f64 / 1000.0;
        let metrics = &mut result.metrics;
        for (name, count) in [
            ("input_token_count", event.metrics.input_tokens),
            ("output_token_count", event.metrics.output_tokens),
        ] {
            if let Some(count) = count {
                metrics.insert(name.to_owned(), count.into());
            }
        }
        if let Some(taken) = times.taken {
            metrics.insert("predict_time".to_owned(), secs(taken).into());
        }
        metrics.insert(
            "total_time".to_owned(),
            secs(taken.definition.created).into(),
        );
        result.neurons = event.neurons.unwrap_or(0.0);
        result.upstream = event.upstream.clone();
        let record = EndRecord {
            result: result.to_bytes().into(),
            event: events::line(&event, self.shared.clock).into(),
        };
        (record, owed)
    }

    /// Ends a job that could not be run. `api` is that of its submit, empty where that is not known.
    async fn finish_unrun(
        &self,
        taken: &TakenJob,
        (reason, text): (EndReason, Option<String>),
        api: &str,
    ) {
        let end = (reason.state(true), Some(reason));
        let header = JobHeader {
            event_id: format!("{}:{}", taken.definition.id, taken.progress.epoch).into(),
            account: taken.definition.account.clone(),
            deadline: Millis::MAX,
            age: Millis(0),
        };
        let shared = &self.shared;
        let mut ctx = RequestContext::for_job(shared, shared.drain.enter(), header);
        let result = JobResult::failed(text.unwrap_or_else(|| reason.text().to_owned()));
        let record = self.record(taken, end, (result, api), &mut ctx);
        drop(ctx);
        self.write_end(taken, end, record).await;
    }

    /// Ends a job whose deployment has another model than when it was created.
    pub async fn end_moved(&self, taken: &TakenJob) {
        let end = (EndReason::ModelRemoved, None);
        self.finish_unrun(taken, end, NO_API).await;
    }

    /// Ends or releases a job that never got a permit.
    pub async fn leave_taken(&self, taken: &TakenJob, not_run: NotRun) {
        self.leave(taken, not_run, NO_API).await;
    }
}
