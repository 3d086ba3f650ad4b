//! Evil formulas: what each does, and what must be said of it. Tests and `benches/plugin.rs` run them.
//!
//! Only formulas: what a hook may do to the host does not depend on the hook.

use super::guests::Wat;
use super::room::World;

/// Never ends.
pub const LOOP: &str = "(loop $on (br $on)) unreachable";

/// Hostile guest: its behaviour, and the expected failure.
pub struct HostileGuest {
    pub name: &'static str,
    pub wat: Wat,
    pub class: &'static str,
}

fn billing(name: &'static str, class: &'static str, change: impl Fn(Wat) -> Wat) -> HostileGuest {
    HostileGuest {
        name,
        wat: change(Wat::of(World::BillingFormula)),
        class,
    }
}

/// A charge whose total, base and one line's quantity and neurons are written by the row; the line's
/// metric is the caller's own.
fn charge(total: &str, base: &str, line: Option<(&str, &str)>) -> String {
    let mut body = format!(
        "(call $clear) (f64.store (i32.const 1032) (f64.const {total}))
         (f64.store (i32.const 1040) (f64.const {base}))"
    );
    if let Some((quantity, neurons)) = line {
        // A record of 24 bytes: name (address, length), quantity, neurons.
        body += &format!(
            "(i32.store (i32.const 2000) (i32.load (local.get $metrics)))
             (i32.store (i32.const 2004) (i32.load offset=4 (local.get $metrics)))
             (f64.store (i32.const 2008) (f64.const {quantity}))
             (f64.store (i32.const 2016) (f64.const {neurons}))
             (i32.store (i32.const 1048) (i32.const 2000))
             (i32.store (i32.const 1052) (i32.const 1))"
        );
    }
    body + "(i32.const 1024)"
}

/// Evil that shows when a price is asked for.
pub fn rows() -> Vec<HostileGuest> {
    let mut rows = greedy();
    rows.extend(forgers());
    rows.extend(verbose());
    rows.extend(liars());
    rows
}

/// Guests that take time, stack or memory, or crash.
fn greedy() -> Vec<HostileGuest> {
    vec![
        billing("endless loop", "deadline", |w| w.price(LOOP)),
        billing("endless recursion", "trapped", |w| {
            w.price("(call $deep (i32.const 0))")
                .more("(func $deep (param i32) (result i32) (i32.add (call $deep (local.get 0)) (i32.const 1)))")
        }),
        billing("unreachable", "trapped", |w| w.price("unreachable")),
        billing("division by zero", "trapped", |w| {
            w.price("(i32.div_u (i32.const 1) (i32.const 0))")
        }),
        billing("read out of bounds", "trapped", |w| {
            w.price("(i32.load (i32.const -8))")
        }),
        billing("memory bomb that gives up", "memory", |w| {
            w.price("(loop $on (br_if $on (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable")
        }),
        billing("memory bomb that writes", "memory", |w| {
            w.price("(local $old i32) (loop $on
                (local.set $old (memory.grow (i32.const 16)))
                (if (i32.ne (local.get $old) (i32.const -1)) (then
                  (memory.fill (i32.mul (local.get $old) (i32.const 65536)) (i32.const 1) (i32.const 1048576))
                  (br $on)))) unreachable")
        }),
        // One fill is not interrupted: it ends late by what all its memory takes, and no later.
        billing("fills of all its memory", "deadline", |w| {
            w.memory("(memory (export \"memory\") 256)").price(
                "(loop $on (memory.fill (i32.const 8192) (i32.const 1) (i32.const 16769024)) (br $on)) unreachable",
            )
        }),
        billing("table bomb", "memory", |w| {
            w.more("(table $t 1 funcref)").price(
                "(loop $on (br_if $on (i32.ne (table.grow $t (ref.null func) (i32.const 1000)) (i32.const -1)))) unreachable",
            )
        }),
    ]
}

