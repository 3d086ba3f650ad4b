//! Doc sentences of a file, and how they begin.
//!
//! Not a judge of style: openings that make a reader guess are counted, and long sentences.

use crate::ceilings::PRONOUN_OPENINGS;
use crate::tree::Source;

/// Words of a sentence from which on it counts as long.
const LONG_WORDS: usize = 31;

/// Counts over many files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prose {
    pub sentences: usize,
    pub pronoun_openings: usize,
    pub long: usize,
}

impl Prose {
    pub fn of(sources: &[Source]) -> Prose {
        let mut prose = Prose::default();
        for sentence in sources.iter().flat_map(|source| sentences(&source.text)) {
            let Some(opening) = opening(&sentence) else {
                continue;
            };
            prose.sentences += 1;
            let opening = opening.to_lowercase();
            prose.pronoun_openings += usize::from(PRONOUN_OPENINGS.contains(&opening.as_str()));
            prose.long += usize::from(sentence.split_whitespace().count() >= LONG_WORDS);
        }
        prose
    }

    pub fn pronoun_percent(self) -> f64 {
        percent(self.pronoun_openings, self.sentences)
    }
}

pub fn percent(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Adds an offence when too many doc sentences open with a pronoun or particle.
pub fn pronouns(sources: &[Source], percent_max: f64, found: &mut Vec<String>) {
    let prose = Prose::of(sources);
    if prose.pronoun_percent() > percent_max {
        found.push(format!(
            "{} of {} doc sentences begin with a pronoun or particle, over {percent_max} %: begin \
             with a noun or a verb",
            prose.pronoun_openings, prose.sentences
        ));
    }
}

/// Adds an offence when there are more than `max` doc sentences of over 30 words.
pub fn long_sentences(sources: &[Source], max: usize, found: &mut Vec<String>) {
    let long = Prose::of(sources).long;
    if long > max {
        found.push(format!(
            "{long} doc sentences have {LONG_WORDS} words or more, over {max}: make two of one"
        ));
    }
}

/// The first word, behind brackets and back-ticks.
fn opening(sentence: &str) -> Option<&str> {
    let sentence = sentence.trim_start_matches(['`', '[']);
    let end = sentence
        .find(|c: char| !c.is_ascii_alphabetic() && c != '\'')
        .unwrap_or(sentence.len());
    (end > 0).then(|| &sentence[..end])
}

/// Sentences of the doc comments; code blocks are left out, list items and rows stand alone.
fn sentences(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in text.lines().map(str::trim_start) {
        let Some(doc) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
            paragraphs.push(String::new());
            is_code = false;
            continue;
        };
        let doc = doc.trim();
        if doc.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let numbered = doc.split_once(". ").is_some_and(|(number, _)| {
                !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
            });
            if doc.is_empty() || numbered || doc.starts_with(['-', '*', '|', '#']) {
                paragraphs.push(String::new());
            }
            if let Some(paragraph) = paragraphs.last_mut() {
                paragraph.push(' ');
                paragraph.push_str(doc);
            }
        }
    }
    paragraphs.iter().flat_map(|text| split(text)).collect()
}

/// Splits behind `.`, `!` and `?` with a space after it.
fn split(paragraph: &str) -> Vec<String> {
    let paragraph = paragraph.trim_matches([' ', '-', '*', '#']);
    let mut sentences = Vec::new();
    let mut sentence = String::new();
    for word in paragraph.split_whitespace() {
        sentence.push_str(word);
        sentence.push(' ');
        if word.ends_with(['.', '!', '?']) {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    sentences.push(sentence);
    sentences.retain(|sentence| !sentence.trim().is_empty());
    sentences
}
