//! Model whose processes this host starts and stops, resolved from its configuration.
//!
//! Neither its state nor its estimate, which change while it runs. Times are spans.

use super::fit::Split;
use crate::model::{ModelSpec, OverLease, SleepLevel, SplitChoice, UnknownVram};
use crate::{Millis, ModelId};

/// Managed model: all that decides on its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedModel {
    /// Name of the model.
    pub id: ModelId,
    /// Permits of one slot.
    pub parallel: u32,
    /// Slots that stay loaded.
    pub slots_min: u32,
    /// Slots at most.
    pub slots_max: u32,
    /// Loaded at start, never evicted, never unloaded while idle.
    pub pin: bool,
    /// Loaded at start.
    pub preload: bool,
    /// Time for which it stays loaded while idle; none: always.
    pub keep_alive: Option<Millis>,
    /// Time from the start of a process until it must be ready.
    pub ready_timeout: Millis,
    /// Time from SIGTERM to SIGKILL.
    pub stop_timeout: Millis,
    /// Unloading of an idle process.
    pub sleep: SleepLevel,
    /// Treatment while its memory is not known.
    pub unknown: UnknownVram,
    /// Treatment of use above its lease.
    pub over_lease: OverLease,
    /// Split of its need where no device has room for it.
    pub split: Split,
}

impl ManagedModel {
    /// Returns the managed model of a configured one, whose server splits it as `split` at most; none without a process.
    pub fn of(spec: &ModelSpec, split: Split) -> Option<ManagedModel> {
        let process = spec.process.as_ref()?;
        Some(ManagedModel {
            id: spec.id.clone(),
            parallel: process.parallel,
            slots_min: spec.replicas.min,
            slots_max: spec.replicas.max,
            pin: spec.pin,
            preload: spec.preload,
            keep_alive: spec.keep_alive_secs().map(Millis::from_secs),
            ready_timeout: Millis::from_secs(process.ready_timeout_secs),
            stop_timeout: Millis::from_secs(process.stop_timeout_secs),
            sleep: process.sleep,
            unknown: spec.vram.unknown,
            over_lease: spec.vram.over_lease,
            split: match spec.vram.split {
                SplitChoice::Auto => split,
                SplitChoice::Never => Split::Never,
            },
        })
    }

    /// Returns the slots that the model needs to serve at all: those that stay, or a single one.
    pub fn slots_needed(&self) -> u32 {
        self.slots_min.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(more: &str) -> ModelSpec {
        let text = format!(r#"{{"id":"m","task":"text-to-image","backend":"http"{more}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_model_without_a_process_is_not_managed() {
        assert_eq!(
            ManagedModel::of(&spec(r#","pin":true"#), Split::Equal),
            None
        );
    }

    #[test]
    fn settings_are_resolved_with_the_defaults_of_the_task_and_the_preset() {
        let auto = ManagedModel::of(&spec(r#","process":{}"#), Split::Proportional).unwrap();
        assert_eq!(auto.keep_alive, Some(Millis::from_secs(900)));
        assert_eq!(auto.split, Split::Proportional);
        assert_eq!((auto.slots_needed(), auto.slots_max), (1, 1));
        let more = r#","process":{"parallel":2},"pin":true,"vram":{"split":"never"},"replicas":{"min":2,"max":3}"#;
        let pinned = ManagedModel::of(&spec(more), Split::Proportional).unwrap();
        assert_eq!(pinned.keep_alive, None);
        assert_eq!(pinned.split, Split::Never);
        assert_eq!((pinned.slots_needed(), pinned.parallel), (2, 2));
    }
}
