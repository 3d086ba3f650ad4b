//! The ratchets of structure and language under test: one offence planted at a time.

use crate::dead_items::dead_items;
use crate::file_cycles::file_cycles;
use crate::glossary::glossary;
use crate::layers::inner_layers;
use crate::mod_files::mod_files;
use crate::names::{banned_words, type_names};
use crate::planted::repository_with;
use crate::prose::{long_sentences, pronouns};
use crate::tree::{Source, Tree};

/// Runs one check on the tidy repository with `planted` files; returns its offences.
fn offences_of(
    planted: &[(&str, &str)],
    check: impl Fn(&Tree, &[Source], &mut Vec<String>),
) -> Vec<String> {
    let sources = repository_with(planted);
    let mut found = Vec::new();
    check(&Tree::of(&sources), &sources, &mut found);
    found
}

#[track_caller]
fn assert_one(found: &[String], expected: &str) {
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains(expected), "no `{expected}` in {found:#?}");
}

#[test]
fn a_folder_that_imports_from_a_layer_above_it_turns_it_red() {
    const LAYERS: &[(&str, &[&str])] = &[("src/telemetry", &["low", "high"])];
    let check = |tree: &Tree, _: &[Source], found: &mut Vec<String>| {
        inner_layers(tree, LAYERS, found);
    };
    let declarations = "//! Telemetry.\nmod high;\nmod low;\nmod value;\npub use high::High;\n";
    let tidy = [
        ("src/telemetry/mod.rs", declarations),
        ("src/telemetry/value.rs", "//! Value.\npub struct Value;\n"),
        (
            "src/telemetry/low/mod.rs",
            "//! Low.\nuse crate::telemetry::value::Value;\npub struct Low(Value);\n",
        ),
        (
            "src/telemetry/high/mod.rs",
            "//! High.\nuse crate::telemetry::low::Low;\npub struct High(Low);\n",
        ),
    ];
    assert_eq!(offences_of(&tidy, check), Vec::<String>::new());
    let upwards = "//! Low.\nuse crate::telemetry::High;\npub struct Low;\n";
    let beside = "//! Value.\nuse super::low::Low;\npub struct Value;\n";
    let planted = [
        tidy[0],
        tidy[1],
        ("src/telemetry/low/mod.rs", upwards),
        tidy[3],
    ];
    assert_one(
        &offences_of(&planted, check),
        "src/telemetry/low/mod.rs: imports src/telemetry/high/mod.rs, a layer above its own",
    );
    let planted = [
        tidy[0],
        ("src/telemetry/value.rs", beside),
        tidy[2],
        tidy[3],
    ];
    assert_one(
        &offences_of(&planted, check),
        "src/telemetry/value.rs: imports src/telemetry/low/mod.rs",
    );
}

#[test]
fn three_files_that_import_each_other_turn_it_red_and_two_do_not() {
    let check = |tree: &Tree, _: &[Source], found: &mut Vec<String>| file_cycles(tree, &[], found);
    let declarations = "//! Telemetry.\nmod log;\nmod sink;\nmod queue;\npub use log::Log;\n";
    let sink = "//! Sink.\nuse super::Log;\npub struct Sink;\n";
    let two = [
        ("src/telemetry/mod.rs", declarations),
        ("src/telemetry/sink.rs", sink),
        (
            "src/telemetry/log.rs",
            "//! Log.\nuse crate::telemetry::{sink::{self, Sink}};\npub struct Log;\n",
        ),
        ("src/telemetry/queue.rs", "//! Queue.\npub struct Queue;\n"),
    ];
    assert_eq!(offences_of(&two, check), Vec::<String>::new());
    let three = [
        two[0],
        two[1],
        (
            "src/telemetry/log.rs",
            "//! Log.\npub struct Log(super::queue::Queue);\n",
        ),
        (
            "src/telemetry/queue.rs",
            "//! Queue.\nuse super::sink::*;\npub struct Queue;\n",
        ),
    ];
    assert_one(
        &offences_of(&three, check),
        "module `telemetry`: 3 files import each other in a cycle, over 2: src/telemetry/log.rs",
    );
}

