//! A machine with an NVIDIA driver: a library built here takes the place of the driver's.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nvml_double.c");

/// The library and the file with its devices and faults, in a folder of its own.
pub struct NvmlDouble {
    dir: tempfile::TempDir,
}

impl NvmlDouble {
    /// File name of the library.
    pub const LIBRARY: &str = "libnvidia-ml.so.1";

    /// Builds the library, with the lines of its control file.
    pub fn new(lines: &str) -> NvmlDouble {
        let dir = tempfile::tempdir().unwrap();
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(dir.path().join(NvmlDouble::LIBRARY))
            .arg(SOURCE)
            .status();
        assert!(built.unwrap().success());
        let double = NvmlDouble { dir };
        double.set(lines);
        double
    }

    /// Replaces the control file as a whole.
    pub fn set(&self, lines: &str) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, lines).unwrap();
        std::fs::rename(next, self.control()).unwrap();
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Environment of a process that has this driver.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![
            ("LD_LIBRARY_PATH".to_owned(), text(self.dir())),
            ("NVML_DOUBLE".to_owned(), text(&self.control())),
        ]
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }
}
