//! Notices that the content of the configuration file, or of a file it names, may have changed.
//!
//! Files are not loaded here. Directories are watched, not files, because editors and Kubernetes
//! replace a file (or a symbolic link on the way to it). A hash is compared, so that a touched file
//! is no change. `app` holds the one [`FileWatch`] of a process.
//!
//! Bounds: one thread, one signal waiting, `QUIET` × `QUIET_ROUNDS_MAX` from the first event to
//! the signal, `LOOK_ANYWAY` where the system reports no events.

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

use super::load::{ContentHash, content_hash, read_regular};
use trail::SymlinkTrail;

/// A file is read only after this long without an event: one save is often several writes.
const QUIET: Duration = Duration::from_millis(200);

/// A file that is written without pause is read after this many rounds of [`QUIET`] all the same.
const QUIET_ROUNDS_MAX: usize = 10;

/// Network file systems and full inotify tables report nothing: look this often in any case.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// A file and what was last read there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The hash of its content; none where nothing could be read.
    pub content: Option<ContentHash>,
}

impl WatchedFile {
    /// The file as it is now.
    pub fn read(path: PathBuf) -> WatchedFile {
        let content = read_regular(&path).ok().map(|bytes| content_hash(&bytes));
        WatchedFile { path, content }
    }
}

/// A thread that watches the configuration file and those it names; dropping it ends the thread.
#[derive(Debug)]
pub struct FileWatch {
    changes: mpsc::Receiver<()>,
    wakeup: Arc<WatchWakeup>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatch {
    /// Watches `path`, whose content was `loaded` when it was last read: a change in between is
    /// noticed at once.
    pub fn start(path: &Path, loaded: ContentHash) -> std::io::Result<FileWatch> {
        let path = std::path::absolute(path)?;
        // One pending signal is enough: it means "look again".
        let (signal, changes) = mpsc::channel(1);
        let wakeup = Arc::new(WatchWakeup::default());
        let file = WatchedFile {
            path,
            content: Some(loaded),
        };
        let watcher = WatchState::new(file, Arc::clone(&wakeup));
        let thread = std::thread::Builder::new()
            .name("config-watch".to_owned())
            .spawn({
                let notifier = Arc::clone(&wakeup);
                move || run(watcher, &notifier, &signal)
            })?;
        Ok(FileWatch {
            changes,
            wakeup,
            thread: Some(thread),
        })
    }

    /// Watches these files besides the configuration file, instead of those named before. A change
    /// since they were looked at is noticed at once.
    pub fn set_files(&self, files: Vec<WatchedFile>) {
        self.wakeup.watch(files);
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
        self.wakeup.stop();
        if let Some(thread) = self.thread.take() {
            // An error is the thread's own panic, which the panic hook has already reported.
            drop(thread.join());
        }
    }
}

/// Wakes the thread.
#[derive(Debug, Default)]
struct WatchWakeup {
    /// Guards two flags and a list; held by the thread, the event handler, `also` and `drop`, never
    /// while reading.
    state: Mutex<WatchWakeupState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchWakeupState {
    event: bool,
    stop: bool,
    /// Files to watch from now on, when there are others than before.
    files: Option<Vec<WatchedFile>>,
}

impl WatchWakeup {
    fn notify(&self) {
        self.state.lock().event = true;
        self.changed.notify_one();
    }

    fn watch(&self, files: Vec<WatchedFile>) {
        let mut state = self.state.lock();
        state.files = Some(files);
        state.event = true;
        self.changed.notify_one();
    }

    fn files(&self) -> Option<Vec<WatchedFile>> {
        self.state.lock().files.take()
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits for an event and the quiet after it, or for `patience` to run out; false to stop.
    fn wait(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |state| !state.event && !state.stop, patience);
        for _ in 0..QUIET_ROUNDS_MAX {
            if state.stop || !state.event {
                break;
            }
            state.event = false;
            self.changed
                .wait_while_for(&mut state, |state| !state.stop, QUIET);
        }
        state.event = false;
        !state.stop
    }
}

fn run(mut watching: WatchState, wakeup: &WatchWakeup, signal: &mpsc::Sender<()>) {
    loop {
        if let Some(files) = wakeup.files() {
            watching.set_files(files);
        }
        // First the directories, then the files: a change in between wakes the thread.
        watching.watch_directories();
        if watching.check_content() {
            // Full: a signal is waiting already.
            let _ = signal.try_send(());
        }
        if !wakeup.wait(LOOK_ANYWAY) {
            return;
        }
    }
}

/// The system's events for every directory on the way to the files.
struct WatchState {
    /// The configuration file, then those it names.
    files: Vec<WatchedFile>,
    trail: SymlinkTrail,
    /// Names that matter in those directories; the event handler reads them.
    names: Arc<Mutex<Vec<OsString>>>,
    /// None where the system has no more watches to give: then looking every now and then remains.
    watcher: Option<RecommendedWatcher>,
}

impl WatchState {
    fn new(file: WatchedFile, wakeup: Arc<WatchWakeup>) -> WatchState {
        let names = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let names = Arc::clone(&names);
            move |event: notify::Result<notify::Event>| {
                if is_relevant(&event, &names.lock()) {
                    wakeup.notify();
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
        WatchState {
            files: vec![file],
            trail: SymlinkTrail::default(),
            names,
            watcher,
        }
    }

    /// Sets the files that are watched besides the configuration file.
    fn set_files(&mut self, files: Vec<WatchedFile>) {
        self.files.truncate(1);
        self.files.extend(files);
    }

    /// Looks at every file; true when one is not as it was.
    fn check_content(&mut self) -> bool {
        let mut changed = false;
        for file in &mut self.files {
            let now = WatchedFile::read(file.path.clone());
            changed |= now != *file;
            *file = now;
        }
        changed
    }

    /// Watches the directories through which the paths lead now.
    fn watch_directories(&mut self) {
        let mut trail = SymlinkTrail::default();
        for file in &self.files {
            trail.join(SymlinkTrail::of(&file.path));
        }
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

/// Returns true when an event can mean another content. Opening and reading do not: this thread
/// reads too.
fn is_relevant(event: &notify::Result<notify::Event>, names: &[OsString]) -> bool {
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
