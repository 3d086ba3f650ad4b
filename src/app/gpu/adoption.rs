//! Instances of a former gateway, taken over without a load: what is looked at before one gets requests again.
//!
//! Places nothing: the slot is the pool's. Each check ends within [`CHECK_MAX`]. An instance that fails it is returned
//! with its keeper, so that it can be stopped.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::ModelId;
use infergate_core::model::{Secret, slot_url};
use infergate_core::vram::{DeviceShare, Lease, LeaseGroup, SlotId};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::instance::{StartedInstance, is_well};
use super::sleep::is_awake;
use crate::gpu::process::{
    InstanceId, InstanceRecord, PortOwnership, PortPool, ReservedPort, RunningInstance,
    port_ownership,
};
use crate::gpu::{HostLedger, listen_scope, settings_digest};
use crate::state::Shared;
use crate::upstream::{ModelRuntime, Target, slot_target};

/// Longest check of one instance: its probes, each of which has a limit of its own, and looks at `/proc`.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// Probes of a server until it is taken for one that does not answer.
const PROBES_MAX: u32 = 3;
/// Time to connect to a server of this host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Instance that can be given requests at once.
pub(super) struct AdoptedInstance {
    pub slot: SlotId,
    pub shares: Vec<DeviceShare>,
    pub group: LeaseGroup,
    /// Digest of the settings that it was checked with.
    pub configuration_digest: String,
    pub started: StartedInstance,
    pub port: ReservedPort,
    pub target: Arc<Target>,
    pub running: RunningInstance,
}

/// Result of a check.
pub(super) enum Adoption {
    /// Everything is as it was.
    Possible(Box<AdoptedInstance>),
    /// Connected, but something has changed: the instance is to be stopped.
    Refused(Box<RunningInstance>),
    /// Keeper that could not be reached, or that ends the instance already.
    Gone,
}

/// Facts that instances are compared with.
pub(super) struct AdoptionCheck {
    pub shared: Arc<Shared>,
    pub models: BTreeMap<ModelId, Arc<ModelRuntime>>,
    pub ledger: Arc<HostLedger>,
    pub ports: PortPool,
    pub run_directory: PathBuf,
}

/// Facts of an instance that passed.
struct CheckedInstance {
    slot: SlotId,
    group: LeaseGroup,
    shares: Vec<DeviceShare>,
    port: ReservedPort,
    target: Arc<Target>,
}

impl AdoptionCheck {
    /// Connects to the keeper of a record, which ends its time without a gateway, and checks the instance.
    pub async fn take_over(&self, record: InstanceRecord) -> Adoption {
        let instance = &record.instance;
        let running = match RunningInstance::adopt(&self.run_directory, &record).await {
            Ok(running) => running,
            Err(error) => {
                tracing::info!(%instance, %error, "a process of a former gateway is not taken over");
                return Adoption::Gone;
            }
        };
        let checked = timeout(CHECK_MAX, self.check(&record)).await;
        let checked = checked.unwrap_or_else(|_| Err("its checks took too long".to_owned()));
        match checked {
            Ok(checked) => Adoption::Possible(Box::new(AdoptedInstance {
                slot: checked.slot,
                shares: checked.shares,
                group: checked.group,
                configuration_digest: record.configuration_digest,
                started: StartedInstance {
                    instance: record.instance.clone(),
                    main: running.main(),
                    keeper: Some(record.keeper),
                    port: record.port,
                    argv_digest: String::new(),
                    // A change since its start is an update, whichever gateway has seen it.
                    files: record.files,
                },
                port: checked.port,
                target: checked.target,
                running,
            })),
            Err(reason) => {
                tracing::info!(%instance, reason, "a process of a former gateway is not taken over: it ends");
                Adoption::Refused(Box::new(running))
            }
        }
    }

