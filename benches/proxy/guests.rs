//! Guests of the peers: a proxy-wasm filter for Envoy and a middleware for vllm-router, as WebAssembly text.
//! Not plugins of the gateway: those are the shipped ones.
//!
//! Both read the whole body, find `model` in it and set a header, and keep no state. The search runs
//! backwards from the end, where the load writes `model`, so a guest costs its host as little as it can.

use std::path::{Path, PathBuf};

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::kit::Fallible;

/// `$find_model` returns the address behind the last `"model":"`, and 0 when there is none. `$length` is the
/// length of the text up to the next quotation mark. `$take` hands out memory that is never given back.
const HELPERS: &str = r#"
  (memory (export "memory") 2)
  (global $free (mut i32) (i32.const 4096))
  (data (i32.const 16) "x-bench-model")

  (func $take (param $size i32) (result i32)
    (local $at i32) (local $pages i32)
    (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
    (global.set $free (i32.add (local.get $at) (local.get $size)))
    (local.set $pages
      (i32.sub
        (i32.shr_u (i32.add (global.get $free) (i32.const 65535)) (i32.const 16))
        (memory.size)))
    (if (i32.gt_s (local.get $pages) (i32.const 0))
      (then (drop (memory.grow (local.get $pages)))))
    (local.get $at))

  (func $find_model (param $text i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (i32.sub (i32.add (local.get $text) (local.get $size)) (i32.const 9)))
    (block $absent
      (loop $search
        (br_if $absent (i32.lt_s (local.get $at) (local.get $text)))
        (if (i64.eq (i64.load (local.get $at)) (i64.const 0x3a226c65646f6d22))
          (then (if (i32.eq (i32.load8_u offset=8 (local.get $at)) (i32.const 34))
            (then (return (i32.add (local.get $at) (i32.const 9)))))))
        (local.set $at (i32.sub (local.get $at) (i32.const 1)))
        (br $search)))
    (i32.const 0))

  (func $length (param $text i32) (result i32)
    (local $at i32)
    (local.set $at (local.get $text))
    (loop $search
      (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 34))
        (then
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $search))))
    (i32.sub (local.get $at) (local.get $text)))
"#;

/// Interface 0.2.1 of <https://github.com/proxy-wasm/spec>: a request waits until its body is complete.
const FILTER: &str = r#"
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param i32) (result i32) (call $take (local.get 0)))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_done") (param i32) (result i32) (i32.const 1))
  (func (export "proxy_on_delete") (param i32))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (i32.eqz (local.get 2)))
  (func (export "proxy_on_request_body") (param $context i32) (param $size i32) (param $end i32) (result i32)
    (local $model i32)
    (if (i32.eqz (local.get $end)) (then (return (i32.const 1))))
    (global.set $free (i32.const 4096))
    (drop (call $get_buffer
      (i32.const 0) (i32.const 0) (local.get $size) (i32.const 0) (i32.const 4)))
    (local.set $model
      (call $find_model (i32.load (i32.const 0)) (i32.load (i32.const 4))))
    (if (local.get $model) (then
      (drop (call $add_header (i32.const 0) (i32.const 16) (i32.const 13)
        (local.get $model) (call $length (local.get $model))))))
    (i32.const 0))
"#;

const FILTER_IMPORTS: &str = r#"
  (import "env" "proxy_get_buffer_bytes"
    (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_add_header_map_value"
    (func $add_header (param i32 i32 i32 i32 i32) (result i32)))
"#;

/// The interface that vllm-router 0.1.17 offers a middleware.
const MIDDLEWARE_WIT: &str = "
package vllm:router-middleware@0.1.0;
interface types {
  record header { name: string, value: list<u8> }
  record request {
    method: string, path: string, query: string,
    headers: list<header>, body: list<u8>, request-id: string,
  }
  record modify-action {
    headers-set: list<header>, headers-add: list<header>,
    headers-remove: list<string>, body-replace: option<list<u8>>,
  }
  variant action { continue, reject(u16), modify(modify-action) }
}
interface on-request {
  use types.{request, action};
  handle: func(req: request) -> action;
}
world middleware { export on-request; }
";

/// An `action` of 40 bytes: the variant `modify` with a list of one header, of 16 bytes.
const MIDDLEWARE: &str = r#"
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (call $take (local.get 3)))
  (func (export "vllm:router-middleware/on-request@0.1.0#handle")
    (param i32 i32 i32 i32 i32 i32 i32 i32) (param $body i32) (param $size i32) (param i32 i32)
    (result i32)
    (local $model i32) (local $action i32) (local $header i32)
    (local.set $action (call $take (i32.const 40)))
    (memory.fill (local.get $action) (i32.const 0) (i32.const 40))
    (local.set $model (call $find_model (local.get $body) (local.get $size)))
    (if (i32.eqz (local.get $model)) (then (return (local.get $action))))
    (local.set $header (call $take (i32.const 16)))
    (i32.store (local.get $header) (i32.const 16))
    (i32.store offset=4 (local.get $header) (i32.const 13))
    (i32.store offset=8 (local.get $header) (local.get $model))
    (i32.store offset=12 (local.get $header) (call $length (local.get $model)))
    (i32.store8 (local.get $action) (i32.const 2))
    (i32.store offset=4 (local.get $action) (local.get $header))
    (i32.store offset=8 (local.get $action) (i32.const 1))
    (local.get $action))
"#;

/// Writes the filter for Envoy.
pub fn write_filter(folder: &Path) -> Fallible<PathBuf> {
    let module = wat::parse_str(format!("(module {FILTER_IMPORTS} {HELPERS} {FILTER})"))?;
    let file = folder.join("envoy-filter.wasm");
    std::fs::write(&file, module)?;
    Ok(file)
}

/// Writes the middleware for vllm-router, a component.
pub fn write_middleware(folder: &Path) -> Fallible<PathBuf> {
    let mut module = wat::parse_str(format!("(module {HELPERS} {MIDDLEWARE})"))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_str("router-middleware.wit", MIDDLEWARE_WIT)?;
    let world = resolve.select_world(&[package], Some("middleware"))?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let component = ComponentEncoder::default().module(&module)?.encode()?;
    let file = folder.join("vllm-middleware.wasm");
    std::fs::write(&file, component)?;
    Ok(file)
}
