//! Fallbacks of models: each candidate is another model of the same task, and none leads back.
//!
//! Models that are not well-formed themselves are skipped. Found in the order of the file.

use super::models::ModelNames;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::config::structure::nearest;

/// A model with its fallback candidates: positions of models, where they are known.
struct FallbackModel<'a> {
    id: &'a str,
    task: Option<&'a str>,
    candidates: Vec<usize>,
}

pub fn check(
    root: &Cursor<'_>,
    names: &ModelNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let models = root.list("models");
    let mut entries: Vec<FallbackModel<'_>> = models
        .iter()
        .map(|model| FallbackModel {
            id: model.text_of("id").unwrap_or_default(),
            task: model.text_of("task"),
            candidates: Vec::new(),
        })
        .collect();
    for (at, model) in models.iter().enumerate() {
        let fallbacks = model.list("fallbacks");
        if let Some(pin) = model.key("pin_primary")
            && pin.node.is_true()
            && fallbacks.is_empty()
        {
            warnings.add(pin.problem("without `fallbacks` a model is waited for anyway"));
        }
        for candidate in &fallbacks {
            if let Some(found) = check_candidate(candidate, at, &entries, names, problems) {
                entries[at].candidates.push(found);
            }
        }
    }
    for (at, model) in models.iter().enumerate() {
        for candidate in model.list("fallbacks") {
            check_cycle(&candidate, at, &entries, problems);
        }
    }
}

/// The position of the model that `candidate` names, when that model is fit as a candidate.
fn check_candidate(
    candidate: &Cursor<'_>,
    at: usize,
    entries: &[FallbackModel<'_>],
    names: &ModelNames,
    problems: &mut Problems,
) -> Option<usize> {
    let text = candidate.text()?;
    let own = &entries[at];
    let Some(found) = entries.iter().position(|other| other.id == text) else {
        problems.add(candidate.problem(unknown(text, entries, names)));
        return None;
    };
    let other = &entries[found];
    let fault = if found == at {
        "a model is not its own fallback: remove it".to_owned()
    } else if own.candidates.contains(&found) {
        format!("{text:?} is named as a fallback already: remove one of them")
    } else if let (Some(task), Some(wanted)) = (other.task, own.task)
        && task != wanted
    {
        format!(
            "{text:?} does {task} and this model {wanted}: fallbacks have the task of their model"
        )
    } else {
        return Some(found);
    };
    problems.add(candidate.problem(fault));
    None
}

fn unknown(text: &str, entries: &[FallbackModel<'_>], names: &ModelNames) -> String {
    if let Some(id) = names.id_of_alias(text) {
        return format!("{text:?} is an alias: write the model's id, {id:?}");
    }
    match nearest(text, entries.iter().map(|other| other.id)) {
        Some(near) => format!("no model is called {text:?}: did you mean {near:?}?"),
        None => format!("no model is called {text:?}: add it under `models`, or correct the name"),
    }
}

/// Two models that fall back to each other would trade their overload. In a circle only the
/// candidates that lead up the file are named.
fn check_cycle(
    candidate: &Cursor<'_>,
    at: usize,
    entries: &[FallbackModel<'_>],
    problems: &mut Problems,
) {
    let found = |&other: &usize| candidate.text() == Some(entries[other].id) && other < at;
    let Some(&other) = entries[at].candidates.iter().find(|other| found(other)) else {
        return;
    };
    if leads_to(other, at, entries) {
        let (own, other) = (entries[at].id, entries[other].id);
        problems.add(candidate.problem(format!(
            "a circle: the fallbacks of {other:?} lead to {own:?}, and this one leads back: remove one of them"
        )));
    }
}

/// Returns true when fallbacks lead from one model to another. Each model is looked at once.
fn leads_to(from: usize, to: usize, entries: &[FallbackModel<'_>]) -> bool {
    let mut seen = vec![false; entries.len()];
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            next.extend(&entries[at].candidates);
        }
    }
    false
}
