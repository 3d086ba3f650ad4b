//! Files of a model on a disk: which belong together, how long they are, what their headers say.
//!
//! Reads headers and `config.json` alone, never tensors, and regular files alone. Bounds: [`ENTRIES_MAX`] entries of a
//! folder, `SHARDS_MAX` files of a model, one header in memory. Blocks for as long as the disk takes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use infergate_core::vram::estimate::{
    FileFormat, HeaderError, ModelFiles, ModelHeader, SHARDS_MAX, ShardName, join_gguf,
    join_safetensors, read_gguf, read_safetensors,
};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::regular_file::open_regular;

/// Entries of a folder that are looked at: ten times as many as repositories of models have.
const ENTRIES_MAX: usize = 4096;
/// Extensions of weights, in the order in which a folder is searched for them.
const EXTENSIONS: [&str; 5] = ["safetensors", "gguf", "bin", "pth", "onnx"];
/// Name of the files of a model that is called by its folder.
const FOLDER_MODEL: &str = "model";
const CONFIG: &str = "config.json";

/// Model that was found.
#[derive(Debug)]
pub struct FoundModel {
    /// Name, from its files or its folder.
    pub name: String,
    /// Count of its files.
    pub count: usize,
    /// Files, as the estimate takes them.
    pub files: ModelFiles,
    /// File whose header cannot be read.
    pub faulty: Option<PathBuf>,
}

/// Reason why no model was found.
#[derive(Debug, Error)]
pub enum ModelFileError {
    /// The system gives no access.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// File or folder.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A part of a split is not there.
    #[error("{}: this part of the model is missing: copy all {count} files into one folder", path.display())]
    MissingShard {
        /// File that is not there.
        path: PathBuf,
        /// Files of the model.
        count: u64,
    },
    /// A name that announces an impossible number of parts.
    #[error("{}: the name announces parts that no model has: it may have 1 to {SHARDS_MAX}", path.display())]
    ImpossibleName {
        /// File.
        path: PathBuf,
    },
    /// A folder without weights.
    #[error("{}: the folder has no file of a model ({}): name a file", path.display(), EXTENSIONS.join(", "))]
    NoModel {
        /// Folder.
        path: PathBuf,
    },
    /// A folder with several models.
    #[error("{}: the folder has several models, {}: name a file of one", path.display(), names.join(" and "))]
    SeveralModels {
        /// Folder.
        path: PathBuf,
        /// First two of them.
        names: Vec<String>,
    },
    /// A folder of too many entries.
    #[error("{}: the folder has over {ENTRIES_MAX} entries: name a file", path.display())]
    TooManyEntries {
        /// Folder.
        path: PathBuf,
    },
    /// A file beside the model whose header cannot be read.
    #[error("{}: {fault}", path.display())]
    Header {
        /// File.
        path: PathBuf,
        /// Fault of the header.
        fault: HeaderError,
    },
}

/// File with the length that it had when it was opened.
struct ShardFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// Reads the model at `path`: any one of its files, or its folder.
///
/// # Errors
/// A file cannot be read, a part is missing, or a folder does not have exactly one model. A header that is damaged is no
/// error but a part of the result.
pub fn read_model(path: &Path) -> Result<FoundModel, ModelFileError> {
    let (folder, name) = locate(path)?;
    let files = open_all(&folder, &name)?;
    let bytes = files
        .iter()
        .fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    let count = files.len();
    let (format, header) = match &*name.extension {
        "gguf" => (FileFormat::Gguf, Some(gguf_header(files))),
        "safetensors" => (
            FileFormat::Safetensors,
            Some(safetensors_header(&folder, files)?),
        ),
        _ => (FileFormat::Other, None),
    };
    let (header, faulty) = match header {
        Some(Ok(header)) => (Some(Ok(header)), None),
        Some(Err((path, fault))) => (Some(Err(fault)), Some(path)),
        None => (None, None),
    };
    Ok(FoundModel {
        name: shown_name(&folder, &name),
        count,
        files: ModelFiles {
            format,
            bytes,
            header,
            projector: None,
            draft: None,
        },
        faulty,
    })
}

