//! Programs and model files that change while processes of them run.
//!
//! Changes count once two looks in a row have found the same: a file that is being copied is none yet.

use std::collections::BTreeMap;

use infergate_core::ModelId;
use tokio::time::Instant;

/// States of files, as looks have found them.
#[derive(Default)]
pub(super) struct FileBook {
    models: BTreeMap<ModelId, FoundFiles>,
    /// Moment of the next look; none before the first.
    pub next_look: Option<Instant>,
    /// A look is under way.
    pub is_looking: bool,
    /// Sizes of the models' files, bytes.
    bytes: BTreeMap<ModelId, u64>,
}

/// Files of a model at one look.
pub(super) struct FileLook {
    /// State of its program and its files; none where that cannot be told.
    pub state: Option<u64>,
    /// Size of the model's files, bytes; 0 where it names none.
    pub bytes: u64,
}

/// Files of a model.
struct FoundFiles {
    latest: u64,
    /// State that two looks in a row have found.
    settled: Option<u64>,
}

impl FileBook {
    /// Takes a look over; returns the models whose files have changed since they were last at rest. Files that have not
    /// answered are as they were.
    pub fn take(&mut self, found: BTreeMap<ModelId, Option<FileLook>>) -> Vec<ModelId> {
        self.is_looking = false;
        self.bytes.retain(|id, _| found.contains_key(id));
        self.models.retain(|id, _| found.contains_key(id));
        let answered = found.into_iter();
        let answered = answered.filter_map(|(id, look)| Some((id, look?)));
        self.take_answers(answered)
    }

    /// Takes the files of a model over that have answered after the look.
    pub fn take_late(&mut self, model: ModelId, look: FileLook) -> Vec<ModelId> {
        self.take_answers(std::iter::once((model, look)))
    }

    fn take_answers(
        &mut self,
        answered: impl Iterator<Item = (ModelId, FileLook)>,
    ) -> Vec<ModelId> {
        let mut states = BTreeMap::new();
        for (id, look) in answered {
            self.bytes.insert(id.clone(), look.bytes);
            match look.state {
                Some(state) => drop(states.insert(id, state)),
                None => drop(self.models.remove(&id)),
            }
        }
        self.take_states(states)
    }

    /// Returns the size of a model's files at the latest look, bytes; none before there was one.
    pub fn stored_bytes(&self, model: &ModelId) -> Option<u64> {
        self.bytes.get(model).copied()
    }

    fn take_states(&mut self, found: BTreeMap<ModelId, u64>) -> Vec<ModelId> {
        let mut changed = Vec::new();
        for (id, latest) in found {
            let Some(files) = self.models.get_mut(&id) else {
                let settled = None;
                self.models.insert(id, FoundFiles { latest, settled });
                continue;
            };
            let is_settled = std::mem::replace(&mut files.latest, latest) == latest;
            if is_settled && files.settled != Some(latest) {
                let is_first = files.settled.replace(latest).is_none();
                changed.extend((!is_first).then_some(id));
            }
        }
        changed
    }

    /// Returns whether a process of these files would be another one now.
    pub fn has_update(&self, model: &ModelId, started_with: Option<u64>) -> bool {
        let files = self.models.get(model);
        let settled = files.and_then(|files| files.settled.filter(|it| *it == files.latest));
        matches!((settled, started_with), (Some(now), Some(then)) if now != then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_two_looks_have_found_the_same() {
        let id = ModelId::from("m");
        let look = |state| BTreeMap::from([(ModelId::from("m"), state)]);
        let mut book = FileBook::default();
        assert!(book.take_states(look(1)).is_empty() && !book.has_update(&id, Some(2)));
        assert!(book.take_states(look(1)).is_empty() && book.has_update(&id, Some(2)));
        assert!(book.take_states(look(5)).is_empty() && !book.has_update(&id, Some(1)));
        assert!(book.take_states(look(6)).is_empty());
        assert_eq!(book.take_states(look(6)), std::slice::from_ref(&id));
        assert!(book.has_update(&id, Some(1)) && !book.has_update(&id, Some(6)));
        assert!(!book.has_update(&id, None));
        assert!(book.take_states(look(6)).is_empty());
        book.take(BTreeMap::from([(id.clone(), None)]));
        assert!(book.has_update(&id, Some(1)), "no answer is no change");
        book.take(BTreeMap::new());
        assert!(!book.has_update(&id, Some(1)), "the model is gone");
    }
}
