//! Billing plugins of a few lines of text, so that tests of loading need no toolchain for guests.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// A component of the world `billing-formula` for which everything costs `neurons`.
pub fn flat_price(neurons: f64) -> Vec<u8> {
    // `configure` answers ok, which is zeros; `price` the result at 1024.
    billing(neurons, "(i32.const 16)", "(i32.const 1024)")
}

/// A billing component of that price that compiles slowly: a module of `functions` functions is added.
pub fn slow_to_compile(neurons: f64, functions: usize) -> Vec<u8> {
    // (param i64 i64) (result i64): 40 times $0 = ($0 * $1) ^ rotl($0, $1), then $0.
    let step = [
        0x20, 0, 0x20, 1, 0x7e, 0x20, 0, 0x20, 1, 0x89, 0x85, 0x21, 0,
    ];
    let body = [&[0][..], &step.repeat(40), &[0x20, 0, 0x0b]].concat();
    let body = [leb(body.len()), body].concat();
    let code = [leb(functions), body.repeat(functions)].concat();
    let declared = [leb(functions), vec![0; functions]].concat();
    let module = [
        &b"\0asm\x01\0\0\0"[..],
        &section(1, &[1, 0x60, 2, 0x7e, 0x7e, 1, 0x7e]),
        &section(3, &declared),
        &section(10, &code),
    ]
    .concat();
    [flat_price(neurons), section(1, &module)].concat()
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &leb(content.len()), content].concat()
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A billing component that traps on every price.
pub fn trapping_price() -> Vec<u8> {
    billing(0.0, "(i32.const 16)", "unreachable")
}

/// A billing component that refuses its settings: a list with one problem, path and message empty.
pub fn refusing_settings() -> Vec<u8> {
    billing(0.0, "(i32.const 2048)", "unreachable")
}

/// Answers are results in memory: at 1024 a charge (ok, total, base, no lines, nothing visible), at
/// 2048 an error with one problem. Arguments are not read, so their memory is free at once.
fn billing(neurons: f64, configure: &str, price: &str) -> Vec<u8> {
    let bytes: String = neurons
        .to_le_bytes()
        .iter()
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let module = wat::parse_str(format!(
        r#"(module
            (memory (export "memory") 8)
            (global $free (mut i32) (i32.const 4096))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                (global.set $free
                    (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                (global.get $free)
                (global.set $free (i32.add (global.get $free) (local.get 3))))
            (func (export "infergate:plugin/lifecycle@1.1.0#configure")
                (param i32 i32) (result i32)
                {configure})
            (func (export "infergate:plugin/billing@1.1.0#price")
                (param f64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i64) (result i32)
                (global.set $free (i32.const 4096))
                {price})
            (data (i32.const 1032) "{bytes}{bytes}")
            (data (i32.const 2048) "\01\00\00\00\20\08\00\00\01\00\00\00")
            (data (i32.const 2080) "\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00"))"#
    ));
    let mut module = module.unwrap();
    let mut resolve = Resolve::default();
    let wit = concat!(env!("CARGO_MANIFEST_DIR"), "/wit");
    resolve.push_dir(format!("{wit}/host")).unwrap();
    let (package, _) = resolve.push_dir(format!("{wit}/plugin")).unwrap();
    let world = resolve
        .select_world(&[package], Some("billing-formula"))
        .unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    let encoder = ComponentEncoder::default().module(&module).unwrap();
    encoder.validate(true).encode().unwrap()
}
