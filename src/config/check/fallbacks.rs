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
    let mut climbers: Vec<FallbackModel<'_>> = models
        .iter()
        .map(|model| FallbackModel {
            id: model.text_of("id").unwrap_or_default(),
            task: model.text_of("task"),
            candidates: Vec::new(),
        })
        .collect();
    for (at, model) in models.iter().enumerate() {
        let ladder = model.list("ladder");
        if let Some(pin) = model.key("pin_primary")
            && pin.node.is_true()
            && ladder.is_empty()
        {
            warnings.add(pin.problem("without a `ladder` a model is waited for anyway"));
        }
        for rung in &ladder {
            if let Some(found) = check_candidate(rung, at, &climbers, names, problems) {
                climbers[at].candidates.push(found);
            }
        }
    }
    for (at, model) in models.iter().enumerate() {
        for rung in model.list("ladder") {
            check_cycle(&rung, at, &climbers, problems);
        }
    }
}

/// The position of the model that `rung` names, when that model is fit as a candidate.
fn check_candidate(
    rung: &Cursor<'_>,
    at: usize,
    climbers: &[FallbackModel<'_>],
    names: &ModelNames,
    problems: &mut Problems,
) -> Option<usize> {
    let text = rung.text()?;
    let own = &climbers[at];
    let Some(found) = climbers.iter().position(|other| other.id == text) else {
        problems.add(rung.problem(unknown(text, climbers, names)));
        return None;
    };
    let other = &climbers[found];
    let fault = if found == at {
        "a model is not its own fallback: remove it".to_owned()
    } else if own.candidates.contains(&found) {
        format!("{text:?} stands on this ladder already: remove one of them")
    } else if let (Some(task), Some(wanted)) = (other.task, own.task)
        && task != wanted
    {
        format!("{text:?} does {task} and this model {wanted}: a ladder is of one task")
    } else {
        return Some(found);
    };
    problems.add(rung.problem(fault));
    None
}

fn unknown(text: &str, climbers: &[FallbackModel<'_>], names: &ModelNames) -> String {
    if let Some(id) = names.id_of_alias(text) {
        return format!("{text:?} is an alias: write the model's id, {id:?}");
    }
    match nearest(text, climbers.iter().map(|other| other.id)) {
        Some(near) => format!("no model is called {text:?}: did you mean {near:?}?"),
        None => format!("no model is called {text:?}: add it under `models`, or correct the name"),
    }
}

/// Two models that fall back to each other would trade their overload. In a circle only the
/// candidates that lead up the file are named.
fn check_cycle(
    rung: &Cursor<'_>,
    at: usize,
    climbers: &[FallbackModel<'_>],
    problems: &mut Problems,
) {
    let found = |&other: &usize| rung.text() == Some(climbers[other].id) && other < at;
    let Some(&other) = climbers[at].candidates.iter().find(|other| found(other)) else {
        return;
    };
    if leads_to(other, at, climbers) {
        let (own, other) = (climbers[at].id, climbers[other].id);
        problems.add(rung.problem(format!(
            "a circle: the ladder of {other:?} leads to {own:?}, and this one back: remove one of them"
        )));
    }
}

/// Returns true when fallbacks lead from one model to another. Each model is looked at once.
fn leads_to(from: usize, to: usize, climbers: &[FallbackModel<'_>]) -> bool {
    let mut seen = vec![false; climbers.len()];
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            next.extend(&climbers[at].candidates);
        }
    }
    false
}
