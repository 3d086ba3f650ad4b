//! Plan of an empty host: where each model fits, which models fit together, and whether the pinned ones do.
//!
//! Not the choice of the next model: nothing runs and nothing is used. Sizes are MiB. Sets of up to
//! [`EXACT_MODELS_MAX`] models are searched whole, at most `SETS_MAX` are named; equal input gives equal output.

use std::cmp::Reverse;

use super::fit::{DeviceRoom, DeviceShare, Placement, PlacementRequest, place};
use super::managed::ManagedModel;
use crate::model::UnknownVram;

/// Models up to which every set is looked at: 4,096 sets.
pub const EXACT_MODELS_MAX: usize = 12;
/// Sets that are named: more than anybody reads.
const SETS_MAX: usize = 16;

/// Model with its estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedModel {
    /// The model.
    pub model: ManagedModel,
    /// Memory of one process, or none.
    pub mib: Option<u64>,
    /// Part of it that each device of a split needs whole.
    pub context_mib: u64,
}

/// Place of a model on an empty host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedPlace {
    /// Shares on devices, of one process.
    Fits(Vec<DeviceShare>),
    /// A whole device, as its memory is not known.
    Exclusive(DeviceShare),
    /// Not loaded, as its memory is not known.
    Refused,
    /// No device or set of devices has so much.
    DoesNotFit {
        /// Room of the largest device.
        largest_mib: u64,
    },
}

/// Plan of a host. Models are named by their place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// Place of each model alone.
    pub places: Vec<PlannedPlace>,
    /// Largest sets that can be resident together, none a part of another; models that do not fit alone are in none.
    pub together: Vec<Vec<usize>>,
    /// Further sets may exist that are not named.
    pub is_cut: bool,
    /// Pinned models for which no room is left beside the pinned ones before them.
    pub pins_without_room: Vec<usize>,
}

/// Plans an empty host.
pub fn plan_host(models: &[PlannedModel], devices: &[DeviceRoom]) -> HostPlan {
    let empty: Vec<DeviceRoom> = devices.iter().map(emptied).collect();
    let places: Vec<PlannedPlace> = models
        .iter()
        .map(|model| place_alone(model, &empty))
        .collect();
    let fits = |at: &usize| {
        matches!(
            places[*at],
            PlannedPlace::Fits(_) | PlannedPlace::Exclusive(_)
        )
    };
    let order = packing_order(models);
    let candidates: Vec<usize> = order.iter().copied().filter(fits).collect();
    let (together, is_cut) = match candidates.len() {
        0..=EXACT_MODELS_MAX => every_set(models, &candidates, &empty),
        _ => greedy_sets(models, &candidates, &empty),
    };
    let pinned = order.into_iter().filter(|at| models[*at].model.pin);
    HostPlan {
        pins_without_room: without_room(models, pinned, &empty),
        places,
        together,
        is_cut,
    }
}

fn emptied(device: &DeviceRoom) -> DeviceRoom {
    DeviceRoom {
        free_mib: device.empty_mib,
        residents: 0,
        ..device.clone()
    }
}

/// Pinned models first, then those that need more: small ones fill the gaps.
fn packing_order(models: &[PlannedModel]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..models.len()).collect();
    order.sort_by_key(|at| {
        let model = &models[*at];
        let need = model.mib.unwrap_or(u64::MAX);
        (!model.model.pin, Reverse(need), *at)
    });
    order
}

fn place_alone(planned: &PlannedModel, empty: &[DeviceRoom]) -> PlannedPlace {
    place_one(planned, &mut empty.to_vec())
}

/// Places one process and takes its room.
fn place_one(planned: &PlannedModel, rooms: &mut [DeviceRoom]) -> PlannedPlace {
    let Some(mib) = planned.mib else {
        return place_unknown(planned, rooms);
    };
    let request = PlacementRequest {
        mib,
        devices: 1,
        split: planned.model.split,
        context_mib: planned.context_mib,
    };
    match place(&request, rooms) {
        Placement::Fits(shares) => {
            shares.iter().for_each(|share| take(share, rooms));
            PlannedPlace::Fits(shares)
        }
        Placement::NoRoom => PlannedPlace::DoesNotFit {
            largest_mib: rooms.iter().map(|room| room.free_mib).max().unwrap_or(0),
        },
        Placement::DoesNotFit { largest_mib } => PlannedPlace::DoesNotFit { largest_mib },
    }
}

