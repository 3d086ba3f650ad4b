//! `infergate gpu leases`: leases on the memory of this host's devices, and where devices and ledger are.
//!
//! Needs no gateway: the ledger is a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{print, problem};
use crate::gpu::{
    DeviceSource, HostLedger, JobError, LeaseList, LedgerStoreError, ListedHolder, NvmlDevices,
    ReleaseOutcome, SimulatedCards, UnseenHolder, default_directory, release_leases,
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
    if json {
        let ledger = store.read()?;
        let text = serde_json::to_string_pretty(&ledger).expect("a ledger is plain JSON");
        return Ok(print(&format!("{text}\n")));
    }
    Ok(print(&table(&LeaseList::read(store)?)))
}

/// A line for each lease and claim.
fn table(list: &LeaseList) -> String {
    if list.leases.is_empty() && list.claims.is_empty() {
        return "no leases and no claims\n".to_owned();
    }
    let mut text = format!(
        "{:<14} {:<12} {:>9} {:<9} {:>8} {:>3} {:>8}  {}\n",
        "ID", "DEVICE", "MIB", "STATE", "PID", "PRI", "AGE_S", "NAME"
    );
    let line = |(id, device, mib): (&str, &str, u64),
                state,
                holder: &ListedHolder,
                (priority, age_ms): (u8, u64)| {
        format!(
            "{id:<14} {device:<12} {mib:>9} {state:<9} {:>8} {priority:>3} {:>8}  {}\n",
            holder.pid,
            age_ms / 1000,
            holder.name
        )
    };
    for group in &list.leases {
        let (holder, rank) = (&group.holder, (group.priority, group.age_ms));
        for share in &group.devices {
            let own = (&*share.lease, &*share.device, share.mib);
            text += &line(own, holder.process, holder, rank);
        }
    }
    for claim in &list.claims {
        let device = format!("{} of any", claim.devices);
        let own = (&*claim.id, &*device, claim.mib);
        text += &line(own, "waits", &claim.holder, (claim.priority, claim.age_ms));
    }
    text
}

fn release(store: &HostLedger, id: &str) -> Result<ExitCode, LedgerStoreError> {
    let refusal = match release_leases(store, id, UnseenHolder::Release)? {
        ReleaseOutcome::Released => return Ok(print(&format!("{id} is released\n"))),
        ReleaseOutcome::NoSuchLease => format!("there is no lease {id}"),
        ReleaseOutcome::Alive(holder) | ReleaseOutcome::Unseen(holder) => format!(
            "process {} ({}) has lease {id} and lives: end it first",
            holder.pid, holder.name
        ),
    };
    problem(&format!("error: {refusal}"));
    Ok(ExitCode::FAILURE)
}
