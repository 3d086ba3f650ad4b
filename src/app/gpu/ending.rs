//! End of the GPU host with its process: what the drain orders, and the word that no process of a model is left. Also its
//! hand-over to a successor, which takes the processes over.
//!
//! Orders nothing itself: the driver follows the stage. Stages of an end only grow; a hand-over may come to nothing.

use std::sync::Arc;
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

/// Time for loads that have begun to end before a hand-over: the successor ends those that still go on.
pub(super) const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a host that is to rest.
const REST_MAX: Duration = Duration::from_secs(60);

/// Hand-over of the host to the process that follows this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostHandover {
    /// No successor.
    None,
    /// The host is to rest: it starts and ends nothing more.
    Asked,
    /// Processes are the successor's.
    Done,
}

/// Gateway that had the processes of models before this one.
#[derive(Clone, Debug)]
pub enum HostPredecessor {
    /// Ended, if there was one.
    Ended,
    /// Alive, and handing over; it is told by this once the processes are this one's.
    Lives(Arc<watch::Sender<bool>>),
}

/// Orders of the drain to a GPU host.
pub struct HostEnding {
    handover: watch::Sender<HostHandover>,
    /// The host rests.
    rests: watch::Receiver<bool>,
    stage: watch::Sender<EndingStage>,
    /// No process is left, or those that are left are the next gateway's.
    ended: watch::Receiver<bool>,
}

/// The other end, which the driver has.
pub(super) struct EndingOrders {
    pub handover: watch::Receiver<HostHandover>,
    pub rests: watch::Sender<bool>,
    pub stage: watch::Receiver<EndingStage>,
    pub ended: watch::Sender<bool>,
}

impl HostEnding {
    /// Returns both ends of a host that serves.
    pub(super) fn new() -> (HostEnding, EndingOrders) {
        let (stage, followed) = watch::channel(EndingStage::Serving);
        let (sender, ended) = watch::channel(false);
        let (handover, asked) = watch::channel(HostHandover::None);
        let (resting, rests) = watch::channel(false);
        let orders = EndingOrders {
            handover: asked,
            rests: resting,
            stage: followed,
            ended: sender,
        };
        let ending = HostEnding {
            handover,
            rests,
            stage,
            ended,
        };
        (ending, orders)
    }

    /// Has the host start and end nothing more, and waits until it rests: loads that have begun come first. Models that
    /// are ready serve on. Returns false where it does not rest.
    pub async fn rest(&mut self) -> bool {
        self.handover.send_replace(HostHandover::Asked);
        let rests = timeout(REST_MAX, self.rests.wait_for(|rests| *rests)).await;
        rests.is_ok_and(|rests| rests.is_ok())
    }

    /// Has a host that rests go on: there is no successor.
    pub fn resume(&self) {
        self.handover.send_replace(HostHandover::None);
    }

    /// Gives the processes of models to the successor.
    pub fn hand_over(&self) {
        self.handover.send_replace(HostHandover::Done);
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
