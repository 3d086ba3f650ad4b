//! The checks themselves under test: a small tidy repository, and one offence planted at a time.
//!
//! A check that cannot turn red is no check.

use std::collections::BTreeMap;

use crate::checks::offences;
use crate::lengths::lengths;
use crate::tokens::{Token, tokens};
use crate::tree::{Source, Tree};
use crate::{FUNCTION_LINES_MAX, UNFINISHED};

const MANIFEST: &str =
    "[lib]\npath = \"src/lib.rs\"\n[[bin]]\nname = \"x\"\npath = \"src/main.rs\"\n";
const CORE_MANIFEST: &str = "[lib]\npath = \"lib.rs\"\n[dependencies]\nbytes = \"1\"\n";

/// A tidy repository, with `planted` files put in or replaced.
pub fn repository_with(planted: &[(&str, &str)]) -> Vec<Source> {
    let mut files = BTreeMap::from([
        ("Cargo.toml", MANIFEST),
        ("src/core/Cargo.toml", CORE_MANIFEST),
        (
            "src/lib.rs",
            "//! Map.\npub mod admin;\npub mod app;\npub mod telemetry;\n",
        ),
        (
            "src/main.rs",
            "//! Main.\nfn main() { infergate::app::run() }\n",
        ),
        (
            "src/app.rs",
            "//! App.\nuse crate::{admin::Admin, telemetry};\npub fn run() {}\n",
        ),
        (
            "src/admin/mod.rs",
            "//! Admin.\nuse crate::telemetry::Clock;\npub struct Admin(Clock);\n",
        ),
        (
            "src/telemetry/mod.rs",
            "//! Telemetry.\nmod sink;\nuse infergate_core::Millis;\n",
        ),
        ("src/telemetry/sink.rs", "//! Sink.\nuse super::Clock;\n"),
        (
            "src/core/lib.rs",
            "//! Core.\npub mod model;\npub mod time;\npub use time::{Millis, Day};\n",
        ),
        (
            "src/core/time.rs",
            "//! Time.\npub struct Millis(pub u64);\n",
        ),
        ("src/core/model/mod.rs", "//! Model.\nuse crate::Millis;\n"),
    ]);
    files.extend(planted.iter().copied());
    files
        .into_iter()
        .map(|(path, text)| Source {
            path: path.to_owned(),
            text: text.to_owned(),
        })
        .collect()
}

/// Plants files and wants exactly the offences that hold `expected`, in any order.
#[track_caller]
fn assert_red(planted: &[(&str, &str)], expected: &[&str]) {
    let found = offences(&repository_with(planted));
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for text in expected {
        assert!(
            found.iter().any(|offence| offence.contains(text)),
            "no `{text}` in {found:#?}"
        );
    }
}

#[test]
fn a_tidy_repository_is_green() {
    assert_red(&[], &[]);
}

#[test]
fn an_operating_system_below_the_tasks_turns_it_red() {
    let manifest = "[lib]\npath = \"lib.rs\"\n[dependencies]\nserde = \"1\"\nbytes = \"1\"\n";
    let lib = "//! Tasks.\nmod json;\nmod task;\n";
    assert_red(
        &[
            ("src/tasks/Cargo.toml", manifest),
            ("src/tasks/lib.rs", lib),
            ("src/tasks/json.rs", "//! JSON.\nuse crate::task::Task;\n"),
            ("src/tasks/task.rs", "//! Task.\npub struct Task;\n"),
        ],
        &[
            "src/tasks/Cargo.toml: may not depend on `bytes`",
            "src/tasks/lib.rs: is not `no_std`",
            "tasks module `json` may not import `task`",
        ],
    );
}

#[test]
fn an_import_cycle_turns_it_red() {
    let telemetry = "//! Telemetry.\nmod sink;\nuse crate::admin::Admin;\n";
    assert_red(
        &[("src/telemetry/mod.rs", telemetry)],
        &[
            "`telemetry` may not import `admin`",
            "in a cycle: admin → telemetry → admin",
        ],
    );
}

