//! Notices that the content of the configuration file may have changed.
//!
//! It does not load the file. It watches directories, not the file, because editors and Kubernetes
//! replace a file (or a symbolic link on the way to it) instead of writing into it, and compares a
//! hash, so that a touched file is no change. `app` holds the one [`FileWatch`] of a process.
//!
//! Bounds: one thread, one signal waiting, [`QUIET`] × [`QUIET_ROUNDS_MAX`] from the first event to
//! the signal, [`LOOK_ANYWAY`] where the system reports no events.

mod trail;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc;

use super::load::{ContentHash, content_hash, read};
use trail::Trail;

/// A file is read only after this long without an event: one save is often several writes.
const QUIET: Duration = Duration::from_millis(200);

/// A file that is written without pause is read after this many rounds of [`QUIET`] all the same.
const QUIET_ROUNDS_MAX: usize = 10;

/// Network file systems and full inotify tables report nothing: look this often in any case.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// A thread that watches one file; dropping it ends the thread.
#[derive(Debug)]
pub struct FileWatch {
    changes: mpsc::Receiver<()>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatch {
    /// Watches `path`, whose content was `loaded` when it was last read: a change in between is
    /// noticed at once.
    pub fn start(path: &Path, loaded: ContentHash) -> std::io::Result<FileWatch> {
        let path = std::path::absolute(path)?;
        // One signal waiting says all there is to say: look again.
        let (signal, changes) = mpsc::channel(1);
        let bell = Arc::new(Bell::default());
        let watcher = Watching::new(path, Arc::clone(&bell));
        let thread = std::thread::Builder::new()
            .name("config-watch".to_owned())
            .spawn({
                let bell = Arc::clone(&bell);
                move || run(watcher, Seen::Content(loaded), &bell, &signal)
            })?;
        Ok(FileWatch {
            changes,
            bell,
            thread: Some(thread),
        })
    }

    /// Waits until the content may have changed, the file is gone, or it is back. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            // The thread ends only with this struct; a caller that selects on it must not spin.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.bell.stop();
        if let Some(thread) = self.thread.take() {
            // An error is the thread's own panic, which the panic hook has already reported.
            drop(thread.join());
        }
    }
}

/// What wakes the thread.
#[derive(Debug, Default)]
struct Bell {
    /// Guards two flags; held by the thread, the event handler and `drop`, never while reading.
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    event: bool,
    stop: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().event = true;
        self.rung.notify_one();
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.rung.notify_one();
    }

    /// Waits for an event and the quiet after it, or for `patience` to run out; false to stop.
    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        self.rung
            .wait_while_for(&mut state, |state| !state.event && !state.stop, patience);
        for _ in 0..QUIET_ROUNDS_MAX {
            if state.stop || !state.event {
                break;
            }
            state.event = false;
            self.rung
                .wait_while_for(&mut state, |state| !state.stop, QUIET);
        }
        state.event = false;
        !state.stop
    }
}

/// What was last seen at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Content(ContentHash),
    /// Nothing there, or nothing readable.
    Nothing,
}

impl Seen {
    fn look(path: &Path) -> Seen {
        match read(path) {
            Ok(bytes) => Seen::Content(content_hash(&bytes)),
            Err(_) => Seen::Nothing,
        }
    }
}

fn run(mut watching: Watching, mut seen: Seen, bell: &Bell, signal: &mpsc::Sender<()>) {
    loop {
        // First the directories, then the file: what happens in between rings the bell.
        watching.follow();
        let now = Seen::look(&watching.path);
        if now != seen {
            seen = now;
            // Full: a signal is waiting already.
            let _ = signal.try_send(());
        }
        if !bell.wait(LOOK_ANYWAY) {
            return;
        }
    }
}

/// The system's events for every directory on the way to the file.
struct Watching {
    path: PathBuf,
    trail: Trail,
    /// Names that matter in those directories; the event handler reads them.
    names: Arc<Mutex<Vec<OsString>>>,
    /// None where the system has no more watches to give: then looking every now and then remains.
    watcher: Option<RecommendedWatcher>,
}

impl Watching {
    fn new(path: PathBuf, bell: Arc<Bell>) -> Watching {
        let names = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let names = Arc::clone(&names);
            move |event: notify::Result<notify::Event>| {
                if matters(&event, &names.lock()) {
                    bell.ring();
                }
            }
        };
        let watcher = match notify::recommended_watcher(handler) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(%error, every = ?LOOK_ANYWAY, "no file events: looking at the configuration file instead");
                None
            }
        };
        Watching {
            path,
            trail: Trail::default(),
            names,
            watcher,
        }
    }

    /// Watches the directories through which the path leads now.
    fn follow(&mut self) {
        let trail = Trail::of(&self.path);
        if trail == self.trail {
            return;
        }
        *self.names.lock() = trail.names();
        let before = std::mem::take(&mut self.trail);
        if let Some(watcher) = &mut self.watcher {
            for gone in before.directories().filter(|dir| !trail.contains(dir)) {
                // It fails when the directory itself is gone, and the watch with it.
                drop(watcher.unwatch(gone));
            }
            for new in trail.directories().filter(|dir| !before.contains(dir)) {
                if let Err(error) = watcher.watch(new, RecursiveMode::NonRecursive) {
                    tracing::warn!(%error, directory = %new.display(), "cannot watch this directory");
                }
            }
        }
        self.trail = trail;
    }
}

/// Whether an event can mean another content. Opening and reading do not: this thread reads too.
fn matters(event: &notify::Result<notify::Event>, names: &[OsString]) -> bool {
    let Ok(event) = event else { return true };
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        _ => {}
    }
    // The event log may stand in the same directory and change all the time.
    let named = |path: &PathBuf| names.iter().any(|name| path.file_name() == Some(name));
    event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(named)
}

#[cfg(test)]
mod tests;
