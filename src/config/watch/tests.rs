//! The watcher against a real file system: every way a file is known to change.

use std::fs;
use std::io::Write;

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;
use crate::telemetry::Clock;

/// Generous: the signal comes within half a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(30);

struct WatchFixture {
    dir: TempDir,
    path: PathBuf,
    watch: FileWatch,
}

impl WatchFixture {
    fn new() -> WatchFixture {
        WatchFixture::with(|dir| {
            let path = dir.join("infergate.yaml");
            fs::write(&path, "one").unwrap();
            path
        })
    }

    /// `prepare` leaves a file with the content "one" and returns its path.
    fn with(prepare: impl FnOnce(&Path) -> PathBuf) -> WatchFixture {
        let dir = tempfile::tempdir().unwrap();
        let path = prepare(dir.path());
        let watch = FileWatch::start(&path, content_hash(b"one")).unwrap();
        WatchFixture { dir, path, watch }
    }

    /// Waits for signals until the file reads `content`; `None` means it is gone.
    async fn expect(&mut self, content: Option<&str>) {
        let notified = async {
            loop {
                self.watch.changed().await;
                if fs::read_to_string(&self.path).ok().as_deref() == content {
                    return;
                }
            }
        };
        timeout(LIMIT, notified)
            .await
            .expect("a signal for the change");
    }
}

#[tokio::test]
async fn a_file_written_in_place_is_noticed() {
    let mut f = WatchFixture::new();
    fs::write(&f.path, "two").unwrap();
    f.expect(Some("two")).await;
    fs::write(&f.path, "three").unwrap();
    f.expect(Some("three")).await;
}

#[tokio::test]
async fn an_editor_that_renames_a_new_file_over_the_old_is_noticed_every_time() {
    let mut f = WatchFixture::new();
    for round in 0..5 {
        let content = format!("round {round}");
        let draft = f.dir.path().join(".infergate.yaml.swp");
        fs::write(&draft, &content).unwrap();
        fs::rename(&draft, &f.path).unwrap();
        f.expect(Some(&content)).await;
    }
}

#[tokio::test]
async fn a_removed_file_is_noticed_and_so_is_its_return() {
    let mut f = WatchFixture::new();
    fs::remove_file(&f.path).unwrap();
    f.expect(None).await;
    fs::write(&f.path, "one").unwrap();
    f.expect(Some("one")).await;
}

