//! Component type: validity, imports and exports, read before compilation.
//!
//! Runs nothing. Bytes are validated whole with the engine's own features before a compiler sees them. Code from
//! the cache needs no second validation: its bytes have the digest that was valid. Every refusal says what to do
//! about it.

use wasmparser::{Parser, Payload, Validator};

use crate::plugin::runtime::engine::features;
use crate::plugin::spec::World;

/// Larger components are not for a gateway; an interpreter of Python with its library has 18 MiB.
pub const FILE_MAX_BYTES: u64 = 32 << 20;
/// Levels of components and modules in each other. Composed components have four or five; each level
/// costs the compiler a copy of all that it contains.
const NESTING_MAX: usize = 16;
/// Code of one function. The largest loop of an interpreter (QuickJS, CPython) has some 100 KiB, and
/// the time for a function grows faster than its size.
const FUNCTION_MAX_BYTES: usize = 1 << 20;
/// Local variables of one function: unoptimised code of an interpreter's loop has some 2,000. The
/// register allocator's time grows with their square.
const LOCALS_MAX: u64 = 5_000;
/// Types of all components and modules in it together; an interpreter with its bindings has some 1,500.
const TYPES_MAX: u64 = 20_000;
/// The package guests export interfaces of, with its major.
const PLUGIN: &str = "infergate:plugin/";
const HOST: &str = "infergate:host/";
const MAJOR: &str = "1";

/// Imports and exports of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComponentType {
    /// Full names, such as `infergate:host/log@1.0.0`.
    pub imports: Vec<String>,
    /// Full names; those that are no plugin interface are never called.
    pub exports: Vec<String>,
}

impl ComponentType {
    /// Validates the bytes and reads their outside.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub fn of(bytes: &[u8]) -> Result<ComponentType, String> {
        let shape = ComponentType::read(bytes)?;
        validate(bytes)?;
        Ok(shape)
    }

    /// Reads the outside of bytes that need not be valid.
    ///
    /// # Errors
    /// A sentence with the remedy: bytes that cannot be a component.
    pub fn read(bytes: &[u8]) -> Result<ComponentType, String> {
        if !bytes.starts_with(b"\0asm") {
            return Err(
                "it is not WebAssembly: expected a component, `infergate plugin build` makes one"
                    .into(),
            );
        }
        if Parser::is_core_wasm(bytes) {
            return Err("it is a core module, not a component: `infergate plugin build` makes a component of it".into());
        }
        read(bytes).map_err(|error| advice_on(&error.to_string()))
    }

    /// True when it exports an interface of our package, at any version of our major.
    pub fn has(&self, interface: &str) -> bool {
        self.exports
            .iter()
            .any(|name| interface_of(name, PLUGIN) == Some((interface, true)))
    }

    /// Interface by which it prices: `pricing`, or `billing` where it has no other.
    fn formula(&self) -> &'static str {
        match self.has("pricing") {
            true => "pricing",
            false => "billing",
        }
    }

    /// Exports that a plugin of that world needs and this component lacks.
    pub fn missing_exports(&self, world: World) -> Vec<String> {
        let formula = self.formula();
        let needed: &[&str] = match world {
            World::TaskSchema => &["lifecycle", "task"],
            World::TaskSchemaStreaming => &["lifecycle", "task", "task-stream"],
            World::BillingFormula => &["lifecycle", formula],
            World::BillingEstimator => &["lifecycle", formula, "estimator"],
            World::RoutingPolicy => &["lifecycle", "routing"],
        };
        needed
            .iter()
            .filter(|interface| !self.has(interface))
            .map(|interface| {
                let is = match self.worlds().as_slice() {
                    [] => String::new(),
                    worlds => format!(": it is a `{}`", worlds.join("`, `")),
                };
                let newer = self.exports.iter().find(|name| {
                    matches!(interface_of(name, PLUGIN), Some((found, false)) if found == *interface)
                });
                match newer {
                    Some(name) => format!("it exports {name}; this gateway speaks version {MAJOR}"),
                    None => format!(
                        "the world `{}` exports `{PLUGIN}{interface}@{MAJOR}.0.0`, which it does not{is}",
                        world.name()
                    ),
                }
            })
            .collect()
    }

    /// The worlds it is complete for.
    pub fn worlds(&self) -> Vec<&'static str> {
        let has = |interfaces: &[&str]| interfaces.iter().all(|one| self.has(one));
        let mut worlds = Vec::new();
        if has(&["lifecycle", "task"]) {
            worlds.push(match self.has("task-stream") {
                true => World::TaskSchemaStreaming.name(),
                false => World::TaskSchema.name(),
            });
        }
        if has(&["lifecycle", self.formula()]) {
            worlds.push(match self.has("estimator") {
                true => World::BillingEstimator.name(),
                false => World::BillingFormula.name(),
            });
        }
        if has(&["lifecycle", "routing"]) {
            worlds.push(World::RoutingPolicy.name());
        }
        worlds
    }

    /// Imports beyond the grants, a sentence each.
    pub fn ungranted_imports(&self, grants: &[impl AsRef<str>]) -> Vec<String> {
        let granted = |word: &str| {
            grants
                .iter()
                .map(AsRef::as_ref)
                .any(|grant| grant.split(':').next() == Some(word))
        };
        self.imports
            .iter()
            .filter_map(|name| match interface_of(name, HOST) {
                Some((word @ ("log" | "counters" | "tables"), true)) if granted(word) => None,
                Some((word @ ("log" | "counters"), true)) => {
                    Some(format!("imports {name}, which is not granted: add `{word}` to its grants"))
                }
                Some(("tables", true)) => Some(format!(
                    "imports {name}, which is not granted: add `tables:<name>` to its grants and the table to its tables"
                )),
                Some((_, false)) => Some(format!(
                    "imports {name}: this gateway offers version {MAJOR} of {HOST}"
                )),
                _ if name.starts_with("wasi:") => Some(format!(
                    "imports {name}: build for wasm32-unknown-unknown or pass --stub-wasi"
                )),
                _ => Some(format!(
                    "imports {name}: plugins may import {HOST}log, counters and tables only"
                )),
            })
            .collect()
    }
}

