//! Guests that wait to be used again: by the same revision for the same account, never by another.
//!
//! It makes none and judges none: what is put here has answered well. Bounded by the slots of the
//! engine; when those are used up, the guest that has waited longest goes.

use std::collections::HashMap;

use infergate_core::AccountId;
use parking_lot::Mutex;

use super::store::Instance;

/// Who a guest belongs to. Rankings off the request path have no account.
pub type Owner = (u64, Option<AccountId>);

/// The waiting guests of the process.
#[derive(Default)]
pub struct Warm {
    /// Guards the map only; taken twice a call, for a lookup each. Guests are dropped outside it.
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    /// The longest waiting first; used from the end.
    waiting: HashMap<Owner, Vec<Waiting>>,
    /// Counts what was put here: the order of waiting.
    puts: u64,
}

struct Waiting {
    put: u64,
    instance: Box<Instance>,
}

impl Warm {
    /// The owner's guest that was used last.
    pub fn take(&self, owner: &Owner) -> Option<Box<Instance>> {
        let mut shelf = self.shelf.lock();
        let own = shelf.waiting.get_mut(owner)?;
        let last = own.pop();
        if own.is_empty() && last.is_none() {
            shelf.waiting.remove(owner);
        }
        last.map(|waiting| waiting.instance)
    }

    /// Keeps a guest for its owner's next call.
    pub fn put(&self, owner: Owner, instance: Box<Instance>) {
        let mut shelf = self.shelf.lock();
        shelf.puts += 1;
        let put = shelf.puts;
        let waiting = Waiting { put, instance };
        shelf.waiting.entry(owner).or_default().push(waiting);
    }

    /// Drops the guest that has waited longest; false when none waits.
    pub fn evict(&self) -> bool {
        let oldest = self.shelf.lock().remove_oldest();
        oldest.is_some()
    }

    /// Drops all guests of a revision: it is gone.
    pub fn forget(&self, revision: u64) {
        let gone: Vec<_> = {
            let mut shelf = self.shelf.lock();
            shelf
                .waiting
                .extract_if(|(of, _), _| *of == revision)
                .collect()
        };
        drop(gone);
    }
}

impl Shelf {
    fn remove_oldest(&mut self) -> Option<Box<Instance>> {
        let oldest = self
            .waiting
            .iter()
            .filter_map(|(owner, own)| Some((own.first()?.put, owner)))
            .min_by_key(|(put, _)| *put)
            .map(|(_, owner)| owner.clone())?;
        let own = self.waiting.get_mut(&oldest)?;
        let waiting = own.remove(0);
        if own.is_empty() {
            self.waiting.remove(&oldest);
        }
        Some(waiting.instance)
    }
}
