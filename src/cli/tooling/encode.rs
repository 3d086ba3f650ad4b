//! Encodes a core module, the output of a compiler, as a component, the input of the gateway.
//!
//! Compiles nothing and checks no grants. `cli::plugin` calls it for authors, so that a plugin in Rust needs
//! no tool but rustup's target. Both functions read bytes and give bytes.

use thiserror::Error;
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

/// The custom section in which bindings leave the world they were made for.
const WORLD_SECTION: &str = "component-type";

/// Reason for which a module does not become a component. The texts are for the plugin's author.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// No WebAssembly, or broken.
    #[error("not a WebAssembly module: {0}")]
    NotWasm(String),
    /// Already a component: nothing to do.
    #[error("is a component already")]
    Component,
    /// The module does not say which interfaces it exports.
    #[error(
        "no world in it: the plugin exports no interface; with the SDK, call \
         `infergate_sdk::export_task!(…)`, `export_billing!(…)` or `export_routing!(…)`"
    )]
    NoWorld,
    /// An import that no component can offer.
    #[error("imports {import}: {advice}")]
    Import {
        /// `module.name`.
        import: String,
        /// Advice for the author.
        advice: &'static str,
    },
    /// The module and the world in it do not fit together.
    #[error("does not fit its world: {0}")]
    Mismatch(String),
}

/// The component of a core module.
pub fn encode(module: &[u8]) -> Result<Vec<u8>, EncodeError> {
    inspect(module)?;
    let mismatch = |error| EncodeError::Mismatch(format!("{error:#}"));
    ComponentEncoder::default()
        .validate(true)
        .module(module)
        .map_err(mismatch)?
        .encode()
        .map_err(mismatch)
}

/// The names that a component imports, in its order; a plugin without grants has none.
pub fn imports(component: &[u8]) -> Result<Vec<String>, EncodeError> {
    let mut names = Vec::new();
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(not_wasm)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.push(import.map_err(not_wasm)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Refuses, with the likely cause, what the encoder would refuse without one.
fn inspect(module: &[u8]) -> Result<(), EncodeError> {
    if Parser::is_component(module) {
        return Err(EncodeError::Component);
    }
    let mut has_world = false;
    for payload in Parser::new(0).parse_all(module) {
        match payload.map_err(not_wasm)? {
            Payload::CustomSection(section) => {
                has_world |= section.name().starts_with(WORLD_SECTION);
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(not_wasm)?;
                    if let Some(advice) = advice(import.module) {
                        let import = format!("{}.{}", import.module, import.name);
                        return Err(EncodeError::Import { import, advice });
                    }
                }
            }
            _ => {}
        }
    }
    match has_world {
        true => Ok(()),
        false => Err(EncodeError::NoWorld),
    }
}

/// Advice for an import that is no interface.
fn advice(module: &str) -> Option<&'static str> {
    match module {
        "wasi_snapshot_preview1" | "wasi_unstable" => {
            Some("build for wasm32-unknown-unknown: a plugin gets no WASI")
        }
        "env" => Some("a C function that nobody defines; look for a dependency with C code"),
        _ if module.starts_with("__wbindgen") => Some(
            "a dependency expects a browser: turn off its features `js` or `wasmbind` \
             (getrandom, chrono and uuid have them); time and chance come as arguments here",
        ),
        _ => None,
    }
}

fn not_wasm(error: wasmparser::BinaryReaderError) -> EncodeError {
    EncodeError::NotWasm(error.to_string())
}

#[cfg(test)]
mod tests {
    use wit_component::{StringEncoding, embed_component_metadata};
    use wit_parser::Resolve;

    use super::*;

    const ANSWER: &str = "(module (memory (export \"memory\") 1)
        (func (export \"answer\") (result i32) i32.const 42))";

    fn module(text: &str) -> Vec<u8> {
        wat::parse_str(text).expect("the text is a module")
    }

    /// The module, with a world in it as bindings leave it.
    fn with_world(text: &str, world: &str) -> Vec<u8> {
        let mut module = module(text);
        let mut resolve = Resolve::default();
        let package = resolve
            .push_str(
                "test.wit",
                &format!("package test:test; world test {{ {world} }}"),
            )
            .expect("the world is valid");
        let world = resolve
            .select_world(&[package], None)
            .expect("there is one world");
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .expect("the world fits into a section");
        module
    }

    #[test]
    fn a_module_with_its_world_becomes_a_component_without_imports() {
        let core = with_world(ANSWER, "export answer: func() -> u32;");
        let component = encode(&core).unwrap();
        assert!(Parser::is_component(&component));
        assert_eq!(imports(&component), Ok(vec![]));
    }

    #[test]
    fn imports_are_told_by_their_names_and_unused_ones_are_left_out() {
        let world = "import log: interface { emit: func(n: u32); }
            import idle: interface { nothing: func(); }
            export answer: func() -> u32;";
        let text = "(module (import \"log\" \"emit\" (func $emit (param i32)))
            (memory (export \"memory\") 1)
            (func (export \"answer\") (result i32) (call $emit (i32.const 1)) i32.const 42))";
        let component = encode(&with_world(text, world)).unwrap();
        assert_eq!(imports(&component), Ok(vec!["log".to_owned()]));
    }

    #[test]
    fn a_module_without_a_world_is_told_which_macro_is_missing() {
        let error = encode(&module(ANSWER)).unwrap_err();
        assert_eq!(error, EncodeError::NoWorld);
        assert!(error.to_string().contains("export_billing!"));
    }

    #[test]
    fn imports_of_wasi_and_of_browsers_are_refused_with_advice() {
        for (from, word) in [
            ("wasi_snapshot_preview1", "wasm32-unknown-unknown"),
            ("__wbindgen_placeholder__", "getrandom"),
            ("env", "dependency with C code"),
        ] {
            let core = module(&format!("(module (import \"{from}\" \"f\" (func)))"));
            let error = encode(&core).unwrap_err().to_string();
            assert!(error.contains(&format!("{from}.f")), "{error}");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_missing_export_is_named() {
        let core = with_world("(module)", "export answer: func() -> u32;");
        let error = encode(&core).unwrap_err().to_string();
        assert!(error.contains("answer"), "{error}");
    }

    #[test]
    fn a_component_and_bytes_that_are_no_wasm_are_told_apart() {
        let component = encode(&with_world(ANSWER, "export answer: func() -> u32;")).unwrap();
        assert_eq!(encode(&component), Err(EncodeError::Component));
        let text = encode(b"#!/bin/sh").unwrap_err().to_string();
        assert!(text.starts_with("not a WebAssembly module"), "{text}");
    }
}