#[test]
fn code_in_a_mod_file_turns_it_red() {
    let check = |tree: &Tree, _: &[Source], found: &mut Vec<String>| {
        mod_files(tree, &["src/admin/mod.rs"], found);
    };
    let fine = "//! Telemetry.\n#[cfg(test)]\nmod tests { fn f() {} }\nmod sink;\n\
                pub use sink::{Sink, *};\nuse crate::x;\n";
    let planted = [
        ("src/telemetry/mod.rs", fine),
        ("src/core/model/mod.rs", fine),
    ];
    assert_eq!(offences_of(&planted, check), Vec::<String>::new());
    let code = format!("{fine}pub fn helper() {{}}\n");
    let planted = [("src/telemetry/mod.rs", code.as_str())];
    assert_one(
        &offences_of(&planted, check),
        "src/telemetry/mod.rs: holds code",
    );
}

#[test]
fn doc_sentences_that_open_with_pronouns_turn_it_red() {
    let check =
        |_: &Tree, sources: &[Source], found: &mut Vec<String>| pronouns(sources, 10.0, found);
    let fine = "//! App. A sentence.\n//! ```\n//! It is code.\n//! ```\n// What is no doc?\npub fn run() {}\n";
    assert_eq!(
        offences_of(&[("src/app.rs", fine)], check),
        Vec::<String>::new()
    );
    let opened = "//! App. What it does.\n//!\n//! - `It` is listed.\npub fn run() {}\n";
    assert_one(&offences_of(&[("src/app.rs", opened)], check), "2 of ");
}

#[test]
fn a_doc_sentence_of_31_words_turns_it_red() {
    let check =
        |_: &Tree, sources: &[Source], found: &mut Vec<String>| long_sentences(sources, 0, found);
    let of_words = |words: usize| format!("//! App{}.\n", " word".repeat(words - 1));
    let fine = of_words(30);
    assert_eq!(
        offences_of(&[("src/app.rs", &fine)], check),
        Vec::<String>::new()
    );
    let long = of_words(31);
    assert_one(
        &offences_of(&[("src/app.rs", &long)], check),
        "1 doc sentences",
    );
}

#[test]
fn a_participle_and_a_repeated_name_of_a_type_turn_it_red() {
    let check = |tree: &Tree, _: &[Source], found: &mut Vec<String>| {
        type_names(tree, 20.0, &[("src", "Known")], found);
    };
    let app = "//! App.\npub fn run() {}\nstruct Known;\nstruct Error;\nenum Placed {}\n\
               impl X for Y { type Output = u8; }\nenum Told {}\n";
    let sink = "//! Sink.\nstruct Error;\nstruct Known;\ntype Placed = u8;\nstruct Feed;\nstruct A;\n\
                impl X for Z { type Output = u8; }\n";
    let found = offences_of(
        &[("src/app.rs", app), ("src/telemetry/sink.rs", sink)],
        check,
    );
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].contains("participles, over 20 %: Known, Placed, Told"),
        "{found:#?}"
    );
    assert!(
        found[1].contains("`Placed` is used twice: src/app.rs, src/telemetry/sink.rs"),
        "{found:#?}"
    );
}

