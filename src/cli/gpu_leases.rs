//! `infergate gpu leases`: leases on the memory of this host's devices, and where devices and ledger are.
//!
//! Needs no gateway: the ledger is a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use infergate_core::vram::{HolderLife, Lease, LeaseGroup, Ledger};

use super::output::{print, problem};
use crate::gpu::{
    DeviceSource, HostLedger, JobError, LedgerStoreError, NvmlDevices, SimulatedCards,
    default_directory,
};

const FAILED: u8 = 2;
/// Folder of the ledger beside simulated cards, so that their leases are not among those of the host.
const LEDGER_OF_CARDS: &str = "ledger";

/// Help below the options of `infergate gpu leases`.
pub const HELP: &str = "\
Exit codes: 0 shown or done, 1 no such lease or its holder lives, 2 the ledger cannot be used.
Examples:
  infergate gpu leases                     who has how much of which device, and who waits
  infergate gpu leases --json              the ledger as it stands in its file
  infergate gpu leases release l-4690-0    free a lease, with those granted with it, whose holder is gone";

/// Arguments of `infergate gpu leases`.
#[derive(Args)]
pub struct LeasesArgs {
    #[command(subcommand)]
    what: Option<LeasesCommand>,
    #[command(flatten)]
    location: GpuLocation,
    /// Print the ledger as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum LeasesCommand {
    /// Free a lease whose holder is gone.
    Release {
        /// Identity of the lease or of its group.
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Places of devices and ledger.
#[derive(Args)]
pub struct GpuLocation {
    /// Simulated cards in place of the devices of this host: a directory with a folder for each
    #[arg(long, value_name = "DIR", global = true)]
    cards: Option<PathBuf>,
    /// Directory of the ledger [default: /run/infergate/gpu, else $XDG_RUNTIME_DIR/infergate/gpu; `ledger`
    /// beside simulated cards]
    #[arg(long, value_name = "DIR", global = true)]
    ledger: Option<PathBuf>,
}

impl GpuLocation {
    /// Returns the devices.
    ///
    /// # Errors
    /// The driver's library is not there.
    pub fn source(&self) -> Result<Box<dyn DeviceSource>, JobError> {
        match &self.cards {
            Some(directory) => Ok(Box::new(SimulatedCards::new(directory))),
            None => Ok(Box::new(NvmlDevices::load()?)),
        }
    }

    /// Opens the ledger.
    ///
    /// # Errors
    /// Its directory cannot be used.
    pub fn ledger(&self) -> Result<HostLedger, LedgerStoreError> {
        match (&self.ledger, &self.cards) {
            (Some(directory), _) => HostLedger::open(directory),
            (None, Some(cards)) => HostLedger::open(&cards.join(LEDGER_OF_CARDS)),
            (None, None) => HostLedger::open(&default_directory()?),
        }
    }
}

/// Writes an error as a line on standard error.
pub fn problem_of(error: &dyn std::error::Error) {
    problem(&format!("error: {error}"));
}

/// Shows or frees leases.
pub fn run(args: &LeasesArgs) -> ExitCode {
    let LeasesArgs {
        what,
        location,
        json,
    } = args;
    let done = location.ledger().and_then(|store| match what {
        Some(LeasesCommand::Release { id }) => release(&store, id),
        None => show(&store, *json),
    });
    done.unwrap_or_else(|error| {
        problem_of(&error);
        ExitCode::from(FAILED)
    })
}

fn show(store: &HostLedger, json: bool) -> Result<ExitCode, LedgerStoreError> {
    let ledger = store.read()?;
    if json {
        let text = serde_json::to_string_pretty(&ledger).expect("a ledger is plain JSON");
        return Ok(print(&format!("{text}\n")));
    }
    Ok(print(&table(&ledger, store)))
}

/// A line for each lease and claim.
fn table(ledger: &Ledger, store: &HostLedger) -> String {
    if ledger.leases().is_empty() && ledger.claims().is_empty() {
        return "no leases and no claims\n".to_owned();
    }
    let now = store.host().now();
    let mut text = format!(
        "{:<14} {:<12} {:>9} {:<9} {:>8} {:>3} {:>8}  {}\n",
        "ID", "DEVICE", "MIB", "STATE", "PID", "PRI", "AGE_S", "NAME"
    );
    for lease in ledger.leases() {
        let life = store.host().life(&lease.holder);
        let state = match life {
            HolderLife::Alive => "alive",
            HolderLife::Dead => "dead",
            HolderLife::Unknown => "unknown",
        };
        text += &format!(
            "{:<14} {:<12} {:>9} {:<9} {:>8} {:>3} {:>8}  {}\n",
            lease.id.to_string(),
            lease.device.as_str(),
            lease.mib,
            state,
            lease.holder.pid,
            lease.priority,
            now.since(lease.granted_ms).0 / 1000,
            lease.holder.name
        );
    }
    for claim in ledger.claims() {
        text += &format!(
            "{:<14} {:<12} {:>9} {:<9} {:>8} {:>3} {:>8}  {}\n",
            claim.id.to_string(),
            format!("{} of any", claim.devices),
            claim.mib,
            "waits",
            claim.holder.pid,
            claim.priority,
            now.since(claim.since_ms).0 / 1000,
            claim.holder.name
        );
    }
    text
}

fn release(store: &HostLedger, id: &str) -> Result<ExitCode, LedgerStoreError> {
    let is_meant = |lease: &&Lease| lease.id.to_string() == id || lease.group.to_string() == id;
    if !store.read()?.leases().iter().any(|lease| is_meant(&lease)) {
        problem(&format!("error: there is no lease {id}"));
        return Ok(ExitCode::FAILURE);
    }
    // A change frees the leases of holders that are gone; what is left has a holder that lives or cannot be seen.
    let living = store.change(|ledger, _| {
        let lease = ledger.leases().iter().find(is_meant)?.clone();
        if store.host().life(&lease.holder) == HolderLife::Alive {
            return Some(lease.holder);
        }
        let group = LeaseGroup {
            id: lease.group,
            epoch: lease.epoch,
        };
        ledger.release(&group).err()?;
        None
    })?;
    match living {
        None => Ok(print(&format!("{id} is released\n"))),
        Some(holder) => {
            problem(&format!(
                "error: process {} ({}) has lease {id} and lives: end it first",
                holder.pid, holder.name
            ));
            Ok(ExitCode::FAILURE)
        }
    }
}
