//! Time between the take of a job and its run: whether it may run, what stops it then, and what becomes of it.
//!
//! Not what is done in that time, which is the caller's.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::job::{EndReason, JobDefinition, JobKind, ReleaseCause, StoreTime, TakenJob};
use infergate_core::model::{Access, AccountSpec, Catalog, WhenQuotaUsed};
use infergate_core::{AccountId, Refusal};
use tokio::sync::watch;
use tokio::time::sleep;

use super::ends::next_midnight;
use super::request::StoredRequest;
use super::run::RunContext;
use super::signals::StopCause;

/// Reason for which a taken job is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// Ends, with a text for the user that says more than the reason does.
    Ends(EndReason, Option<String>),
    /// Goes back into the queue.
    Released(ReleaseCause),
    /// Queued again until a moment: its account has used up its day.
    Waits(StoreTime),
    /// Another has written its end.
    Lost,
}

/// Waits for `work`, no longer than the job may take and while nobody stops it.
///
/// # Errors
/// What `work` says, or what becomes of the job that is stopped or late.
pub async fn before_run<T>(
    taken: &TakenJob,
    mut stop: watch::Receiver<StopCause>,
    work: impl Future<Output = Result<T, NotRun>>,
) -> Result<T, NotRun> {
    tokio::select! {
        done = work => done,
        cause = stopped(&mut stop) => Err(match cause {
            StopCause::Canceled(by) => NotRun::Ends(by.reason(), None),
            StopCause::Drain => NotRun::Released(ReleaseCause::Drain),
            StopCause::Lost | StopCause::None => NotRun::Lost,
        }),
        () = sleep(Duration::from_millis(taken.time_left.0)) => {
            Err(NotRun::Ends(taken.end_reason, None))
        }
    }
}

/// Waits until the run is to stop. A sender that is gone has lost the job as well.
pub async fn stopped(stop: &mut watch::Receiver<StopCause>) -> StopCause {
    let cause = stop.wait_for(|cause| *cause != StopCause::None).await;
    cause.map_or(StopCause::Lost, |cause| *cause)
}

impl RunContext {
    /// Decides whether a taken job may run, before anything of it leaves this process: its account, its model, its day.
    pub(super) fn admit(&self, taken: &TakenJob, request: &StoredRequest) -> Result<(), NotRun> {
        let definition = &taken.definition;
        let snapshot = self.shared.snapshot.load();
        let ends = |reason| Err(NotRun::Ends(reason, None));
        let Some((_, model)) = snapshot.catalog.model(definition.model.as_str()) else {
            return ends(EndReason::ModelRemoved);
        };
        let account = match snapshot.accounts.known(&definition.account) {
            Some(account) => Arc::clone(&account.spec),
            None if definition.account.as_str() == AccountId::ANONYMOUS => {
                AccountSpec::anonymous().into()
            }
            None => return ends(EndReason::NotPermitted),
        };
        if Catalog::access(&account, model) != Access::Allowed {
            return ends(EndReason::NotPermitted);
        }
        if definition.kind == JobKind::Training {
            match check_trained(&snapshot.catalog, &account, definition, request) {
                Ok(()) => {}
                Err(Refusal::NoSuchModel) => return ends(EndReason::ModelRemoved),
                Err(_) => return ends(EndReason::NotPermitted),
            }
        }
        let spent = account
            .neurons_per_day
            .and_then(|limit| self.shared.quota.check(&account.id, limit).err());
        match spent {
            Some(Refusal::QuotaUsed) => {
                Err(self.when_quota_used(taken, model.jobs.when_quota_used))
            }
            _ => Ok(()),
        }
    }

    /// Returns what becomes of a job whose account has used up its day: the next day is waited for where the job lives
    /// until then.
    pub(super) fn when_quota_used(&self, taken: &TakenJob, rule: WhenQuotaUsed) -> NotRun {
        let tomorrow = next_midnight(self.clock.now());
        let limits = &taken.definition.limits;
        match rule {
            WhenQuotaUsed::Wait if tomorrow < limits.next_end(None).at => NotRun::Waits(tomorrow),
            WhenQuotaUsed::Wait | WhenQuotaUsed::Fail => NotRun::Ends(EndReason::QuotaUsed, None),
        }
    }
}

/// Checks that the model of a training is still trained by the job's model, and the account's to use.
pub fn check_trained(
    catalog: &Catalog,
    account: &AccountSpec,
    definition: &JobDefinition,
    request: &StoredRequest,
) -> Result<(), Refusal> {
    let trained = catalog.model(&request.shown_model).map(|(_, spec)| spec);
    let trained = trained.filter(|spec| spec.trainer.as_ref() == Some(&definition.model));
    let trained = trained.ok_or(Refusal::NoSuchModel)?;
    match Catalog::access(account, trained) {
        Access::Allowed => Ok(()),
        Access::Denied | Access::Hidden => Err(Refusal::NotAllowed),
    }
}