#[test]
fn a_banned_word_in_a_defined_name_turns_it_red() {
    let check = |tree: &Tree, _: &[Source], found: &mut Vec<String>| banned_words(tree, 0, found);
    let fine = "//! App. Told.\npub fn run() { x.visit_map(told()); slot_of(Told) }\n\
                #[cfg(test)]\nmod tests { fn a_client_is_told_so() {} }\n";
    assert_eq!(
        offences_of(&[("src/app.rs", fine)], check),
        Vec::<String>::new()
    );
    let planted = "//! App.\npub fn run(told_at: u8) { let bell = 1; }\nfn record_what_nodes_told() {}\nstruct Parcel { lot: u8 }\n\
         #[cfg(test)]\nmod tests { fn a_story_ends_here() { let dice = 1; } }\n";
    let found = offences_of(&[("src/app.rs", planted)], check);
    assert_one(&found, "7 names with banned words, over 0");
    assert!(found[0].contains("src/app.rs: `Parcel`"), "{found:#?}");
    assert!(
        found[0].contains("src/app.rs: `a_story_ends_here`"),
        "{found:#?}"
    );
}

#[test]
fn a_public_item_without_a_use_turns_it_red() {
    let check =
        |tree: &Tree, _: &[Source], found: &mut Vec<String>| dead_items(tree, &[], 0, found);
    let fine = "//! App.\n#[serde(default = \"crate::app::five\")]\nuse crate::admin::Admin;\npub fn run() { used() }\n\
                pub(crate) fn five() {}\npub async fn used() {}\nfn private() {}\n";
    let telemetry = "//! Telemetry.\nmod sink;\npub use infergate_core::Millis;\n";
    let base = [("src/telemetry/mod.rs", telemetry), ("src/app.rs", fine)];
    assert_eq!(offences_of(&base, check), Vec::<String>::new());
    let dead = format!(
        "{fine}#[cfg(test)]\nmod tests {{ fn f() {{ forgotten() }} }}\npub const fn forgotten() {{}}\n"
    );
    let planted = [base[0], ("src/app.rs", dead.as_str())];
    assert_one(&offences_of(&planted, check), "src/app.rs:10: `forgotten`");
}

#[test]
fn a_public_item_of_the_core_that_only_a_test_or_a_reexport_names_turns_it_red() {
    let core = "//! Core.\npub mod model;\npub mod time;\npub use time::{Millis, Span};\n";
    let time = "//! Time.\npub struct Millis(pub u64);\npub struct Span;\n";
    let planted = [
        ("src/core/lib.rs", core),
        ("src/core/time.rs", time),
        (
            "tests/sim/main.rs",
            "//! Simulation.\nuse infergate_core::Span;\n",
        ),
    ];
    let plugin = |text: &str| Source {
        path: "plugins/sdk/src/lib.rs".to_owned(),
        text: text.to_owned(),
    };
    let with = |plugin: Source| {
        move |tree: &Tree, _: &[Source], found: &mut Vec<String>| {
            dead_items(tree, std::slice::from_ref(&plugin), 0, found);
        }
    };
    let found = offences_of(&planted, with(plugin("//! SDK.\n")));
    assert_one(&found, "src/core/time.rs:3: `Span`");
    let used = offences_of(&planted, with(plugin("//! SDK.\ntype Used = Span;\n")));
    assert!(!used.join(" ").contains("Span"), "{used:#?}");
}

#[test]
fn a_type_of_the_request_path_that_the_glossary_lacks_turns_it_red() {
    let peer = "//! Peer.\npub struct PeerClient;\npub struct Inner;\nstruct Use(Inner);\n";
    let app = "//! App.\nuse crate::peer::PeerClient;\npub fn run() {}\n";
    let planted = [
        ("src/lib.rs", "//! Map.\nmod peer;\nmod app;\n"),
        ("src/peer.rs", peer),
        ("src/app.rs", app),
    ];
    let with = |page: &'static str| {
        move |tree: &Tree, _: &[Source], found: &mut Vec<String>| glossary(tree, page, 0, found)
    };
    assert_eq!(
        offences_of(&planted, with("- `PeerClient`: sends.")),
        Vec::<String>::new()
    );
    let lacking = with("- PeerClient: sends. `Inner`");
    assert_one(
        &offences_of(&planted, lacking),
        "1 types are missing, over 0: PeerClient",
    );
}
