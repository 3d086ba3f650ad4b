//! End of the GPU host with its process: what the drain orders, and the word that no process of a model is left.
//!
//! Orders nothing itself: the driver follows the stage. Stages only grow.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Longest time from SIGKILL until no process is left; one in a driver's call is not waited for.
const KILL_MAX: Duration = Duration::from_secs(2);

/// Stage of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndingStage {
    /// Requests come.
    Serving,
    /// Requests that were accepted are served; a model ends after its last one, pinned ones last.
    Draining,
    /// No request is waited for any more: every model is asked to end.
    Stopping,
    /// Every process is killed.
    Killing,
}

/// Orders of the drain to a GPU host.
pub struct HostEnding {
    stage: watch::Sender<EndingStage>,
    /// No process is left, or those that are left are the next gateway's.
    ended: watch::Receiver<bool>,
}

/// The other end, which the driver has.
pub(super) struct EndingOrders {
    pub stage: watch::Receiver<EndingStage>,
    pub ended: watch::Sender<bool>,
}

impl HostEnding {
    /// Returns both ends of a host that serves.
    pub(super) fn new() -> (HostEnding, EndingOrders) {
        let (stage, followed) = watch::channel(EndingStage::Serving);
        let (sender, ended) = watch::channel(false);
        let orders = EndingOrders {
            stage: followed,
            ended: sender,
        };
        (HostEnding { stage, ended }, orders)
    }

    /// Lets models end after their last request.
    pub fn drain(&self) {
        self.reach(EndingStage::Draining);
    }

    /// Ends all models, and waits until no process is left, for at most `limit`.
    pub async fn stop(&mut self, limit: Duration) {
        self.reach(EndingStage::Stopping);
        if timeout(limit, self.ended()).await.is_err() {
            tracing::error!("processes of models could not be ended: the next gateway ends them");
        }
    }

    /// Kills all models, and waits until no process is left.
    pub async fn kill(&mut self) {
        self.reach(EndingStage::Killing);
        if timeout(KILL_MAX, self.ended()).await.is_err() {
            tracing::error!("processes of models could not be killed: the next gateway ends them");
        }
    }

    fn reach(&self, stage: EndingStage) {
        self.stage.send_if_modified(|present| {
            let grows = *present < stage;
            *present = stage.max(*present);
            grows
        });
    }

    async fn ended(&mut self) {
        // A driver that is gone has dropped the life lines of all processes.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}