/// Places a process of unknown need on the largest device without residents.
fn place_unknown(planned: &PlannedModel, rooms: &mut [DeviceRoom]) -> PlannedPlace {
    if planned.model.unknown == UnknownVram::Refuse {
        return PlannedPlace::Refused;
    }
    let unused = rooms.iter().filter(|room| room.residents == 0);
    let largest = unused.max_by_key(|room| (room.empty_mib, Reverse(room.index)));
    match largest {
        Some(room) => {
            let share = DeviceShare {
                device: room.id.clone(),
                mib: room.empty_mib,
            };
            take(&share, rooms);
            PlannedPlace::Exclusive(share)
        }
        None => PlannedPlace::DoesNotFit { largest_mib: 0 },
    }
}

fn take(share: &DeviceShare, rooms: &mut [DeviceRoom]) {
    if let Some(room) = rooms.iter_mut().find(|room| room.id == share.device) {
        room.free_mib = room.free_mib.saturating_sub(share.mib);
        room.residents += 1;
    }
}

/// Models for whose slots no room is left when all are loaded in this order.
fn without_room(
    models: &[PlannedModel],
    order: impl Iterator<Item = usize>,
    empty: &[DeviceRoom],
) -> Vec<usize> {
    let mut rooms = empty.to_vec();
    order
        .filter(|at| !place_slots(&models[*at], &mut rooms))
        .collect()
}

/// Places all slots that a model needs; returns whether each had room.
fn place_slots(planned: &PlannedModel, rooms: &mut [DeviceRoom]) -> bool {
    (0..planned.model.slots_needed()).all(|_| {
        matches!(
            place_one(planned, rooms),
            PlannedPlace::Fits(_) | PlannedPlace::Exclusive(_)
        )
    })
}

/// Returns whether models have room together: the largest first, or the smallest first, after which a split takes what
/// is left.
fn fit_together(models: &[PlannedModel], set: &[usize], empty: &[DeviceRoom]) -> bool {
    without_room(models, set.iter().copied(), empty).is_empty()
        || without_room(models, set.iter().rev().copied(), empty).is_empty()
}

/// Looks at every set, large ones first, and keeps those that are no part of a kept one.
fn every_set(
    models: &[PlannedModel],
    candidates: &[usize],
    empty: &[DeviceRoom],
) -> (Vec<Vec<usize>>, bool) {
    let mut kept: Vec<u32> = Vec::new();
    for size in (1..=candidates.len()).rev() {
        let all = 0..1_u32 << candidates.len();
        for set in all.filter(|set| set.count_ones() as usize == size) {
            let is_part = kept.iter().any(|larger| set & larger == set);
            let chosen: Vec<usize> = members(set, candidates).collect();
            if is_part || !fit_together(models, &chosen, empty) {
                continue;
            }
            if kept.len() == SETS_MAX {
                return (named(&kept, candidates), true);
            }
            kept.push(set);
        }
    }
    (named(&kept, candidates), false)
}

fn members(set: u32, candidates: &[usize]) -> impl Iterator<Item = usize> {
    let place = move |(at, model): (usize, &usize)| (set >> at & 1 == 1).then_some(*model);
    candidates.iter().enumerate().filter_map(place)
}

fn named(sets: &[u32], candidates: &[usize]) -> Vec<Vec<usize>> {
    let sorted = |set: &u32| {
        let mut models: Vec<usize> = members(*set, candidates).collect();
        models.sort_unstable();
        models
    };
    let mut sets: Vec<Vec<usize>> = sets.iter().map(sorted).collect();
    sets.sort_by_key(|set| (Reverse(set.len()), set.clone()));
    sets
}

/// Begins a set with each model in turn, and adds the others as they fit.
fn greedy_sets(
    models: &[PlannedModel],
    candidates: &[usize],
    empty: &[DeviceRoom],
) -> (Vec<Vec<usize>>, bool) {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for first in candidates {
        let mut rooms = empty.to_vec();
        if !place_slots(&models[*first], &mut rooms) {
            continue;
        }
        let mut set = vec![*first];
        for other in candidates.iter().filter(|other| *other != first) {
            let mut with_other = rooms.clone();
            if place_slots(&models[*other], &mut with_other) {
                rooms = with_other;
                set.push(*other);
            }
        }
        set.sort_unstable();
        if !sets.contains(&set) && sets.len() < SETS_MAX {
            sets.push(set);
        }
    }
    let is_cut = sets.len() != 1 || sets[0].len() < candidates.len();
    (sets, is_cut)
}

#[cfg(test)]
mod tests {
    use super::super::device::DeviceKind;
    use super::super::fit::Split;
    use super::*;
    use crate::model::ModelSpec;

