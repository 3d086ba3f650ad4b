//! Time between the take of a job and its run: who stops it then, and what becomes of a job that is not run.
//!
//! Not what is done in that time, which is the caller's.

use std::time::Duration;

use infergate_core::job::{EndReason, ReleaseCause, TakenJob};
use tokio::sync::watch;
use tokio::time::sleep;

use super::signals::StopCause;

/// Reason for which a taken job is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// It ends; with a text for the user that says more than the reason does.
    Ends(EndReason, Option<String>),
    /// It goes back into the queue.
    Released(ReleaseCause),
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
        cause = stop.wait_for(|cause| *cause != StopCause::None) => Err(match cause.map(|it| *it) {
            Ok(StopCause::Canceled(by)) => NotRun::Ends(by.reason(), None),
            Ok(StopCause::Drain) => NotRun::Released(ReleaseCause::Drain),
            // A sender that is gone has lost the job as well.
            Ok(StopCause::Lost | StopCause::None) | Err(_) => NotRun::Lost,
        }),
        () = sleep(Duration::from_millis(taken.time_left.0)) => {
            Err(NotRun::Ends(taken.end_reason, None))
        }
    }
}
