//! Ceilings of the ratchets: each figure and list only shrinks.
//!
//! Not rules without exception, which are the tables in `tests/tidy.rs`.

/// Modules whose largest cycle of files is over two: (module, files). The numbers only go down.
pub const FILE_CYCLES: &[(&str, usize)] = &[];

/// `mod.rs` files with more than docs, declarations and re-exports. The list only gets shorter.
pub const MOD_FILES_WITH_CODE: &[&str] = &[];

/// Words that make a reader look back for what they stand for, at the beginning of a doc sentence.
pub const PRONOUN_OPENINGS: &[&str] = &[
    "it",
    "they",
    "what",
    "who",
    "whoever",
    "whom",
    "whose",
    "of",
    "that",
    "nobody",
    "somebody",
    "this",
    "these",
    "those",
    "there",
    "he",
    "she",
    "which",
    "whether",
    "everything",
    "nothing",
    "everybody",
    "one",
];

/// Percent of the doc sentences that may begin so.
pub const PRONOUN_PERCENT_MAX: f64 = 0.5;

/// Doc sentences of more than 30 words there may be.
pub const LONG_SENTENCES_MAX: usize = 0;

/// Percent of a package's type names that may be a participle, particle or verb.
pub const PARTICIPLE_PERCENT_MAX: f64 = 1.0;

/// Irregular ones; regular participles are found by their `-ed`.
pub const PARTICIPLES: &[&str] = &[
    "Again", "Asleep", "Away", "Before", "Begun", "Bound", "Broken", "Built", "Chosen", "Cut",
    "Done", "Found", "Given", "Going", "Gone", "Got", "Heard", "Held", "Here", "Kept", "Known",
    "Left", "Lent", "Lost", "Made", "Met", "Overrun", "Paid", "Past", "Put", "Read", "Said",
    "Seek", "Seen", "Sent", "Shown", "Spent", "Standing", "Taken", "Then", "There", "Told",
    "Wants", "Written",
];

/// Names that every package may use for several types.
pub const TYPES_THAT_REPEAT: &[&str] = &["Config", "Error", "Metrics"];

/// Other type names used for more than one type: (package, name). The list only gets shorter.
pub const REPEATED_TYPES: &[(&str, &str)] = &[];

/// Words that no defined name contains; docs/glossary.md has the terms to use.
pub const BANNED_WORDS: &[&str] = &[
    "told", "tell", "tells", "said", "say", "says", "heard", "hear", "hears", "begun", "away",
    "going", "whom", "somebody", "nobody", "journey", "trip", "visit", "parcel", "story",
    "stories", "bell", "lot", "dice",
];

/// Banned words that a test's name may not contain in its sentence either.
pub const BANNED_IN_SENTENCES: &[&str] = &["journey", "parcel", "story", "stories", "bell", "dice"];

/// Names of foreign interfaces that contain such a word all the same.
pub const BANNED_NAMES_ALLOWED: &[&str] = &[
    "visit_borrowed_str",
    "visit_f64",
    "visit_map",
    "visit_seq",
    "visit_str",
    "visit_u64",
    "round_trip",
];

/// Names with banned words there may be: a local of the tests of `core::routing::breaker`.
pub const BANNED_NAMES_MAX: usize = 0;

/// Public items without a use there may be.
pub const UNUSED_ITEMS_MAX: usize = 0;

/// Processes of models: held by their tests until the driver of models uses them.
///
/// Permits that outlive their holder, and batches: held by their property tests until an API has them.
/// Permits that outlive their holder, batches, and the pool of models: held by their property tests until an API has
/// them.
/// Permits that outlive their holder, batches, and changes of a demand: held by their tests until an API has them.
pub const UNUSED_ITEMS_ALLOWED: &[&str] = &[
    "detach",
    "renew",
    "GROUP_WINDOW",
    "next_step",
    "record_expired",
    "confirm",
    "AFFINITY_STREAK_MAX",
    "own_group",
    "end_by_force",
    "follow",
    "expand_command",
    "adopt",
    "port_ownership",
    "PORT_TRIES_MAX",
    "is_address_in_use",
    "probe_pause",
    "set_config",
    "set_devices",
    "slot_event",
    "adopt",
    "slot_state",
    "slot_states",
    "choose_lru",
    "next_deadline",
    "begin_wake",
    "set_in_flight",
    "InstanceReport",
    "SetupReport",
    "log_tail",
    "has_process",
    "record_arrival",
    "time_out",
    "clear_memory",
];

/// Types between the modules of the request path that docs/glossary.md may lack.
pub const GLOSSARY_MISSING_MAX: usize = 0;
