//! Offer of the process that serves to be followed by another one: the socket in `state_dir` that the command asks at.
//!
//! Upgrades come one at a time. Whether the successor gets its turn is decided by the gateway, which gets it as an
//! [`OfferedUpgrade`] once it could serve. A command that leaves before that ends its successor.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::messages::{UpgradeAnswer, UpgradeRequest, receive, send};
use super::predecessor::SuccessorProcess;
use super::sockets::NamedSocket;

/// Name of the socket.
pub(super) const SOCKET: &str = "upgrade.sock";
/// Only the owner upgrades.
const SOCKET_MODE: u32 = 0o600;
/// Longest wait for a command's request, and for it to take an answer.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failed accept, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Socket at which a successor is asked for, with the sockets that it gets.
pub struct UpgradeOffer {
    listener: UnixListener,
    sockets: Vec<NamedSocket>,
}

/// Successor that could serve, for the gateway to decide.
pub struct OfferedUpgrade {
    successor: SuccessorProcess,
    command: WaitingCommand,
}

/// Command that waits for the end of an upgrade.
pub struct WaitingCommand {
    answer: OwnedWriteHalf,
    /// Its drop lets the next command come.
    _decided: oneshot::Sender<()>,
}

impl OfferedUpgrade {
    /// Returns the process, and the command that asked for it.
    pub fn into_parts(self) -> (SuccessorProcess, WaitingCommand) {
        (self.successor, self.command)
    }
}

impl WaitingCommand {
    /// Tells the command what is done.
    pub async fn report(&mut self, step: &str) {
        let step = UpgradeAnswer::Progress(step.to_owned());
        send_answer(&mut self.answer, &step).await;
    }

    /// Answers the command.
    pub async fn answer(mut self, answer: &UpgradeAnswer) {
        send_answer(&mut self.answer, answer).await;
    }
}

impl UpgradeOffer {
    /// Listens in `state_dir`, in the place of a former process; none where there is no such directory yet.
    pub fn bind(state_dir: &Path, sockets: Vec<NamedSocket>) -> Option<UpgradeOffer> {
        if !state_dir.is_dir() {
            return None;
        }
        let path = state_dir.join(SOCKET);
        match listen(&path) {
            Ok(listener) => Some(UpgradeOffer { listener, sockets }),
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "no successor can be asked for: an upgrade takes a restart");
                None
            }
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

/// Answers commands until `closed`; successors that could serve go to `offered`.
pub async fn offer_upgrades(
    offer: Option<UpgradeOffer>,
    offered: mpsc::Sender<OfferedUpgrade>,
    mut closed: watch::Receiver<bool>,
) {
    // Where none can be asked for, nobody waits for one.
    let Some(offer) = offer else { return };
    loop {
        let accepted = tokio::select! {
            accepted = offer.listener.accept() => accepted,
            _ = closed.wait_for(|closed| *closed) => return,
        };
        match accepted {
            Ok((stream, _)) => tokio::select! {
                () = serve_command(&offer, stream, &offered) => {}
                _ = closed.wait_for(|closed| *closed) => return,
            },
            Err(error) => {
                tracing::warn!(%error, "a command could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_command(
    offer: &UpgradeOffer,
    stream: UnixStream,
    offered: &mpsc::Sender<OfferedUpgrade>,
) {
    let is_owner = stream
        .peer_cred()
        .is_ok_and(|peer| [0, geteuid().as_raw()].contains(&peer.uid()));
    let (mut reader, mut answer) = stream.into_split();
    let request = match timeout(COMMAND_TIMEOUT, receive::<UpgradeRequest>(&mut reader)).await {
        Ok(Ok(request)) if is_owner => request,
        _ => return,
    };
    match start(offer, &request, reader, &mut answer).await {
        Ok(successor) => {
            let (decided, decision) = oneshot::channel();
            let command = WaitingCommand {
                answer,
                _decided: decided,
            };
            let upgrade = OfferedUpgrade { successor, command };
            if offered.send(upgrade).await.is_ok() {
                // Never sent: it ends with the sender.
                let _ = decision.await;
            }
        }
        Err(reason) => {
            tracing::error!(reason, "an upgrade has failed: this process serves on");
            send_answer(&mut answer, &UpgradeAnswer::Failed(reason)).await;
        }
    }
}

/// Starts a successor and waits until it could serve.
async fn start(
    offer: &UpgradeOffer,
    request: &UpgradeRequest,
    mut reader: OwnedReadHalf,
    answer: &mut OwnedWriteHalf,
) -> Result<SuccessorProcess, String> {
    let binary = request.binary.display();
    tracing::info!(%binary, "a successor is started");
    let mut successor = SuccessorProcess::start(request, &offer.sockets)?;
    let starting = async {
        let mut step = "the successor starts".to_owned();
        loop {
            send_answer(answer, &UpgradeAnswer::Progress(step)).await;
            step = match successor.next_step().await? {
                Some(step) => step,
                None => return successor.probation().await,
            };
        }
    };
    tokio::select! {
        started = starting => started.map(|()| successor),
        _ = reader.read_u8() => Err("the command has left".to_owned()),
    }
}

async fn send_answer(answer: &mut OwnedWriteHalf, message: &UpgradeAnswer) {
    // A command that reads nothing is not waited for: the upgrade goes on.
    let _ = timeout(COMMAND_TIMEOUT, send(answer, message)).await;
}