    fn card(index: u32, mib: u64) -> DeviceRoom {
        DeviceRoom {
            id: format!("sim{index}").as_str().into(),
            index,
            kind: DeviceKind::Simulated,
            name: "simulated".into(),
            empty_mib: mib,
            free_mib: 0,
            residents: 3,
        }
    }

    fn model(mib: impl Into<Option<u64>>, more: &str, split: Split) -> PlannedModel {
        let text = format!(
            r#"{{"id":"m","task":"text-generation","backend":"openai","process":{{}}{more}}}"#
        );
        let spec: ModelSpec = serde_json::from_str(&text).unwrap();
        PlannedModel {
            model: ManagedModel::of(&spec, split).unwrap(),
            mib: mib.into(),
            context_mib: 450,
        }
    }

    fn whole(mib: u64) -> PlannedModel {
        model(mib, "", Split::Never)
    }

    #[test]
    fn models_that_fit_together_are_one_set() {
        let plan = plan_host(&[whole(9000), whole(9000), whole(4000)], &[card(0, 24_000)]);
        assert_eq!(plan.together, [vec![0, 1, 2]]);
        assert!(!plan.is_cut && plan.pins_without_room.is_empty());
        assert!(
            plan.places
                .iter()
                .all(|place| matches!(place, PlannedPlace::Fits(_)))
        );
    }

    #[test]
    fn sets_are_the_largest_and_none_is_a_part_of_another() {
        let models = [whole(14_000), whole(12_000), whole(8000), whole(30_000)];
        let plan = plan_host(&models, &[card(0, 22_000)]);
        assert_eq!(plan.together, [vec![0, 2], vec![1, 2]]);
        let largest_mib = 22_000;
        assert_eq!(plan.places[3], PlannedPlace::DoesNotFit { largest_mib });
    }

    #[test]
    fn small_models_fill_gaps_of_several_cards_and_a_large_one_is_split() {
        let models = [
            whole(6000),
            whole(6000),
            model(17_000, "", Split::Proportional),
        ];
        let cards = [card(0, 12_000), card(1, 12_000)];
        let plan = plan_host(&models, &cards);
        let PlannedPlace::Fits(shares) = &plan.places[2] else {
            panic!("{plan:?}")
        };
        assert_eq!(shares.len(), 2);
        assert_eq!(plan.together, [vec![0, 1], vec![0, 2], vec![1, 2]]);
    }

    #[test]
    fn a_model_of_unknown_need_has_a_device_for_itself_or_is_refused() {
        let models = [
            whole(1000),
            model(None, "", Split::Never),
            model(None, r#","vram":{"unknown":"refuse"}"#, Split::Never),
        ];
        let one = plan_host(&models, &[card(0, 12_000)]);
        assert!(matches!(one.places[1], PlannedPlace::Exclusive(_)));
        assert_eq!(one.places[2], PlannedPlace::Refused);
        assert_eq!(one.together, [vec![0], vec![1]]);
        let two = plan_host(&models, &[card(0, 12_000), card(1, 12_000)]);
        assert_eq!(two.together, [vec![0, 1]]);
    }

    #[test]
    fn pins_that_do_not_fit_together_are_named_and_count_every_slot_that_stays() {
        let pinned =
            |mib: u64, more: &str| model(mib, &format!(r#","pin":true{more}"#), Split::Never);
        let two = r#","replicas":{"min":2,"max":2}"#;
        let models = [pinned(8000, ""), whole(20_000), pinned(9000, two)];
        let plan = plan_host(&models, &[card(0, 24_000)]);
        assert_eq!(plan.pins_without_room, [0], "two of 9000 are there first");
        let plan = plan_host(&models, &[card(0, 26_000)]);
        assert!(plan.pins_without_room.is_empty());
    }

    #[test]
    fn many_models_are_put_together_greedily_in_bounded_time() {
        let models = vec![whole(4000); 40];
        let plan = plan_host(&models, &[card(0, 22_000)]);
        assert!(plan.is_cut && plan.together.len() <= SETS_MAX);
        assert!(plan.together.iter().all(|set| set.len() == 5));
        let all = plan_host(&models, &[card(0, 4000 * 40)]);
        assert_eq!(all.together.len(), 1);
        assert!(!all.is_cut);
    }

    #[test]
    fn a_host_without_devices_has_no_room() {
        let plan = plan_host(&[whole(1), model(None, "", Split::Never)], &[]);
        let nowhere = PlannedPlace::DoesNotFit { largest_mib: 0 };
        assert_eq!(plan.places, [nowhere.clone(), nowhere]);
        assert!(plan.together.is_empty() && !plan.is_cut);
    }
}
