//! The GPU host of a process: opened where the configuration has one, and asked and ordered by operators.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use infergate_core::ModelId;
use infergate_core::vram::{FailedPhase, ModelDetails, PoolCommand, SlotState};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::driver::{Driver, DriverParts, HostCommand, HostOrder};
use super::ending::{HostEnding, HostPredecessor};
use super::lease_controls;
use super::log_follower::LogFollowers;
use super::view::{GpuBoard, SlotFacts, shown_client};
use crate::admin::{
    DeviceOrder, GpuControlError, GpuControls, GpuOrder, LogFollower, OrderOutcome,
};
use crate::app::reload::ConfigStatus;
use crate::config::Config;
use crate::gpu::process::{InstanceId, LogReader, log_directory, log_file};
use crate::gpu::{HostLedger, HostMonitor, LedgerChoice, MeasuredStore, default_directory};
use crate::state::Shared;

/// Orders of operators that may wait for the driver.
const ORDERS_MAX: usize = 64;
/// Longest wait for an order to be taken: the files of a model may hang, and its order waits for their sizes.
const ORDER_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of a log that are shown at most.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Returns whether a gateway that starts with this configuration has a GPU host.
pub fn has_host(config: &Config) -> bool {
    config.gpu.is_some() || config.models.iter().any(|model| model.process.is_some())
}

/// The GPU host before it runs.
pub struct GpuHost {
    driver: Driver,
    controls: Arc<HostControls>,
    ending: HostEnding,
}

impl GpuHost {
    /// Opens ledger and devices; none where the configuration has neither `gpu` nor a model with a process.
    ///
    /// # Errors
    /// A sentence: the ledger cannot be opened, or the driver that is named is not there.
    pub fn open(
        (config, status): (&Config, Arc<ArcSwap<ConfigStatus>>),
        shared: &Arc<Shared>,
    ) -> Result<Option<GpuHost>, String> {
        if !has_host(config) {
            return Ok(None);
        }
        let gpu = Arc::new(config.gpu.clone().unwrap_or_default());
        let own = &gpu.ledger.directory;
        let directory = match own.as_os_str().is_empty() {
            true => default_directory().unwrap_or_else(|_| config.state_dir.join("gpu/ledger")),
            false => own.clone(),
        };
        let ledger = match gpu.ledger.store {
            LedgerChoice::None => HostLedger::in_memory()
                .map(Arc::new)
                .map_err(|error| error.to_string())?,
            _ => open_ledger(&directory)?,
        };
        let monitor = HostMonitor::start(&gpu, Arc::clone(&ledger));
        let monitor = monitor.map_err(|error| error.to_string())?;
        let board = Arc::new(GpuBoard::default());
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        let (ending, followed) = HostEnding::new();
        let driver = Driver::new(
            DriverParts {
                shared: Arc::clone(shared),
                gpu,
                status,
                state_dir: config.state_dir.clone(),
                ledger: Arc::clone(&ledger),
                monitor,
                board: Arc::clone(&board),
                measured: MeasuredStore::open(&config.state_dir),
            },
            orders,
            followed,
        );
        Ok(Some(GpuHost {
            driver,
            controls: Arc::new(HostControls {
                shared: Arc::clone(shared),
                state_dir: config.state_dir.clone(),
                ledger,
                followers: LogFollowers::default(),
                board,
                orders: sender,
            }),
            ending,
        }))
    }

    /// The host as operators ask and order it.
    pub fn controls(&self) -> Arc<dyn GpuControls> {
        Arc::clone(&self.controls) as _
    }

    /// Parts the host into what runs for the life of the process and the orders of its end. Dropped, the former drops the
    /// life lines of all processes. With a `predecessor` that lives, its processes are taken over.
    pub fn start(
        self,
        predecessor: HostPredecessor,
    ) -> (impl Future<Output = ()> + Send, HostEnding) {
        (self.driver.run(predecessor), self.ending)
    }
}

fn open_ledger(directory: &Path) -> Result<Arc<HostLedger>, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("gpu.ledger.directory: {error}: name a folder that this user can write")
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
    let ledger = HostLedger::open(directory).map_err(|error| failed(&error))?;
    Ok(Arc::new(ledger))
}

struct HostControls {
    shared: Arc<Shared>,
    state_dir: PathBuf,
    ledger: Arc<HostLedger>,
    followers: LogFollowers,
    board: Arc<GpuBoard>,
    orders: mpsc::Sender<HostOrder>,
}

#[async_trait]
impl GpuControls for HostControls {
    fn report(&self) -> Value {
        self.board.report()
    }

    fn clients(&self) -> Value {
        let clock = self.shared.clock;
        let uses = self.shared.client_demand.lock().last_hour(clock.now());
        let uses = uses.iter().map(|it| shown_client(it, clock));
        uses.collect()
    }