/// Reads the header of a GGUF model that stands beside another one, such as its projector or its draft.
///
/// # Errors
/// A file cannot be read, or its header is damaged.
pub fn header_of_file(path: &Path) -> Result<ModelHeader, ModelFileError> {
    let (folder, name) = locate(path)?;
    let files = open_all(&folder, &name)?;
    gguf_header(files).map_err(|(path, fault)| ModelFileError::Header { path, fault })
}

/// Returns a digest of the paths, sizes and times of a model's files; none where they cannot be read.
pub fn files_digest(path: &Path) -> Option<String> {
    let (folder, name) = locate(path).ok()?;
    let folder = folder.canonicalize().unwrap_or(folder);
    let mut digest = Sha256::new();
    for name in name.files() {
        let path = folder.join(name);
        let about = path.metadata().ok()?;
        let text = format!(
            "{} {} {}.{}\n",
            path.display(),
            about.len(),
            about.mtime(),
            about.mtime_nsec()
        );
        digest.update(text);
    }
    Some(hex::encode(digest.finalize()))
}

/// Returns the folder of the model and the name of its files.
fn locate(path: &Path) -> Result<(PathBuf, ShardName), ModelFileError> {
    let about = path.metadata().map_err(|error| unreadable(path, error))?;
    if about.is_dir() {
        return Ok((path.to_owned(), model_of_folder(path)?));
    }
    let name = path.file_name().and_then(OsStr::to_str);
    let name = name.and_then(ShardName::parse);
    let name = name.ok_or_else(|| ModelFileError::ImpossibleName { path: path.into() })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok((folder.to_owned(), name))
}

/// Returns the one model of a folder; that named `model` is the one among several.
fn model_of_folder(path: &Path) -> Result<ShardName, ModelFileError> {
    let entries = path.read_dir().map_err(|error| unreadable(path, error))?;
    let mut models = BTreeMap::new();
    for (count, entry) in entries.enumerate() {
        if count >= ENTRIES_MAX {
            return Err(ModelFileError::TooManyEntries { path: path.into() });
        }
        let entry = entry.map_err(|error| unreadable(path, error))?;
        let name = entry.file_name();
        let Some(shard) = name.to_str().and_then(ShardName::parse) else {
            continue;
        };
        let order = EXTENSIONS
            .iter()
            .position(|extension| *extension == shard.extension);
        if let Some(order) = order {
            models.insert((order, shard.model.clone(), shard.count), shard);
        }
    }
    let first = models.keys().next().map(|(order, _, _)| *order);
    models.retain(|(order, _, _), _| Some(*order) == first);
    let mut candidates: Vec<_> = models.into_values().collect();
    if candidates.iter().any(|shard| shard.model == FOLDER_MODEL) {
        candidates.retain(|shard| shard.model == FOLDER_MODEL);
    }
    match &candidates[..] {
        [] => Err(ModelFileError::NoModel { path: path.into() }),
        [one] => Ok(one.clone()),
        several => Err(ModelFileError::SeveralModels {
            path: path.into(),
            names: several
                .iter()
                .take(2)
                .filter_map(|shard| shard.files().next())
                .collect(),
        }),
    }
}

fn open_all(folder: &Path, name: &ShardName) -> Result<Vec<ShardFile>, ModelFileError> {
    let mut files = Vec::new();
    for file in name.files() {
        let path = folder.join(file);
        let opened = open_regular(&path).and_then(|file| {
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        });
        let (file, bytes) = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => ModelFileError::MissingShard {
                path: path.clone(),
                count: name.count,
            },
            _ => unreadable(&path, error),
        })?;
        files.push(ShardFile { path, file, bytes });
    }
    Ok(files)
}

/// Header over all files, or the file at fault.
fn gguf_header(files: Vec<ShardFile>) -> Result<ModelHeader, (PathBuf, HeaderError)> {
    let mut headers = Vec::new();
    let mut first = None;
    for ShardFile { path, file, bytes } in files {
        match read_gguf(file, bytes) {
            Ok(header) => headers.push(header),
            Err(fault) => return Err((path, fault)),
        }
        first.get_or_insert(path);
    }
    join_gguf(headers).map_err(|fault| (first.unwrap_or_default(), fault))
}