#[tokio::test]
async fn a_truncated_file_is_noticed_and_so_is_the_rest_of_it() {
    let mut f = WatchFixture::new();
    let mut file = fs::File::create(&f.path).unwrap();
    f.expect(Some("")).await;
    file.write_all(b"two").unwrap();
    drop(file);
    f.expect(Some("two")).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_kubernetes_mount_is_noticed_when_its_data_link_is_swapped() {
    use std::os::unix::fs::symlink;
    let revision = |dir: &Path, name: &str, content: &str| {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("infergate.yaml"), content).unwrap();
        symlink(name, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    let mut f = WatchFixture::with(|dir| {
        revision(dir, "..v1", "one");
        symlink("..data/infergate.yaml", dir.join("infergate.yaml")).unwrap();
        dir.join("infergate.yaml")
    });
    for round in 2..5 {
        let content = format!("round {round}");
        revision(f.dir.path(), &format!("..v{round}"), &content);
        fs::remove_dir_all(f.dir.path().join(format!("..v{}", round - 1))).unwrap();
        f.expect(Some(&content)).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_to_a_file_elsewhere_is_noticed_when_that_file_changes() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("real.yaml");
    let mut f = WatchFixture::with(|dir| {
        fs::write(&target, "one").unwrap();
        std::os::unix::fs::symlink(&target, dir.join("infergate.yaml")).unwrap();
        dir.join("infergate.yaml")
    });
    fs::write(&target, "two").unwrap();
    f.expect(Some("two")).await;
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_again() {
    let mut f = WatchFixture::with(|dir| {
        fs::create_dir(dir.join("etc")).unwrap();
        fs::write(dir.join("etc/infergate.yaml"), "one").unwrap();
        dir.join("etc/infergate.yaml")
    });
    fs::rename(f.dir.path().join("etc"), f.dir.path().join("old")).unwrap();
    fs::create_dir(f.dir.path().join("etc")).unwrap();
    fs::write(&f.path, "two").unwrap();
    f.expect(Some("two")).await;
    fs::write(&f.path, "three").unwrap();
    f.expect(Some("three")).await;
}

#[tokio::test]
async fn a_change_between_loading_and_watching_is_noticed() {
    let mut f = WatchFixture::with(|dir| {
        fs::write(dir.join("infergate.yaml"), "two").unwrap();
        dir.join("infergate.yaml")
    });
    f.expect(Some("two")).await;
}

#[tokio::test]
async fn files_named_later_are_watched_from_what_was_read_there() {
    let mut f = WatchFixture::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let plugin = elsewhere.path().join("plugin.wasm");
    let table = elsewhere.path().join("table.json");
    fs::write(&plugin, "v1").unwrap();
    f.watch.set_files(vec![
        WatchedFile::read(plugin.clone()),
        WatchedFile::read(table.clone()),
    ]);
    for change in ["v2", "v3"] {
        fs::write(&plugin, change).unwrap();
        timeout(LIMIT, f.watch.changed()).await.expect("a signal");
    }
    fs::write(&table, "{}").unwrap();
    timeout(LIMIT, f.watch.changed()).await.expect("a signal");

    // Named as it was read, which is not as it is now.
    let read = WatchedFile {
        path: table.clone(),
        content: Some(content_hash(b"[]")),
    };
    f.watch.set_files(vec![read]);
    timeout(LIMIT, f.watch.changed()).await.expect("a signal");
}

#[test]
fn files_are_watched_no_longer_than_they_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let [config, plugin] = ["infergate.yaml", "plugin.wasm"].map(|name| dir.path().join(name));
    fs::write(&config, "one").unwrap();
    fs::write(&plugin, "v1").unwrap();
    let file = WatchedFile::read(config.clone());
    let mut watching = WatchState::new(file, Arc::default());
    watching.set_files(vec![WatchedFile::read(plugin.clone())]);
    assert!(!watching.check_content());
    fs::write(&plugin, "v2").unwrap();
    assert!(watching.check_content() && !watching.check_content());
    watching.set_files(Vec::new());
    fs::write(&plugin, "v3").unwrap();
    assert!(!watching.check_content());
    fs::write(&config, "two").unwrap();
    assert!(watching.check_content());
}

#[test]
fn a_touched_file_and_a_busy_neighbour_are_no_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    fs::write(&path, "one").unwrap();
    let before = WatchedFile::read(path.clone());
    fs::write(&path, "one").unwrap();
    assert_eq!(WatchedFile::read(path), before);

    let names = [OsString::from("infergate.yaml")];
    let event =
        |kind: EventKind, name: &str| Ok(notify::Event::new(kind).add_path(dir.path().join(name)));
    let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
    assert!(is_relevant(&event(written, "infergate.yaml"), &names));
    assert!(!is_relevant(&event(opened, "infergate.yaml"), &names));
    assert!(!is_relevant(&event(written, "events.jsonl"), &names));
}

#[test]
fn a_wakeup_that_never_stops_is_answered_all_the_same() {
    let wakeup = Arc::new(WatchWakeup::default());
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ringer = std::thread::spawn({
        let (wakeup, done) = (Arc::clone(&wakeup), Arc::clone(&done));
        move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                wakeup.notify();
                std::thread::yield_now();
            }
        }
    });
    assert!(wakeup.wait(LIMIT));
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    ringer.join().unwrap();
}

#[test]
fn dropping_the_watch_ends_its_thread_at_once() {
    let f = WatchFixture::new();
    let wakeup = Arc::downgrade(&f.watch.wakeup);
    drop(f);
    // The thread is joined; the system's event thread lets go a moment later.
    let clock = Clock::start();
    while wakeup.upgrade().is_some() {
        let waited = Duration::from_millis(clock.now().0);
        assert!(waited < LIMIT, "thread or event handler holds the wakeup");
        std::thread::yield_now();
    }
}
