//! Placement: on which devices a need fits, and how it is split over them.
//!
//! Grants nothing: the ledger checks each share again. Shares are all or none. Sizes are MiB; equal input gives equal
//! output, ties go to the lower index.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::account::MemoryAccount;
use super::device::{DeviceId, DeviceKind, DeviceView};

/// Steps in which a proportional share grows.
const SHARE_STEP_MIB: u64 = 16;
/// Numbers of devices over which tensor parallel engines split evenly.
const EQUAL_PARTS: [usize; 3] = [2, 4, 8];

/// Split of a need over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Each device holds the whole need.
    Never,
    /// Shares in proportion to what is free, as llama.cpp splits tensors.
    Proportional,
    /// Equal shares on 2, 4 or 8 devices, as tensor parallel engines split.
    Equal,
}

/// Need for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Memory on one device, what each process needs beside the model included.
    pub mib: u64,
    /// Devices that hold the need each; above 1 only with [`Split::Never`].
    pub devices: u32,
    /// Split of the need where no device has room for it.
    pub split: Split,
    /// Part of `mib` that each device of a split needs whole.
    pub context_mib: u64,
}

impl PlacementRequest {
    /// Returns whether one device with so much room holds the whole need.
    pub(super) const fn fits_in(&self, room_mib: u64) -> bool {
        self.devices == 1 && self.mib <= room_mib
    }

    /// Returns whether the need is spread over several devices where one does not hold it.
    pub(super) fn can_spread(&self) -> bool {
        self.devices > 1 || self.split != Split::Never
    }

    /// Returns false where [`place`] would find no room for certain: a check without allocations.
    pub(super) fn may_fit(&self, rooms: &[DeviceRoom]) -> bool {
        if self.devices == 1 {
            let free = rooms.iter().map(|room| room.free_mib);
            let is_enough_in_all = self.can_spread() && self.mib <= free.sum();
            return is_enough_in_all || rooms.iter().any(|room| self.fits_in(room.free_mib));
        }
        let with_room = rooms.iter().filter(|room| self.mib <= room.free_mib);
        with_room.count() >= usize::try_from(self.devices).unwrap_or(usize::MAX)
    }
}

/// Room of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRoom {
    /// Device.
    pub id: DeviceId,
    /// Place in the driver's list.
    pub index: u32,
    /// Kind.
    pub kind: DeviceKind,
    /// Name of the product.
    pub name: Arc<str>,
    /// Room without any lease and without others.
    pub empty_mib: u64,
    /// Room now.
    pub free_mib: u64,
    /// Holders with a lease there.
    pub residents: u32,
}

impl DeviceRoom {
    /// Returns the room of a device by its account.
    pub fn of(view: &DeviceView, account: &MemoryAccount) -> DeviceRoom {
        DeviceRoom {
            id: view.info.id.clone(),
            index: view.info.index,
            kind: view.info.kind,
            name: Arc::clone(&view.info.name),
            empty_mib: view.info.total_mib.saturating_sub(view.reserve_mib),
            free_mib: account.free.grantable_mib(),
            residents: account.residents,
        }
    }
}

/// Share of a need on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShare {
    /// Device.
    pub device: DeviceId,
    /// Memory.
    pub mib: u64,
}

/// Result of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Shares in the order of the devices' index.
    Fits(Vec<DeviceShare>),
    /// The devices could hold the need, but have no room now.
    NoRoom,
    /// The devices could not hold the need if they were empty.
    DoesNotFit {
        /// Room of the largest device that is empty.
        largest_mib: u64,
    },
}

/// Places a need on devices.
pub fn place(request: &PlacementRequest, rooms: &[DeviceRoom]) -> Placement {
    let now: Vec<Room<'_>> = rooms
        .iter()
        .map(|device| Room::new(device, device.free_mib))
        .collect();
    if let Some(shares) = shares(request, &now) {
        return Placement::Fits(shares);
    }
    let empty: Vec<Room<'_>> = rooms
        .iter()
        .map(|device| Room::new(device, device.empty_mib))
        .collect();
    match shares(request, &empty) {
        Some(_) => Placement::NoRoom,
        None => Placement::DoesNotFit {
            largest_mib: empty.iter().map(|room| room.mib).max().unwrap_or(0),
        },
    }
}

