//! State of the files that a model's process is made of: its program, its weights, its adapters.
//!
//! Reads no content: paths with size, time of change and inode make a number, which differs once one of them does. The
//! number is the same in each release, so that a later gateway knows of an update since the start of a process.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use infergate_core::model::{ModelSpec, ProcessSpec};
use infergate_core::vram::estimate::ShardName;
use sha2::{Digest, Sha256};

use super::launch::preset_of;
use super::presets::Program;

/// Files of a folder that are looked at.
const FILES_MAX: usize = 4096;

/// Returns the number of the present files of a model; none without a process. Blocks for as long as the disk takes.
pub fn file_state(spec: &ModelSpec) -> Option<u64> {
    let process = spec.process.as_ref()?;
    let mut hasher = Sha256::new();
    let arguments = process
        .arguments
        .iter()
        .chain(process.command.iter().skip(1));
    let arguments = arguments.map(|text| Path::new(&**text));
    // A projector or a draft stands among the arguments.
    let named = arguments.filter(|path| path.is_absolute() && path.is_file());
    let paths = program(process)
        .into_iter()
        .chain(process.model_path.clone())
        .chain(process.adapters.iter().map(|adapter| adapter.path.clone()))
        .chain(named.map(Path::to_path_buf));
    for path in paths {
        hash_path(&path, &mut hasher);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    Some(
        digest
            .iter()
            .take(8)
            .fold(0, |state, byte| state << 8 | u64::from(*byte)),
    )
}

/// File of the program that a process would be started with now.
fn program(process: &ProcessSpec) -> Option<PathBuf> {
    let name = match (
        preset_of(process).map(|preset| preset.program),
        process.command.first(),
    ) {
        (Some(Program::Gateway), _) => return std::env::current_exe().ok(),
        (Some(Program::Named(name)), _) => name,
        (None, Some(name)) => &**name,
        (None, None) => return None,
    };
    if name.contains('/') {
        return Some(process.working_directory.join(name));
    }
    let path = std::env::var_os("PATH")?;
    let mut folders = std::env::split_paths(&path).map(|folder| folder.join(name));
    folders.find(|file| file.is_file())
}

fn hash_path(path: &Path, hasher: &mut Sha256) {
    if !path.is_dir() {
        hash_file(path, hasher);
        let name = path.file_name().and_then(|name| name.to_str());
        let shards = name.and_then(ShardName::parse);
        for other in shards.iter().flat_map(ShardName::files) {
            hash_file(&path.with_file_name(other), hasher);
        }
        return;
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.take(FILES_MAX).map(|it| it.path()).collect();
    files.sort_unstable();
    for file in files {
        hash_file(&file, hasher);
    }
}

fn hash_file(path: &Path, hasher: &mut Sha256) {
    let found = path.metadata().ok();
    let found = found.map(|it| (it.len(), it.mtime(), it.mtime_nsec(), it.ino()));
    hasher.update(format!("{} {found:?}\n", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(process: &str) -> ModelSpec {
        let text = format!(
            r#"{{"id":"m","task":"text-generation","backend":"openai","process":{process}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_state_changes_with_the_program_the_weights_and_the_files_among_the_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in [
            "serve",
            "m-00001-of-00002.gguf",
            "m-00002-of-00002.gguf",
            "draft.gguf",
        ] {
            std::fs::write(at(name), name).unwrap();
        }
        let spec = spec(&format!(
            r#"{{"command":["{}","{{port}}"],"model_path":"{}","arguments":["-md","{}"]}}"#,
            at("serve"),
            at("m-00001-of-00002.gguf"),
            at("draft.gguf")
        ));
        let mut before = file_state(&spec).unwrap();
        assert_eq!(file_state(&spec), Some(before));
        for name in ["serve", "m-00002-of-00002.gguf", "draft.gguf"] {
            std::fs::write(at(name), "longer than it was before").unwrap();
            let after = file_state(&spec).unwrap();
            assert_ne!(after, before, "{name}");
            before = after;
        }
    }

    #[test]
    fn a_folder_counts_with_its_files_and_a_missing_one_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let spec = spec(&format!(
            r#"{{"preset":"tei","model_path":"{}"}}"#,
            path.display()
        ));
        let missing = file_state(&spec);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("a.safetensors"), "a").unwrap();
        let one = file_state(&spec);
        std::fs::write(path.join("b.safetensors"), "b").unwrap();
        assert!(missing != one && one != file_state(&spec));
    }
}