/// Guests that break the canonical ABI, or report a fault of their own.
fn forgers() -> Vec<HostileGuest> {
    let endless_lines = |bytes: u32| {
        format!(
            "(call $clear) (i32.store (i32.const 1048) (i32.const 2000))
             (i32.store (i32.const 1052) (i32.const {bytes})) (i32.const 1024)"
        )
    };
    vec![
        billing("loop in realloc", "deadline", |w| {
            // `configure` is lowered as well: only the third call and those after it loop.
            w.more("(global $n (mut i32) (i32.const 0))").realloc(
                "(global.set $n (i32.add (global.get $n) (i32.const 1)))
                 (if (i32.gt_u (global.get $n) (i32.const 2)) (then (loop $on (br $on))))
                 (global.set $heap (i32.add (global.get $heap) (i32.const 4096)))
                 (i32.sub (global.get $heap) (i32.const 4096))",
            )
        }),
        billing("realloc out of bounds", "invalid", |w| {
            w.more("(global $n (mut i32) (i32.const 0))").realloc(
                "(global.set $n (i32.add (global.get $n) (i32.const 1)))
                 (if (i32.gt_u (global.get $n) (i32.const 2)) (then (return (i32.const -65536))))
                 (global.set $heap (i32.add (global.get $heap) (i32.const 4096)))
                 (i32.sub (global.get $heap) (i32.const 4096))",
            )
        }),
        billing("loop after the answer", "deadline", |w| {
            w.post_price("(loop $on (br $on))")
        }),
        billing("answer out of bounds", "invalid", |w| {
            w.price("(i32.const -16)")
        }),
        billing("list out of bounds", "invalid", move |w| {
            w.price(&endless_lines(0x0fff_ffff))
        }),
        billing("text that is not UTF-8", "invalid", |w| {
            w.more("(data (i32.const 3000) \"\\ff\\fe\")").price(
                "(call $clear) (i32.store8 (i32.const 1024) (i32.const 1))
                 (i32.store8 (i32.const 1032) (i32.const 2))
                 (i32.store (i32.const 1036) (i32.const 3000))
                 (i32.store (i32.const 1040) (i32.const 2)) (i32.const 1024)",
            )
        }),
        billing("a case that the type does not have", "invalid", |w| {
            w.price("(call $clear) (i32.store8 (i32.const 1024) (i32.const 9)) (i32.const 1024)")
        }),
        billing("its own fault", "broken", |w| {
            w.price("(call $clear) (i32.store8 (i32.const 1024) (i32.const 1)) (i32.store8 (i32.const 1032) (i32.const 2)) (i32.const 1024)")
        }),
    ]
}

/// Guests that answer more than they may.
fn verbose() -> Vec<HostileGuest> {
    vec![
        billing("a list of millions over the same bytes", "overrun", |w| {
            // Sixty million names of nothing: 8 bytes each to read, 16 each to keep.
            w.memory("(memory (export \"memory\") 200)").price(
                "(call $clear) (i32.store (i32.const 1056) (i32.const 65536))
                 (i32.store (i32.const 1060) (i32.const 1600000)) (i32.const 1024)",
            )
        }),
        billing("a text of 2 MiB where 1 MiB is allowed", "overrun", |w| {
            w.memory("(memory (export \"memory\") 64)").price(
                "(call $clear) (i32.store8 (i32.const 1024) (i32.const 1))
                 (i32.store8 (i32.const 1032) (i32.const 2))
                 (i32.store (i32.const 1036) (i32.const 65536))
                 (i32.store (i32.const 1040) (i32.const 2097152)) (i32.const 1024)",
            )
        }),
        billing("many texts over the same bytes", "overrun", |w| {
            // Two hundred names of 64 KiB, all the same ones.
            w.memory("(memory (export \"memory\") 64)").price(
                "(local $n i32) (call $clear)
                 (loop $on
                   (i32.store (i32.add (i32.const 2000) (i32.mul (local.get $n) (i32.const 8))) (i32.const 65536))
                   (i32.store (i32.add (i32.const 2004) (i32.mul (local.get $n) (i32.const 8))) (i32.const 65536))
                   (local.set $n (i32.add (local.get $n) (i32.const 1)))
                   (br_if $on (i32.lt_u (local.get $n) (i32.const 200))))
                 (i32.store (i32.const 1056) (i32.const 2000))
                 (i32.store (i32.const 1060) (i32.const 200)) (i32.const 1024)",
            )
        }),
    ]
}

/// Their answers have the right shape and cannot be true.
fn liars() -> Vec<HostileGuest> {
    vec![
        billing("not a number", "invalid", |w| {
            w.price(&charge("nan", "nan", None))
        }),
        billing("an infinite price", "invalid", |w| {
            w.price(&charge("inf", "inf", None))
        }),
        billing("a negative price", "invalid", |w| {
            w.price(&charge("-1", "-1", None))
        }),
        billing("a price beyond the cap", "invalid", |w| {
            w.price(&charge("1e13", "1e13", None))
        }),
        billing("a total that is not the sum", "invalid", |w| {
            w.price(&charge("5", "1", Some(("1", "1"))))
        }),
        billing("a quantity that is not a number", "invalid", |w| {
            w.price(&charge("2", "1", Some(("nan", "1"))))
        }),
    ]
}
