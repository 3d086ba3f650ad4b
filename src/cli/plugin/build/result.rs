//! Result of a compiler for a folder, and the reasons why a plugin is not built.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cli::tooling::encode::EncodeError;

/// Reason for which a plugin is not built. The texts are for its author.
#[derive(Debug, Error)]
pub enum BuildError {
    /// Neither language's manifest.
    #[error("{}: no Cargo.toml and no package.json in it", .0.display())]
    NoManifest(PathBuf),
    /// A manifest that cannot be used.
    #[error("{}: {message}", file.display())]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// The problem and its remedy.
        message: String,
    },
    /// A program that is not there.
    #[error("`{program}` does not run: {advice}")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// Advice on where to get it.
        advice: &'static str,
    },
    /// The compiler failed; its messages are on standard error.
    #[error("`{program}` failed{}", .advice.map(|text| format!(": {text}")).unwrap_or_default())]
    Failed {
        /// Its name.
        program: &'static str,
        /// Remedy, where the cause is known.
        advice: Option<&'static str>,
    },
    /// The output is no plugin.
    #[error("{name}: {error}")]
    Encode {
        /// The plugin.
        name: String,
        /// Error of the encoder.
        error: EncodeError,
    },
    /// The output is a component and no plugin.
    #[error("{name}: {why}")]
    NoPlugin {
        /// The plugin.
        name: String,
        /// Missing exports, and the remedy.
        why: String,
    },
    /// The component imports more than its manifest declares.
    #[error("{name}: imports {import}: {advice}")]
    Import {
        /// The plugin.
        name: String,
        /// Name of the import.
        import: String,
        /// Advice for the author.
        advice: String,
    },
    /// A file that cannot be written or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operation.
        error: io::Error,
    },
}

/// Output of a compiler for a folder.
pub struct CompilerOutput {
    pub name: String,
    pub component: Vec<u8>,
    /// Grants that its manifest declares: `log`, `counters`, `tables`.
    pub grants: Vec<String>,
    /// Default place of the component.
    pub folder: PathBuf,
    /// Folder of its fixtures, if it has any.
    pub fixtures: PathBuf,
}
