//! Files of the finetunes of a model: whether they are there when a request names one.
//!
//! Contents are not read. A look costs a call of the system for each file, off the worker, for requests with a `lora`
//! alone. At most one thread looks at the files of one finetune, however long a file system takes to answer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use infergate_core::model::FinetuneSpec;

use crate::telemetry::off_the_worker;

/// Files of all finetunes of a model.
pub struct FinetuneFiles {
    /// In the order of the finetunes.
    list: Box<[AdapterFiles]>,
}

/// Files of one finetune.
struct AdapterFiles {
    paths: Box<[PathBuf]>,
    /// A thread looks at them now.
    is_looking: AtomicBool,
    /// Result of the last look; true before the first.
    are_present: AtomicBool,
}

impl FinetuneFiles {
    /// Files of `finetunes`, which are not looked at yet.
    pub fn new(finetunes: &[FinetuneSpec]) -> FinetuneFiles {
        let list = finetunes.iter().map(|finetune| AdapterFiles {
            paths: finetune.files.iter().cloned().collect(),
            is_looking: AtomicBool::new(false),
            are_present: AtomicBool::new(true),
        });
        FinetuneFiles {
            list: list.collect(),
        }
    }

    /// Returns whether the files of the finetune at `place` are there. While another request looks, the result is that of
    /// the last look.
    pub fn are_present(&self, place: usize) -> bool {
        match self.list.get(place) {
            Some(files) if !files.paths.is_empty() => files.look(),
            _ => true,
        }
    }
}

impl AdapterFiles {
    fn look(&self) -> bool {
        if self.is_looking.swap(true, Ordering::Acquire) {
            return self.are_present.load(Ordering::Relaxed);
        }
        // Its folder may be on a file system that takes its time.
        let found = off_the_worker(true, || self.paths.iter().all(|path| path.exists()));
        self.are_present.store(found, Ordering::Relaxed);
        self.is_looking.store(false, Ordering::Release);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finetune_is_whole_while_all_its_files_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        let finetune = |files: &[PathBuf]| -> FinetuneSpec {
            serde_json::from_value(serde_json::json!({ "id": "f", "files": files })).unwrap()
        };
        let files = FinetuneFiles::new(&[finetune(&[]), finetune(&paths)]);
        assert!(files.are_present(0) && !files.are_present(1));
        std::fs::write(&paths[0], "").unwrap();
        assert!(!files.are_present(1));
        std::fs::write(&paths[1], "").unwrap();
        assert!(files.are_present(1));
        std::fs::remove_file(&paths[0]).unwrap();
        assert!(!files.are_present(1));
    }

    #[test]
    fn while_a_thread_looks_others_get_the_last_result() {
        let spec = serde_json::json!({ "id": "f", "files": ["/nowhere/at/all"] });
        let files = FinetuneFiles::new(&[serde_json::from_value(spec).unwrap()]);
        files.list[0].is_looking.store(true, Ordering::Relaxed);
        assert!(files.are_present(0));
        files.list[0].is_looking.store(false, Ordering::Relaxed);
        assert!(!files.are_present(0));
        files.list[0].is_looking.store(true, Ordering::Relaxed);
        assert!(!files.are_present(0));
    }
}
