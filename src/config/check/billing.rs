//! `models[].tariff`, `models[].metrics` and what `accounts[].neurons_per_day` counts.
//!
//! Prices are not computed here. The schema states, where it can, that a price is a number and not
//! below
//! 0.

use infergate_core::billing::METRICS_MAX;

use super::plugins::name_fault;
use crate::config::document::{Cursor, NodeData};
use crate::config::problem::Problems;

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let models = root.list("models");
    for model in &models {
        check_metrics(model, "metrics", problems);
        let names_billing = model
            .key("plugins")
            .and_then(|plugins| plugins.key("billing"));
        match (model.key("tariff"), names_billing) {
            (Some(tariff), _) => check_tariff(&tariff, problems, warnings),
            (None, Some(billing)) => warnings.add(billing.problem(format!(
                "never asked: a model without a tariff is not billed, add `{}.tariff`",
                model.path
            ))),
            (None, None) => {}
        }
    }
    if models.iter().all(|model| model.key("tariff").is_none()) {
        for account in root.list("accounts") {
            if let Some(quota) = account.key("neurons_per_day") {
                warnings.add(
                    quota.problem("never used up: no model has a tariff, so nothing costs neurons"),
                );
            }
        }
    }
}

fn check_tariff(tariff: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    check_metrics(tariff, "coefficients", problems);
    for (_, coefficient) in tariff.entries("coefficients") {
        if let NodeData::Number(number) = &coefficient.node.data
            && number.as_f64().is_some_and(|value| value < 0.0)
        {
            problems.add(coefficient.problem(format!(
                "{number} is below 0: a metric costs neurons or nothing"
            )));
        }
    }
    for (name, _) in tariff.entries("criteria") {
        if let Some(fault) = name_fault(name)
            && let Some(criteria) = tariff.key("criteria")
        {
            problems.add(criteria.problem(format!("{name:?}: {fault}")));
        }
    }
    let free = |value: &NodeData| match value {
        NodeData::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    };
    let base_is_free = tariff
        .key("cost_per_infer")
        .is_none_or(|base| free(&base.node.data));
    let coefficients = tariff.entries("coefficients");
    let has_criteria = !tariff.entries("criteria").is_empty();
    if base_is_free && !has_criteria && coefficients.iter().all(|(_, c)| free(&c.node.data)) {
        warnings.add(tariff.problem("everything is free: no coefficient is above 0"));
    }
}

/// Names of metrics, the keys of the mapping under `key`.
fn check_metrics(above: &Cursor<'_>, key: &str, problems: &mut Problems) {
    let entries = above.entries(key);
    if entries.len() > METRICS_MAX
        && let Some(map) = above.key(key)
    {
        problems.add(map.problem(format!(
            "{} metrics: a request has at most {METRICS_MAX}",
            entries.len()
        )));
    }
    for (name, entry) in entries {
        if let Some(fault) = name_fault(name) {
            problems.add(entry.problem(fault));
        }
    }
}
