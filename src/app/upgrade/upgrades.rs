//! Upgrades of one process: the one that it began with, and the one that ends it.
//!
//! Starts no successor: [`offer_upgrades`](super::offer_upgrades) does. Permits are exchanged with each neighbour for as
//! long as it lives.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::messages::UpgradeAnswer;
use super::offer::{OfferedUpgrade, WaitingCommand};
use super::permits::{ModelsTaken, exchange_permits};
use super::successor::Turn;
use crate::app::gpu::{HostEnding, HostPredecessor};
use crate::app::membership_handover::MembershipHandover;
use crate::state::Shared;
use crate::upstream::PermitSide;

/// Longest wait for a successor to take models over: estimates of their files, and checks of their processes.
const TAKE_OVER_MAX: Duration = Duration::from_secs(90);
/// Step of an upgrade that may take a while.
const RESTING: &str = "models that are being loaded become ready";

/// Upgrades of this process.
pub struct Upgrades {
    offered: mpsc::Receiver<OfferedUpgrade>,
    predecessor: JoinSet<()>,
    successor: JoinSet<()>,
    /// Command to be answered, and the process that serves now.
    command: Option<(WaitingCommand, Child)>,
    has_predecessor: Arc<AtomicBool>,
    /// This process has the models of its predecessor.
    has_models: ModelsTaken,
    /// The successor has the models of this process.
    has_given_models: ModelsTaken,
}

impl Upgrades {
    /// Returns the upgrades, with the end to which successors go that could serve: one at a time.
    pub fn new() -> (Upgrades, mpsc::Sender<OfferedUpgrade>) {
        let (sender, offered) = mpsc::channel(1);
        let upgrades = Upgrades {
            offered,
            predecessor: JoinSet::new(),
            successor: JoinSet::new(),
            command: None,
            has_predecessor: Arc::default(),
            has_models: Arc::new(watch::Sender::new(false)),
            has_given_models: Arc::new(watch::Sender::new(false)),
        };
        (upgrades, sender)
    }

    /// Begins to serve in the place of a predecessor, in its turn: what it may still use is not this process's yet. Returns
    /// when connections can be accepted.
    pub async fn take_turn(&mut self, turn: Turn, shared: &Arc<Shared>) {
        // It writes events until it has ended.
        shared.sink.set_shared(true);
        let side = PermitSide::Beginning;
        let permits = shared
            .snapshot
            .load()
            .models
            .share_permits(side, turn.owned());
        match turn.begin(&permits).await {
            Ok(stream) => {
                let has_predecessor = Arc::clone(&self.has_predecessor);
                let shared = Arc::clone(shared);
                let parts = (Arc::clone(&shared), Arc::clone(&self.has_models));
                has_predecessor.store(true, Ordering::Release);
                self.predecessor.spawn(async move {
                    exchange_permits(stream, permits, side, parts).await;
                    has_predecessor.store(false, Ordering::Release);
                    // A process that drains has a successor, which writes too.
                    shared.sink.set_shared(shared.drain.is_draining());
                });
            }
            Err(error) => {
                tracing::error!(%error, "the process before this one has ended in the hand-over");
                shared.sink.set_shared(false);
                permits.take_all();
            }
        }
    }

    /// Returns whether the process before this one lives; it keeps what is counted until then.
    pub fn has_predecessor(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_predecessor)
    }

    /// Gateway that had the processes of models before this one.
    pub fn host_predecessor(&self) -> HostPredecessor {
        match self.has_predecessor.load(Ordering::Acquire) {
            true => HostPredecessor::Lives(Arc::clone(&self.has_models)),
            false => HostPredecessor::Ended,
        }
    }

    /// Waits until the successor has the models of this process: without a gateway they would end. A successor that has
    /// ended is not waited for.
    pub async fn models_taken(&mut self) {
        let mut given = self.has_given_models.subscribe();
        let taken = async {
            tokio::select! {
                _ = given.wait_for(|given| *given) => {}
                _ = self.successor.join_next() => {}
            }
        };
        if timeout(TAKE_OVER_MAX, taken).await.is_err() {
            tracing::warn!(
                "the successor does not say that it has the models: they may end with this process"
            );
        }
    }

    /// Refuses successors from now on.
    pub async fn refuse(&mut self) {
        self.offered.close();
        while let Some(offered) = self.offered.recv().await {
            let (_, command) = offered.into_parts();
            let reason = "the gateway is ending".to_owned();
            command.answer(&UpgradeAnswer::Failed(reason)).await;
        }
    }

    /// Returns the next successor that could serve.
    pub async fn next(&mut self) -> OfferedUpgrade {
        match self.offered.recv().await {
            Some(offered) => offered,
            // No successor can be asked for.
            None => std::future::pending().await,
        }
    }

    /// Has a successor serve. Returns false where it does not: this process serves on. Processes of `models` rest first, and
    /// are the successor's then, as is the part in a cluster.
    pub async fn begin(
        &mut self,
        offered: OfferedUpgrade,
        shared: &Arc<Shared>,
        (models, membership): (Option<&mut HostEnding>, Option<&MembershipHandover>),
    ) -> bool {
        let (successor, mut command) = offered.into_parts();
        let models = match models {
            Some(models) => {
                command.report(RESTING).await;
                if !models.rest().await {
                    models.resume();
                    let reason = "models could not be brought to rest; the log has their states";
                    tracing::error!(reason, "an upgrade has failed: this process serves on");
                    command
                        .answer(&UpgradeAnswer::Failed(reason.to_owned()))
                        .await;
                    return false;
                }
                Some(&*models)
            }
            None => None,
        };
        // Both write events from its turn on.
        shared.sink.set_shared(true);
        let snapshot = shared.snapshot.load();
        let owned = snapshot.models.server_limits();
        let node = membership.map(|membership| membership.node(shared));
        let serving = successor.begin(owned, shared.quota.snapshot(), node);
        match serving.await {
            Ok((child, stream)) => {
                if let Some(membership) = membership {
                    // The successor joins once it has the first permits.
                    membership.leave().await;
                }
                let pid = child.id();
                tracing::info!(
                    pid,
                    "the successor serves: this process ends with its last request"
                );
                // Those that are on their way get permits that come back: none is refused for its queue.
                snapshot.models.lengthen_queues();
                models.into_iter().for_each(HostEnding::hand_over);
                self.share_with_successor(stream, shared);
                self.command = Some((command, child));
                true
            }
            Err(reason) => {
                models.into_iter().for_each(HostEnding::resume);
                let has_predecessor = self.has_predecessor.load(Ordering::Acquire);
                shared.sink.set_shared(has_predecessor);
                tracing::error!(reason, "an upgrade has failed: this process serves on");
                command.answer(&UpgradeAnswer::Failed(reason)).await;
                false
            }
        }
    }

    /// Answers the command once this process accepts no connection any more.
    pub async fn answer_command(&mut self) {
        if let Some((command, child)) = self.command.take() {
            let pid = child.id();
            command.answer(&UpgradeAnswer::Done { pid }).await;
        }
    }

    fn share_with_successor(&mut self, stream: UnixStream, shared: &Arc<Shared>) {
        let side = PermitSide::Ending;
        let none = BTreeMap::new();
        let permits = shared.snapshot.load().models.share_permits(side, &none);
        let parts = (Arc::clone(shared), Arc::clone(&self.has_given_models));
        self.successor
            .spawn(exchange_permits(stream, permits, side, parts));
    }

    /// Returns when the process before this one has ended: permits that it still uses are known to this one alone.
    pub async fn predecessor_ended(&mut self) {
        while self.predecessor.join_next().await.is_some() {}
    }
}