/// Interface of a full name in a package, and whether its major is ours.
fn interface_of<'a>(name: &'a str, package: &str) -> Option<(&'a str, bool)> {
    let (interface, version) = name.strip_prefix(package)?.split_once('@')?;
    Some((
        interface,
        version.split('.').next() == Some(MAJOR) && !version.contains('-'),
    ))
}

/// Validates a component, with all that a compiler must not be given.
///
/// # Errors
/// A sentence with the remedy.
pub fn validate(bytes: &[u8]) -> Result<(), String> {
    within_limits(bytes)?;
    Validator::new_with_features(features())
        .validate_all(bytes)
        .map(|_| ())
        .map_err(|error| advice_on(&error.to_string()))
}

/// Checks that a compiler would be done with the bytes in time. Looked at before they are validated: what
/// nests deep or has a function of many megabytes costs validator and compiler more than its size.
fn within_limits(bytes: &[u8]) -> Result<(), String> {
    let invalid = |error: wasmparser::BinaryReaderError| advice_on(&error.to_string());
    let (mut depth, mut types) = (0_usize, 0_u64);
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(invalid)? {
            Payload::Version { .. } => {
                depth += 1;
                if depth > NESTING_MAX {
                    return Err(format!(
                        "components and modules are nested deeper than {NESTING_MAX} in it"
                    ));
                }
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::TypeSection(section) => types += u64::from(section.count()),
            Payload::CoreTypeSection(section) => types += u64::from(section.count()),
            Payload::ComponentTypeSection(section) => types += u64::from(section.count()),
            Payload::CodeSectionEntry(body) => {
                if body.range().len() > FUNCTION_MAX_BYTES {
                    return Err(format!(
                        "a function in it has more than {} KiB of code: split it",
                        FUNCTION_MAX_BYTES >> 10
                    ));
                }
                let mut locals = 0_u64;
                for group in body.get_locals_reader().map_err(invalid)? {
                    locals += u64::from(group.map_err(invalid)?.0);
                }
                if locals > LOCALS_MAX {
                    return Err(format!(
                        "a function in it has more than {LOCALS_MAX} local variables: build it optimised"
                    ));
                }
            }
            _ => {}
        }
        if types > TYPES_MAX {
            return Err(format!("it declares more than {TYPES_MAX} types"));
        }
    }
    Ok(())
}