/// Room of a device, now or when it is empty.
#[derive(Clone, Copy)]
struct Room<'a> {
    device: &'a DeviceRoom,
    mib: u64,
}

impl<'a> Room<'a> {
    fn new(device: &'a DeviceRoom, mib: u64) -> Room<'a> {
        Room { device, mib }
    }
}

fn shares(request: &PlacementRequest, rooms: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    match usize::try_from(request.devices).unwrap_or(usize::MAX) {
        0 => None,
        1 => best_fit(request, rooms).or_else(|| match request.split {
            Split::Never => None,
            Split::Proportional => split(rooms, 2..=rooms.len(), |chosen| {
                proportional(request, chosen)
            }),
            Split::Equal => split(rooms, EQUAL_PARTS, |chosen| equal(request, chosen)),
        }),
        devices => split(rooms, [devices], |chosen| each(request.mib, chosen)),
    }
}

/// The device with the least room left over.
fn best_fit(request: &PlacementRequest, rooms: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    let with_room = rooms.iter().filter(|room| request.fits_in(room.mib));
    let best = with_room.min_by_key(|room| (room.mib, room.device.residents, room.device.index))?;
    Some(vec![share(best, request.mib)])
}

/// Tries sets of devices: fewest first, of one name before mixed ones, those with the most room in front.
fn split(
    rooms: &[Room<'_>],
    sizes: impl IntoIterator<Item = usize>,
    shares: impl Fn(&[Room<'_>]) -> Option<Vec<DeviceShare>>,
) -> Option<Vec<DeviceShare>> {
    let mut by_room: Vec<Room<'_>> = rooms
        .iter()
        .filter(|room| room.device.kind.can_split())
        .copied()
        .collect();
    by_room.sort_by_key(|room| (Reverse(room.mib), room.device.residents, room.device.index));
    for size in sizes.into_iter().filter(|size| *size <= by_room.len()) {
        for is_mixed in [false, true] {
            for lead in &by_room {
                let fits = |room: &&Room<'_>| {
                    room.device.kind == lead.device.kind
                        && (is_mixed || room.device.name == lead.device.name)
                };
                let mut chosen: Vec<Room<'_>> =
                    by_room.iter().filter(fits).take(size).copied().collect();
                chosen.sort_by_key(|room| room.device.index);
                if chosen.len() == size
                    && let Some(shares) = shares(&chosen)
                {
                    return Some(shares);
                }
            }
        }
    }
    None
}

/// Shares in proportion to the rooms, each rounded up.
fn proportional(request: &PlacementRequest, chosen: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    let body = u128::from(request.mib.saturating_sub(request.context_mib));
    let all: u128 = chosen.iter().map(|room| u128::from(room.mib)).sum();
    // Without any room each share would be nothing, and nothing always fits.
    if all < body {
        return None;
    }
    let mut shares = Vec::with_capacity(chosen.len());
    for room in chosen {
        let exact = (body * u128::from(room.mib)).div_ceil(all.max(1));
        let rounded = u64::try_from(exact).ok()?.next_multiple_of(SHARE_STEP_MIB);
        shares.push(share(room, rounded + request.context_mib));
    }
    fitting(shares, chosen)
}

/// Equal shares.
fn equal(request: &PlacementRequest, chosen: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    each(request.mib.div_ceil(chosen.len() as u64), chosen)
}

/// The same memory on each.
fn each(mib: u64, chosen: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    fitting(chosen.iter().map(|room| share(room, mib)).collect(), chosen)
}

fn fitting(shares: Vec<DeviceShare>, chosen: &[Room<'_>]) -> Option<Vec<DeviceShare>> {
    let fits = shares
        .iter()
        .zip(chosen)
        .all(|(share, room)| share.mib <= room.mib);
    fits.then_some(shares)
}

fn share(room: &Room<'_>, mib: u64) -> DeviceShare {
    DeviceShare {
        device: room.device.id.clone(),
        mib,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(index: u32, name: &str, free_mib: u64) -> DeviceRoom {
        DeviceRoom {
            id: format!("GPU-{index}").as_str().into(),
            index,
            kind: DeviceKind::Gpu,
            name: name.into(),
            empty_mib: 24_000,
            free_mib,
            residents: 0,
        }
    }

    fn need(mib: u64, devices: u32, split: Split) -> PlacementRequest {
        PlacementRequest {
            mib,
            devices,
            split,
            context_mib: 450,
        }
    }

    fn placed(request: PlacementRequest, rooms: &[DeviceRoom]) -> Vec<(String, u64)> {
        match place(&request, rooms) {
            Placement::Fits(shares) => shares
                .iter()
                .map(|share| (share.device.to_string(), share.mib))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_device_is_the_one_with_the_least_left_over() {
        let rooms = [room(0, "a", 20_000), room(1, "a", 9000), room(2, "a", 9000)];
        let shares = placed(need(8000, 1, Split::Equal), &rooms);
        assert_eq!(shares, [("GPU-1".to_owned(), 8000)]);
        let mut busy = rooms.clone();
        busy[1].residents = 1;
        let shares = placed(need(8000, 1, Split::Never), &busy);
        assert_eq!(shares, [("GPU-2".to_owned(), 8000)]);
    }

    #[test]
    fn a_proportional_split_takes_the_fewest_devices_and_rounds_up() {
        let rooms = [room(0, "a", 8000), room(1, "a", 12_000), room(2, "a", 3000)];
        let shares = placed(need(15_450, 1, Split::Proportional), &rooms);
        assert_eq!(
            shares,
            [("GPU-0".to_owned(), 6450), ("GPU-1".to_owned(), 9458)]
        );
    }

    #[test]
    fn a_need_is_not_split_over_devices_without_any_room() {
        let rooms = [0, 1].map(|index| DeviceRoom {
            free_mib: 0,
            ..room(index, "a", 12_000)
        });
        let placement = place(&need(15_450, 1, Split::Proportional), &rooms);
        assert_eq!(placement, Placement::NoRoom);
    }

    #[test]
    fn devices_of_one_name_come_before_a_mixed_set() {
        let rooms = [room(0, "b", 20_000), room(1, "a", 9000), room(2, "a", 9000)];
        let shares = placed(
            need(16_000, 2, Split::Never),
            &[
                room(0, "b", 20_000),
                room(1, "a", 17_000),
                room(2, "a", 16_000),
            ],
        );
        assert_eq!(shares[0].0, "GPU-1");
        let mixed = placed(need(9000, 3, Split::Never), &rooms);
        assert_eq!(mixed.len(), 3);
    }

    #[test]
    fn an_equal_split_is_over_two_four_or_eight_devices() {
        let rooms: Vec<_> = (0..5).map(|index| room(index, "a", 6000)).collect();
        let shares = placed(need(20_000, 1, Split::Equal), &rooms);
        assert_eq!(shares.len(), 4);
        assert!(shares.iter().all(|(_, mib)| *mib == 5000));
        let three = &rooms[..3];
        assert_eq!(
            place(&need(17_000, 1, Split::Equal), three),
            Placement::NoRoom,
            "three devices are no set of tensor parallel engines, and two are too full"
        );
    }

    #[test]
    fn slices_and_different_kinds_share_no_need() {
        let mut slices = [room(0, "a", 9000), room(1, "a", 9000)];
        for slice in &mut slices {
            slice.kind = DeviceKind::Mig;
        }
        let request = need(30_000, 1, Split::Equal);
        let refused = Placement::DoesNotFit {
            largest_mib: 24_000,
        };
        assert_eq!(place(&request, &slices), refused);
        let mut kinds = [room(0, "a", 20_000), room(1, "a", 20_000)];
        kinds[1].kind = DeviceKind::Simulated;
        assert_eq!(place(&request, &kinds), refused);
    }

    #[test]
    fn a_need_that_no_empty_host_holds_is_told_from_one_that_waits() {
        let rooms = [room(0, "a", 100), room(1, "a", 100)];
        assert_eq!(
            place(&need(24_000, 2, Split::Never), &rooms),
            Placement::NoRoom
        );
        let too_many = place(&need(24_000, 3, Split::Never), &rooms);
        assert_eq!(
            too_many,
            Placement::DoesNotFit {
                largest_mib: 24_000
            }
        );
        let none = place(&need(1, 1, Split::Never), &[]);
        assert_eq!(none, Placement::DoesNotFit { largest_mib: 0 });
    }
}