    async fn order(
        &self,
        model: &str,
        order: GpuOrder,
        wait: Duration,
    ) -> Result<OrderOutcome, GpuControlError> {
        let snapshot = self.shared.snapshot.load_full();
        let spec = snapshot.models.iter().map(|model| &model.spec);
        let mut managed = spec.filter(|spec| spec.process.is_some());
        let Some(spec) = managed.find(|spec| spec.id.as_str() == model) else {
            let text =
                format!("`{model}` is no model with a process; `GET /gpu` lists their slots");
            return Err(GpuControlError::NotFound(text));
        };
        let id: ModelId = spec.id.clone();
        let command = command(order, id.clone());
        let (done, is_done) = oneshot::channel();
        let command = HostCommand::Model(command);
        let sent = self.orders.try_send(HostOrder { command, done });
        sent.map_err(|_| busy())?;
        if wait.is_zero() {
            let taken = timeout(ORDER_WAIT_MAX, is_done).await;
            taken.map_err(|_| busy())?.map_err(|_| busy())?;
            return Ok(OrderOutcome::Accepted);
        }
        let reached = timeout(wait, async {
            is_done.await.map_err(|_| busy())?;
            let holds = |model: &_, slots: &[&_]| is_reached(order, model, slots);
            self.board.wait(&id, holds).await;
            Ok(OrderOutcome::Reached)
        });
        reached.await.unwrap_or(Ok(OrderOutcome::NotReached))
    }

    async fn order_device(&self, device: &str, order: DeviceOrder) -> Result<(), GpuControlError> {
        let Some(id) = self.board.device(device) else {
            let text = format!("`{device}` is no device of this host; `GET /gpu` lists their ids");
            return Err(GpuControlError::NotFound(text));
        };
        let (done, is_done) = oneshot::channel();
        let command = HostCommand::Device(id, order);
        let sent = self.orders.try_send(HostOrder { command, done });
        sent.map_err(|_| busy())?;
        let done = timeout(ORDER_WAIT_MAX, is_done).await;
        done.map_err(|_| busy())?.map_err(|_| busy())
    }

    async fn leases(&self, id: Option<&str>) -> Result<Value, GpuControlError> {
        lease_controls::list(&self.ledger, id).await
    }

    async fn release(&self, id: &str) -> Result<(), GpuControlError> {
        lease_controls::release(&self.ledger, id).await
    }

    async fn log(&self, instance: &str, lines: usize) -> Result<String, GpuControlError> {
        let none = || no_log(instance);
        let id = InstanceId::try_from(instance.to_owned()).map_err(|_| none())?;
        let path = log_file(&log_directory(&self.state_dir), &id);
        let read = spawn_blocking(move || LogReader::open(&path)?.tail(lines, LOG_BYTES_MAX));
        let read = read.await.map_err(|_| none())?.map_err(|_| none())?;
        Ok(String::from_utf8_lossy(&read).into_owned())
    }

    async fn follow_log(
        &self,
        instance: &str,
        lines: usize,
    ) -> Result<Box<dyn LogFollower>, GpuControlError> {
        let id = InstanceId::try_from(instance.to_owned()).map_err(|_| no_log(instance))?;
        let from = (lines, LOG_BYTES_MAX);
        let followed = self.followers.follow(&self.state_dir, id, from).await?;
        let followed = followed.ok_or_else(|| no_log(instance))?;
        Ok(Box::new(followed))
    }
}

fn no_log(instance: &str) -> GpuControlError {
    GpuControlError::NotFound(format!(
        "no log of `{instance}`; `GET /gpu` names the instances of the slots"
    ))
}

fn busy() -> GpuControlError {
    GpuControlError::Unavailable("the GPU host takes no order now; try again".to_owned())
}

fn command(order: GpuOrder, id: ModelId) -> PoolCommand {
    match order {
        GpuOrder::Load => PoolCommand::Load(id),
        GpuOrder::Unload => PoolCommand::Unload(id),
        GpuOrder::Restart => PoolCommand::Restart(id),
        GpuOrder::Retry => PoolCommand::Retry(id),
        GpuOrder::Pin => PoolCommand::Pin(id),
        GpuOrder::Unpin => PoolCommand::Unpin(id),
    }
}

/// Returns whether the state that an order is for has been reached.
fn is_reached(order: GpuOrder, model: &ModelDetails, slots: &[&SlotFacts]) -> bool {
    let is_ready = slots
        .iter()
        .any(|slot| slot.state == SlotState::Ready.name());
    match order {
        GpuOrder::Load | GpuOrder::Retry | GpuOrder::Pin => is_ready,
        GpuOrder::Restart => is_ready && !model.is_restarting,
        GpuOrder::Unload => slots.iter().all(|slot| {
            let states = [SlotState::Cold, SlotState::Failed(FailedPhase::Backoff)];
            states.iter().any(|state| state.name() == slot.state) && slot.shares.is_empty()
        }),
        GpuOrder::Unpin => !model.is_pinned,
    }
}