#[test]
fn an_import_hidden_in_a_brace_list_or_behind_super_is_found() {
    let braces = "//! Telemetry.\nmod sink;\nuse crate::{telemetry::{a, b}, app::run};\n";
    assert_red(
        &[("src/telemetry/mod.rs", braces)],
        &[
            "src/telemetry/mod.rs:3: shell module `telemetry` may not import `app`",
            "in a cycle",
        ],
    );
    let supers = "//! Sink.\nfn f() { super::super::app::run() }\n";
    assert_red(
        &[("src/telemetry/sink.rs", supers)],
        &["`telemetry` may not import `app`", "in a cycle"],
    );
}

#[test]
fn a_module_that_is_not_in_the_table_turns_it_red() {
    let lib = "//! Map.\npub mod admin;\npub mod app;\npub mod telemetry;\nmod attic;\n";
    assert_red(
        &[
            ("src/lib.rs", lib),
            ("src/attic.rs", "//! Attic.\nuse crate::telemetry::Clock;\n"),
        ],
        &["`attic` may not import `telemetry`"],
    );
}

#[test]
fn a_core_that_names_tokio_a_clock_or_a_socket_turns_it_red() {
    let forbidden = "//! Time.\nuse std::net::TcpStream;\nuse tokio::sync::Mutex;\n\
                     fn f() { std::time::Instant::now(); }\nuse std::{fmt, fs::File};\n";
    assert_red(
        &[("src/core/time.rs", forbidden)],
        &[
            "no `std::net`",
            "no `tokio`",
            "no `Instant`",
            "no `std::fs`",
        ],
    );
    let manifest = format!("{CORE_MANIFEST}tokio = \"1\"\n");
    assert_red(
        &[("src/core/Cargo.toml", &manifest)],
        &["may not depend on `tokio`"],
    );
}

#[test]
fn the_core_may_speak_of_tokio_in_comments_strings_and_tests() {
    let fine = "//! Time, without tokio.\nconst A: &str = \"tokio\"; /* Instant */\n\
                #[cfg(test)]\nmod tests {\n use std::time::Instant;\n}\n";
    assert_red(&[("src/core/time.rs", fine)], &[]);
}

#[test]
fn core_modules_of_one_layer_do_not_see_each_other_even_through_the_root() {
    let lib = "//! Core.\npub mod id;\npub mod model;\npub mod time;\npub use model::Spec;\n";
    assert_red(
        &[
            ("src/core/lib.rs", lib),
            ("src/core/id.rs", "//! Id.\nuse crate::Spec;\n"),
        ],
        &[
            "core module `id` may not import `model`",
            "core module `model` may not import `Millis`",
        ],
    );
}

#[test]
fn a_module_without_a_header_turns_it_red() {
    assert_red(
        &[("src/telemetry/sink.rs", "use super::Clock;\n")],
        &["src/telemetry/sink.rs: does not begin with `//!`"],
    );
}

#[test]
fn a_file_that_no_mod_names_turns_it_red() {
    assert_red(
        &[("src/telemetry/old.rs", "//! Old.\n")],
        &["src/telemetry/old.rs: no `mod` and no manifest names this file"],
    );
    let sink =
        "//! Sink.\n#[cfg(test)]\nmod tests;\n#[path = \"other.rs\"]\npub(crate) mod named;\n";
    assert_red(
        &[
            ("src/telemetry/sink.rs", sink),
            (
                "src/telemetry/sink/tests.rs",
                "//! Tests.\nfn f() { tokio::spawn(x) }\n",
            ),
            ("src/telemetry/other.rs", "//! Other.\n"),
        ],
        &[],
    );
}

