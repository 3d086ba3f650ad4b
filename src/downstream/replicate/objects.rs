//! Routes that show, list and cancel jobs.
//!
//! A job of another account is as unknown as one that is not there.

use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::api::replicate::{JobCollection, PageView};
use infergate_core::job::{CanceledBy, JobId, JobKind};
use infergate_core::model::AccountSpec;

use super::answer::RouteAnswer;
use crate::downstream::session::Session;
use crate::jobs::{JobListing, Jobs, ShownStatus, StoredJob, replicate_object};

/// Objects of a list's part.
const PAGE_OBJECTS: usize = 100;
/// Longest wait of a cancel for the end of the run.
const CANCEL_WAIT: Duration = Duration::from_secs(2);
/// Host of URLs where a request names none.
const NO_HOST: &str = "localhost";

/// Scheme and host of a client's URLs.
pub(in crate::downstream) fn base_url(session: &Session, jobs: &Jobs) -> String {
    if let Some(url) = &jobs.choices().public_url {
        return url.trim_end_matches('/').to_owned();
    }
    let head = session.request_head();
    let host = head.headers.text_of("host").unwrap_or(NO_HOST);
    let scheme = match session.is_secure() {
        true => "https",
        false => "http",
    };
    format!("{scheme}://{host}")
}

/// Returns the kind of a collection's jobs.
pub(super) fn kind_of(collection: JobCollection) -> JobKind {
    match collection {
        JobCollection::Predictions => JobKind::Prediction,
        JobCollection::Trainings => JobKind::Training,
    }
}

/// Finds a job of an account.
async fn find(
    jobs: &Jobs,
    account: &AccountSpec,
    collection: JobCollection,
    id: &str,
) -> Result<StoredJob, Refusal> {
    let unknown = || Refusal::Rejected {
        status: 404,
        pointer: String::new(),
        message: "no such object: it is another account's, its time is over, or it never was"
            .to_owned(),
    };
    let id: JobId = id.parse().map_err(|_| unknown())?;
    let found = jobs.get(id).await?.ok_or_else(unknown)?;
    let is_own = found.definition.account == account.id;
    let is_kind = found.definition.kind == kind_of(collection);
    match is_own && is_kind {
        true => Ok(found),
        false => Err(unknown()),
    }
}

/// Shows a job.
pub(super) async fn get(
    jobs: &Jobs,
    account: &AccountSpec,
    collection: JobCollection,
    id: &str,
) -> Result<RouteAnswer, Refusal> {
    let job = find(jobs, account, collection, id).await?;
    let job = jobs.with_input(job).await;
    Ok(RouteAnswer::ok(replicate_object(
        &jobs.choices(),
        &job,
        ShownStatus::Present,
    )))
}

/// Lists the jobs of an account.
pub(super) async fn list(
    jobs: &Jobs,
    account: &AccountSpec,
    (collection, query): (JobCollection, &str),
    host: &str,
) -> Result<RouteAnswer, Refusal> {
    let cursor = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("cursor="));
    let before = cursor.map(|cursor| cursor.parse::<i64>()).transpose();
    let before = before.map_err(|_| Refusal::Rejected {
        status: 422,
        pointer: String::new(),
        message: "`cursor` is not one of this list".to_owned(),
    })?;
    let listing = JobListing {
        account: Some(account.id.clone()),
        kind: Some(kind_of(collection)),
        state: None,
        model: None,
        before,
        limit: PAGE_OBJECTS,
    };
    let found = jobs.list(listing).await?;
    let segment = collection.segment();
    let choices = jobs.choices();
    let page = PageView {
        previous: None,
        next: found
            .next()
            .map(|place| format!("{host}/v1/{segment}?cursor={place}")),
        results: found
            .jobs
            .iter()
            .map(|job| replicate_object(&choices, job, ShownStatus::Present))
            .collect(),
    };
    Ok(RouteAnswer::ok(page.to_bytes()))
}

/// Cancels a job, and waits a moment for its end.
pub(super) async fn cancel(
    jobs: &Jobs,
    account: &AccountSpec,
    collection: JobCollection,
    id: &str,
) -> Result<RouteAnswer, Refusal> {
    let job = find(jobs, account, collection, id).await?;
    let id = job.definition.id;
    jobs.cancel(id, CanceledBy::User).await?;
    // The cancel is accepted: a store that cannot be read meanwhile does not change that.
    let ended = jobs.wait(id, CANCEL_WAIT).await;
    let job = ended.ok().flatten().unwrap_or(job);
    Ok(RouteAnswer::ok(replicate_object(
        &jobs.choices(),
        &job,
        ShownStatus::Present,
    )))
}