/// Header over all files with the configuration beside them, or the file at fault.
fn safetensors_header(
    folder: &Path,
    files: Vec<ShardFile>,
) -> Result<Result<ModelHeader, (PathBuf, HeaderError)>, ModelFileError> {
    let path = folder.join(CONFIG);
    let config = match open_regular(&path) {
        Ok(config) => Some(config),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(&path, error)),
    };
    let mut sums = Vec::new();
    for ShardFile { path, file, bytes } in files {
        match read_safetensors(file, bytes) {
            Ok(sum) => sums.push(sum),
            Err(fault) => return Ok(Err((path, fault))),
        }
    }
    Ok(join_safetensors(&sums, config).map_err(|fault| (path, fault)))
}

/// Name of the files, or that of their folder where they are all called the same.
fn shown_name(folder: &Path, name: &ShardName) -> String {
    let whole = folder.canonicalize().ok();
    let folder = whole.as_deref().and_then(Path::file_name);
    match folder.and_then(OsStr::to_str) {
        Some(folder) if name.model == FOLDER_MODEL => folder.to_owned(),
        _ => name.model.clone(),
    }
}

fn unreadable(path: &Path, error: io::Error) -> ModelFileError {
    ModelFileError::Unreadable {
        path: path.into(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file with one tensor of 16 bytes.
    fn safetensors() -> Vec<u8> {
        let json = br#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
        [&(json.len() as u64).to_le_bytes()[..], json, &[0; 16]].concat()
    }

    /// A GGUF file without figures and tensors.
    fn gguf() -> Vec<u8> {
        [&b"GGUF"[..], &[3, 0, 0, 0], &[0; 16]].concat()
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::TempDir::new().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn any_part_of_a_split_and_its_folder_find_all_parts() {
        let folder = folder(&[
            ("model-00001-of-00002.safetensors", safetensors()),
            ("model-00002-of-00002.safetensors", safetensors()),
            ("consolidated.safetensors", safetensors()),
            ("config.json", b"{}".to_vec()),
            ("x.gguf", gguf()),
        ]);
        let part = folder.path().join("model-00002-of-00002.safetensors");
        for path in [folder.path(), &part] {
            let model = read_model(path).unwrap();
            assert_eq!(
                (model.count, model.files.format),
                (2, FileFormat::Safetensors)
            );
            assert_eq!(model.files.header.unwrap().unwrap().weights_bytes, 32);
            assert_eq!(model.files.bytes, 2 * safetensors().len() as u64);
            let name = folder.path().file_name().unwrap();
            assert_eq!(Some(&*model.name), name.to_str());
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let folder = folder(&[
            ("a-00001-of-00002.gguf", gguf()),
            ("b.gguf", gguf()),
            ("c-00009-of-00002.gguf", gguf()),
        ]);
        let error = |name: &str| {
            read_model(&folder.path().join(name))
                .unwrap_err()
                .to_string()
        };
        assert!(error("a-00001-of-00002.gguf").contains("a-00002-of-00002.gguf"));
        assert!(error("c-00009-of-00002.gguf").contains("1 to 1024"));
        assert!(error("d.gguf").contains("d.gguf: "));
        assert!(error("").contains("a-00001-of-00002.gguf and b.gguf"));
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(error("empty").contains("no file of a model"));
    }

    #[test]
    fn a_pipe_is_refused_at_once_and_a_damaged_file_is_named() {
        let folder = folder(&[("a.gguf", b"GGU".to_vec()), ("a.bin", vec![0; 100])]);
        let pipe = folder.path().join("pipe.gguf");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(matches!(
            read_model(&pipe),
            Err(ModelFileError::Unreadable { .. })
        ));
        let damaged = folder.path().join("a.gguf");
        let model = read_model(&damaged).unwrap();
        assert_eq!(model.faulty.as_deref(), Some(&*damaged));
        assert!(model.files.header.unwrap().is_err());
        assert!(matches!(
            header_of_file(&damaged),
            Err(ModelFileError::Header { .. })
        ));
        let other = read_model(&folder.path().join("a.bin")).unwrap();
        assert_eq!((other.files.bytes, other.files.header), (100, None));
    }
}
