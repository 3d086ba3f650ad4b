//! Facts read off a component's bytes: digest, imports, exports, memory, producers.
//!
//! Compiles, runs and judges nothing: `plugin check` does. A file has at most 32 MiB.

use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload, ProducersSectionReader};

use crate::plugin::loading::component_file;
use crate::plugin::loading::component_type::ComponentType;
use crate::plugin::spec::World;

pub use crate::plugin::loading::component_type::FILE_MAX_BYTES;

/// Facts about a component.
#[derive(Clone, Debug)]
pub struct ComponentInfo {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Digest, lower-case hexadecimal.
    pub sha256: String,
    /// Full names, such as `infergate:host/log@1.0.0`.
    pub imports: Vec<String>,
    /// Full names.
    pub exports: Vec<String>,
    /// Its memories, one for most.
    pub memories: Vec<MemoryInfo>,
    /// Producers of the component: field, name, version.
    pub producers: Vec<Producer>,
    /// True when backtraces will name functions.
    pub has_names: bool,
    /// Modules of WASI that code in it calls by name while the component imports none of that name:
    /// they lead to stubs. A stub that leaves no name behind is not seen.
    pub stubbed_wasi: Vec<String>,
    shape: ComponentType,
}

/// A linear memory; a page has 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryInfo {
    /// Pages at the start.
    pub min_pages: u64,
    /// Pages it may grow to by its own declaration; the gateway's limit holds in any case.
    pub max_pages: Option<u64>,
}

/// A line of the `producers` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Producer {
    /// `language`, `processed-by` or `sdk`.
    pub field: String,
    /// Such as `rustc`.
    pub name: String,
    /// May be empty.
    pub version: String,
}

impl ComponentInfo {
    /// Reads a file.
    ///
    /// # Errors
    /// A sentence with the remedy: it cannot be read, is too large, no component or not valid.
    pub fn of_file(path: &Path) -> Result<ComponentInfo, String> {
        ComponentInfo::of(component_file::read(path)?)
    }

    /// Looks at bytes.
    ///
    /// # Errors
    /// As of a file.
    pub fn of(bytes: Vec<u8>) -> Result<ComponentInfo, String> {
        let shape = ComponentType::of(&bytes)?;
        let mut info = ComponentInfo {
            sha256: hex::encode(Sha256::digest(&bytes)),
            imports: shape.imports.clone(),
            exports: shape.exports.clone(),
            memories: Vec::new(),
            producers: Vec::new(),
            has_names: false,
            stubbed_wasi: Vec::new(),
            bytes: Vec::new(),
            shape,
        };
        info.read_sections(&bytes)
            .map_err(|error| error.to_string())?;
        info.bytes = bytes;
        Ok(info)
    }

    fn read_sections(&mut self, bytes: &[u8]) -> wasmparser::Result<()> {
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::MemorySection(section) => {
                    for memory in section {
                        let memory = memory?;
                        self.memories.push(MemoryInfo {
                            min_pages: memory.initial,
                            max_pages: memory.maximum,
                        });
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        self.record_inner_import(import?.module);
                    }
                }
                Payload::CustomSection(section) if section.name() == "name" => {
                    self.has_names = true;
                }
                Payload::CustomSection(section) if section.name() == "producers" => {
                    let reader =
                        wasmparser::BinaryReader::new(section.data(), section.data_offset());
                    self.read_producers(ProducersSectionReader::new(reader)?)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A core module in it imports from a module of this name.
    fn record_inner_import(&mut self, module: &str) {
        let is_wasi = module.starts_with("wasi:") || module.starts_with("wasi_");
        let is_known = |known: &String| known == module;
        if is_wasi && !self.imports.iter().chain(&self.stubbed_wasi).any(is_known) {
            self.stubbed_wasi.push(module.to_owned());
        }
    }

    fn read_producers(&mut self, section: ProducersSectionReader<'_>) -> wasmparser::Result<()> {
        for field in section {
            let field = field?;
            for value in field.values {
                let value = value?;
                let producer = Producer {
                    field: field.name.to_owned(),
                    name: value.name.to_owned(),
                    version: value.version.to_owned(),
                };
                if !self.producers.contains(&producer) {
                    self.producers.push(producer);
                }
            }
        }
        Ok(())
    }

    /// The worlds it exports everything of, the largest of each kind.
    pub fn worlds(&self) -> Vec<World> {
        let names = self.shape.worlds();
        let found = World::ALL.into_iter();
        found
            .filter(|world| names.contains(&world.name()))
            .collect()
    }

    /// Exports that a plugin of that world needs and this component lacks, a sentence each.
    pub fn missing_exports(&self, world: World) -> Vec<String> {
        self.shape.missing_exports(world)
    }

    /// Imports beyond these grants, a sentence each.
    pub fn ungranted_imports(&self, grants: &[String]) -> Vec<String> {
        self.shape.ungranted_imports(grants)
    }

    /// The grants it needs: `log`, `counters`, `tables:<name>`.
    pub fn required_grants(&self) -> Vec<&'static str> {
        let needs = [
            ("log", "log"),
            ("counters", "counters"),
            ("tables", "tables:<name>"),
        ];
        let imports = |word: &str| {
            let prefix = format!("infergate:host/{word}@");
            self.imports.iter().any(|name| name.starts_with(&prefix))
        };
        let found = needs.into_iter().filter(|(word, _)| imports(word));
        found.map(|(_, grant)| grant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stubbed(text: &str) -> Vec<String> {
        ComponentInfo::of(wat::parse_str(text).unwrap())
            .unwrap()
            .stubbed_wasi
    }

    #[test]
    fn calls_of_wasi_that_end_inside_are_told_apart_from_imports_and_from_none() {
        let within = r#"(component
            (core module $stub (func (export "now") unreachable))
            (core module $code
                (import "wasi:clocks/wall-clock@0.2.12" "now" (func))
                (import "wasi_snapshot_preview1" "now" (func))
                (import "env" "now" (func)))
            (core instance $s (instantiate $stub))
            (core instance (instantiate $code
                (with "wasi:clocks/wall-clock@0.2.12" (instance $s))
                (with "wasi_snapshot_preview1" (instance $s))
                (with "env" (instance $s)))))"#;
        assert_eq!(
            stubbed(within),
            ["wasi:clocks/wall-clock@0.2.12", "wasi_snapshot_preview1"]
        );
        let imported = r#"(component
            (import "wasi:clocks/wall-clock@0.2.12" (instance $w (export "now" (func))))
            (core func $now (canon lower (func $w "now")))
            (core module $code (import "wasi:clocks/wall-clock@0.2.12" "now" (func)))
            (core instance $s (export "now" (func $now)))
            (core instance (instantiate $code (with "wasi:clocks/wall-clock@0.2.12" (instance $s)))))"#;
        assert_eq!(stubbed(imported), [""; 0]);
        assert_eq!(stubbed("(component (core module))"), [""; 0]);
    }
}