#[test]
fn a_foreign_library_outside_its_module_turns_it_red() {
    let telemetry = "//! T, for pingora_core.\nmod sink;\nuse pingora_core::apps;\n\
                     const NOISY: &str = \"pingora_core\";\n";
    assert_red(
        &[("src/telemetry/mod.rs", telemetry)],
        &["`pingora_core` may be named in src/"],
    );
}

#[test]
fn a_task_started_outside_app_turns_it_red() {
    let admin = "//! Admin.\nfn f() { tokio::spawn(async {}); }\n";
    assert_red(
        &[("src/admin/mod.rs", admin)],
        &["src/admin/mod.rs:2: `spawn(`"],
    );
}

#[test]
fn unsafe_code_and_leave_for_it_turn_it_red_in_tests_too() {
    let app = "//! App.\npub fn run() {}\n#[cfg(test)]\nmod tests { fn f() { unsafe { g() } } }\n";
    assert_red(
        &[("src/app.rs", app)],
        &["src/app.rs:4: `unsafe` may stand in src/plugin/runtime/code_cache.rs"],
    );
    let leave =
        "//! App.\n#![allow(unsafe_code)]\npub fn run() {}\n// unsafe in a comment is none\n";
    assert_red(
        &[("src/app.rs", leave)],
        &["src/app.rs:2: `unsafe_code` may stand in"],
    );
}

#[test]
fn a_step_that_names_the_event_turns_it_red_and_a_test_that_does_is_fine() {
    let step = "//! App.\nuse crate::telemetry::InferenceEvent;\npub fn run() {}\n";
    assert_red(
        &[("src/app.rs", step)],
        &["src/app.rs:2: `InferenceEvent` may be named in src/telemetry"],
    );
    let test =
        "//! App.\npub fn run() {}\n#[cfg(test)]\nmod tests { fn f(e: InferenceEvent) {} }\n";
    assert_red(&[("src/app.rs", test)], &[]);
}

#[test]
fn unfinished_work_turns_it_red() {
    for mark in UNFINISHED {
        let text = format!("//! App.\npub fn run() {{}}\n// {mark}\n");
        assert_red(&[("src/app.rs", &text)], &["finish it or leave it out"]);
    }
}

#[test]
fn a_function_that_grows_too_long_turns_it_red_and_so_does_a_stale_exception() {
    let body = "    let x = \"}\";\n".repeat(FUNCTION_LINES_MAX);
    let text = format!("//! App.\npub fn run() {{\n{body}}}\n");
    assert_red(
        &[("src/app.rs", &text)],
        &["src/app.rs:2: `run` has 72 lines"],
    );

    let tree = Tree::of(&repository_with(&[("src/app.rs", &text)]));
    let judged = |long: &[(&str, &str, usize)]| {
        let mut found = Vec::new();
        lengths(&tree, long, &mut found);
        found.len()
    };
    assert_eq!(judged(&[("src/app.rs", "run", 72)]), 0);
    assert_eq!(judged(&[("src/app.rs", "run", 71)]), 1);
    assert_eq!(
        judged(&[("src/app.rs", "run", 72), ("src/app.rs", "gone", 90)]),
        1
    );
}

#[test]
fn tokens_are_not_fooled_by_quotes_lifetimes_and_raw_strings() {
    let text = "fn f<'a>(c: char) { let q = '\"'; let e = '\\''; r#\"a \" fn \"#; b\"\\\"\"; 'é'; r#type }";
    let words: Vec<_> = tokens(text)
        .into_iter()
        .filter(Token::is_word)
        .map(|t| t.text)
        .collect();
    let plain = [
        "fn",
        "f",
        "a",
        "c",
        "char",
        "let",
        "q",
        "let",
        "e",
        "r#\"a \" fn \"#",
    ];
    assert_eq!(words[..10], plain);
    assert_eq!(words.last().map(String::as_str), Some("type"));
    assert!(tokens("/* a /* b */ c */ // d").is_empty());
}