fn read(bytes: &[u8]) -> wasmparser::Result<ComponentType> {
    let mut shape = ComponentType::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload? {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    shape.imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    shape.exports.push(export?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(shape)
}

/// The validator's word, with what to do where it is known.
fn advice_on(error: &str) -> String {
    let advice = if error.contains("async") {
        ": it uses the async ABI; pass `--sync` to componentize-qjs"
    } else if error.contains("threads") || error.contains("shared") {
        ": plugins have one thread"
    } else if error.contains("memory64") || error.contains("multi-memory") {
        ": plugins have one memory of 32-bit addresses"
    } else if error.contains("exceptions") || error.contains("gc") {
        ": exceptions and garbage collection are off here; see the options of the compiler"
    } else {
        ""
    };
    format!("it is not valid{advice} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(imports: &[&str], exports: &[&str]) -> ComponentType {
        ComponentType {
            imports: imports.iter().map(|name| (*name).to_owned()).collect(),
            exports: exports.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn an_import_that_is_not_granted_is_refused_with_what_to_do() {
        let log = shape(&["infergate:host/log@1.2.0"], &[]);
        assert!(log.ungranted_imports(&["log"]).is_empty());
        assert!(log.ungranted_imports(&["counters"])[0].contains("add `log` to its grants"));
        let tables = shape(&["infergate:host/tables@1.0.0"], &[]);
        assert!(tables.ungranted_imports(&["tables:prices"]).is_empty());
        let wasi = shape(&["wasi:cli/stdout@0.2.6"], &[]);
        assert_eq!(
            wasi.ungranted_imports(&["log"]),
            ["imports wasi:cli/stdout@0.2.6: build for wasm32-unknown-unknown or pass --stub-wasi"]
        );
        let newer = shape(&["infergate:host/log@2.0.0"], &[]);
        assert!(newer.ungranted_imports(&["log"])[0].contains("offers version 1"));
        assert!(shape(&["env"], &[]).ungranted_imports(&["log"])[0].contains("may import"));
    }

    #[test]
    fn a_world_is_there_at_any_version_of_its_major() {
        let newer = shape(
            &[],
            &[
                "infergate:plugin/lifecycle@1.1.0",
                "infergate:plugin/billing@1.3.7",
                "init",
            ],
        );
        assert!(newer.missing_exports(World::BillingFormula).is_empty());
        assert_eq!(newer.worlds(), ["billing-formula"]);
        assert!(
            newer.missing_exports(World::RoutingPolicy)[0].contains("it is a `billing-formula`")
        );
        let in_numbers = shape(
            &[],
            &[
                "infergate:plugin/lifecycle@1.1.0",
                "infergate:plugin/pricing@1.1.0",
            ],
        );
        assert!(in_numbers.missing_exports(World::BillingFormula).is_empty());
        assert_eq!(in_numbers.worlds(), ["billing-formula"]);
        let major = shape(
            &[],
            &[
                "infergate:plugin/lifecycle@1.0.0",
                "infergate:plugin/billing@2.0.0",
            ],
        );
        assert!(major.missing_exports(World::BillingFormula)[0].contains("speaks version 1"));
    }

    fn component(text: &str) -> String {
        ComponentType::of(&wat::parse_str(text).unwrap()).unwrap_err()
    }

    #[test]
    fn what_a_compiler_would_be_long_over_is_refused_before_it_is_validated() {
        let nested = format!("{}{}", "(component ".repeat(17), ")".repeat(17));
        assert!(component(&nested).contains("deeper than 16"));
        let locals = format!("(func (local{}))", " i32".repeat(5_001));
        let of = |inner: &str| format!("(component (core module {inner}))");
        assert!(component(&of(&locals)).contains("5000 local variables"));
        let long = format!("(func {})", "(drop (i32.const 1))".repeat(400_000));
        assert!(component(&of(&long)).contains("1024 KiB of code"));
        let types: String = (0..20_001)
            .map(|n| format!("(type (func (param{})))", " i32".repeat(n % 20)))
            .collect();
        assert!(component(&of(&types)).contains("20000 types"));
        let fits = format!("{}{}", "(component ".repeat(16), ")".repeat(16));
        assert!(ComponentType::of(&wat::parse_str(&fits).unwrap()).is_ok());
    }

    #[test]
    fn what_is_no_component_is_told_apart() {
        assert!(
            ComponentType::of(b"hello")
                .unwrap_err()
                .contains("not WebAssembly")
        );
        let module = wat::parse_str("(module)").unwrap();
        assert!(
            ComponentType::of(&module)
                .unwrap_err()
                .contains("core module")
        );
        let mut broken = wat::parse_str("(component)").unwrap();
        broken.push(0xff);
        assert!(
            ComponentType::of(&broken)
                .unwrap_err()
                .contains("not valid")
        );
    }
}
