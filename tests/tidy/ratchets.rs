//! The ratchets together, and their figures.
//!
//! Not the rules of `checks.rs`: a ratchet starts at the figure of its day and only shrinks.

use crate::ceilings::{
    BANNED_NAMES_MAX, FILE_CYCLES, LONG_SENTENCES_MAX, MOD_FILES_WITH_CODE, PARTICIPLE_PERCENT_MAX,
    PRONOUN_PERCENT_MAX, REPEATED_TYPES, UNUSED_ITEMS_MAX,
};
use crate::dead_items::{dead, dead_items};
use crate::file_cycles::{file_cycles, largest_cycles};
use crate::mod_files::{mod_files, with_code};
use crate::names::{TypeNames, banned, banned_words, type_names, types};
use crate::prose::{Prose, long_sentences, pronouns};
use crate::tree::{Source, Tree};

/// Adds an offence for each figure over its ceiling.
pub fn ratchets(tree: &Tree, sources: &[Source], plugins: &[Source], found: &mut Vec<String>) {
    file_cycles(tree, FILE_CYCLES, found);
    mod_files(tree, MOD_FILES_WITH_CODE, found);
    pronouns(sources, PRONOUN_PERCENT_MAX, found);
    long_sentences(sources, LONG_SENTENCES_MAX, found);
    type_names(tree, PARTICIPLE_PERCENT_MAX, REPEATED_TYPES, found);
    banned_words(tree, BANNED_NAMES_MAX, found);
    dead_items(tree, plugins, UNUSED_ITEMS_MAX, found);
}

/// Prints the figures of all ratchets.
pub fn print_figures(tree: &Tree, sources: &[Source], plugins: &[Source]) {
    let prose = Prose::of(sources);
    println!(
        "doc sentences {}: {:.1} % open with a pronoun, {} over 30 words",
        prose.sentences,
        prose.pronoun_percent(),
        prose.long
    );
    for (package, definitions) in types(tree) {
        let types = TypeNames::of(&definitions);
        println!(
            "{package}: {} type names, {:.1} % participles {:?}, {:.1} % repeated {:?}",
            types.all,
            types.participle_percent(),
            types.participles,
            types.repeated_percent(),
            types.repeated
        );
    }
    for (module, cycle) in largest_cycles(tree) {
        println!("{module}: cycle of {} files: {cycle:?}", cycle.len());
    }
    println!("mod.rs with code: {:#?}", with_code(tree));
    println!("names with banned words: {:#?}", banned(tree));
    println!("public items without a use: {:#?}", dead(tree, plugins));
}