    async fn check(&self, record: &InstanceRecord) -> Result<CheckedInstance, String> {
        if !record.is_of_this_boot() {
            return Err("it is of another boot".to_owned());
        }
        let slot = slot_of(record, &self.models).ok_or("its model has no such slot any more")?;
        let model = self.models.get(&slot.model);
        let model = model.ok_or("its model is not configured any more")?;
        if settings_digest(&model.spec) != record.configuration_digest {
            return Err("the settings of its process have changed".to_owned());
        }
        let (group, shares) = self.leases(&slot, record).await?;
        let port = self.ports.reserve(record.port);
        let port = port.ok_or("its port is another instance's")?;
        let target = own_target(model, &slot, record).await?;
        let url = slot_url(&slot.model, slot.number.into());
        let models = &self.shared.snapshot.load_full().models;
        // One with requests of a predecessor is ready, however busy it is.
        if models.permits_elsewhere(&slot.model, &url) == 0 {
            serves(&self.shared, model, &target).await?;
        }
        Ok(CheckedInstance {
            slot,
            group,
            shares,
            port,
            target,
        })
    }

    /// Finds the leases that its keeper holds since the grant that the record names.
    async fn leases(
        &self,
        slot: &SlotId,
        record: &InstanceRecord,
    ) -> Result<(LeaseGroup, Vec<DeviceShare>), String> {
        let ledger = Arc::clone(&self.ledger);
        let read = spawn_blocking(move || ledger.read());
        let read = read.await.map_err(|error| error.to_string())?;
        let read = read.map_err(|error| error.to_string())?;
        let name = slot.to_string();
        let is_own = |lease: &&Lease| {
            let holder = &lease.holder;
            lease.epoch == record.lease_epoch
                && *holder.name == *name
                && (holder.pid, holder.start) == (record.keeper.pid, record.keeper.start)
        };
        let own: Vec<&Lease> = read.leases().iter().filter(is_own).collect();
        let first = own.first().ok_or("its keeper holds no lease")?;
        let group = LeaseGroup {
            id: first.group.clone(),
            epoch: first.epoch,
        };
        let shares = own.iter().map(|lease| DeviceShare {
            device: lease.device.clone(),
            mib: lease.mib,
        });
        Ok((group, shares.collect()))
    }
}

/// Returns the server of an instance.
///
/// # Errors
/// A sentence: its port is another's.
pub(super) async fn own_target(
    model: &ModelRuntime,
    slot: &SlotId,
    record: &InstanceRecord,
) -> Result<Arc<Target>, String> {
    let spec = &model.spec;
    let process = spec.process.as_ref().ok_or("its model has no process")?;
    let (port, keeper, scope) = (record.port, record.keeper, listen_scope(process));
    let owned = spawn_blocking(move || port_ownership(port, keeper, scope)).await;
    match owned.map_err(|error| error.to_string())? {
        PortOwnership::Owned => {}
        other => return Err(format!("its port is not its own: {other:?}")),
    }
    let url = slot_url(&slot.model, slot.number.into());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let key = Some(Secret::from(&*record.api_key));
    let target = slot_target(
        (&*url, record.instance.as_str(), spec.id.as_str()),
        address,
        key,
        CONNECT_TIMEOUT,
    );
    target.ok_or_else(|| "its address cannot be used".to_owned())
}

/// Probes a server.
///
/// # Errors
/// A sentence: it does not serve.
pub(super) async fn serves(
    shared: &Shared,
    model: &ModelRuntime,
    target: &Target,
) -> Result<(), String> {
    let spec = &model.spec;
    let process = spec.process.as_ref().ok_or("its model has no process")?;
    for _ in 0..PROBES_MAX {
        if is_well(shared, spec, target).await {
            // The lease of one that sleeps is smaller than what it would serve with.
            return match is_awake(&shared.client, target, process).await {
                true => Ok(()),
                false => Err("it sleeps".to_owned()),
            };
        }
    }
    Err("it does not answer its probe".to_owned())
}

/// Returns the slot that an instance is a life of; none of a model that is not configured.
pub(super) fn slot_of(
    record: &InstanceRecord,
    models: &BTreeMap<ModelId, Arc<ModelRuntime>>,
) -> Option<SlotId> {
    named_slot(&record.instance).filter(|slot| models.contains_key(&slot.model))
}

/// Returns the slot that an instance is named after.
pub(super) fn named_slot(instance: &InstanceId) -> Option<SlotId> {
    let (slot, _) = instance.as_str().rsplit_once('-')?;
    let (model, number) = slot.rsplit_once('#')?;
    Some(SlotId {
        model: ModelId::from(model),
        number: number.parse().ok()?,
    })
}
