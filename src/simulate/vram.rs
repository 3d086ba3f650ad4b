//! Memory of a simulated card, taken as a server takes VRAM: gradually while it loads, refused when the card is full.
//!
//! A card is a directory with `card.json` (`total_mib`, `pages`) and as many page files. Taking a page is an exclusive
//! lock on its file, which the kernel releases when the process ends in whatever way. `card.lock` is held while pages
//! are looked for, so that of two processes that would share the last pages one gets them all.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use serde::Deserialize;
use tokio::time::sleep;

use super::state::SimulatorState;

/// Description of a card, in its directory.
const CARD_FILE: &str = "card.json";
const LOCK_FILE: &str = "card.lock";
/// Pages of a card that does not say how many.
const DEFAULT_PAGES: u32 = 256;
/// Pages a card may have: each is a descriptor of the process that takes it.
const PAGES_MAX: u32 = 1024;
/// Parts in which memory is taken while a server loads.
const LOAD_STEPS: u32 = 16;
/// Words of the CUDA runtime when an allocation fails.
const OUT_OF_MEMORY: &str = "CUDA error: out of memory";

/// Takes the memory of a server and keeps it until the future is dropped. Completes with an error only.
pub(super) async fn hold(state: &SimulatorState) -> io::Error {
    match load_and_grow(state).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn load_and_grow(state: &SimulatorState) -> io::Result<std::convert::Infallible> {
    let config = &state.config.vram;
    let cards = config
        .vram_card
        .iter()
        .map(|directory| Card::open(directory));
    let cards = cards.collect::<io::Result<Vec<Card>>>()?;
    let load_time = config.load_time();
    let steps = if load_time.is_zero() { 1 } else { LOAD_STEPS };
    let mut taken: Vec<Vec<File>> = cards.iter().map(|_| Vec::new()).collect();
    for step in 1..=steps {
        sleep(load_time / steps).await;
        for (card, taken) in cards.iter().zip(&mut taken) {
            card.fill(taken, card.pages_for(config.vram_mib) * step / steps)?;
        }
    }
    settle(state, true);
    if !cards.is_empty() {
        println!("{} MiB of {} card(s) taken", config.vram_mib, cards.len());
    }
    let mut will_grow = config.vram_growth_mib > 0;
    let mut asleep = state.is_asleep.subscribe();
    loop {
        tokio::select! {
            () = state.work_started.notified(), if will_grow => {
                will_grow = false;
                for (card, taken) in cards.iter().zip(&mut taken) {
                    taken.extend(card.take(card.pages_for(config.vram_growth_mib))?);
                }
            }
            changed = asleep.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
                let is_asleep = *asleep.borrow_and_update();
                let mib = if is_asleep { config.asleep_mib } else { config.vram_mib };
                for (card, taken) in cards.iter().zip(&mut taken) {
                    card.fill(taken, card.pages_for(mib))?;
                }
                settle(state, !is_asleep);
            }
        }
    }
}

fn settle(state: &SimulatorState, has_vram: bool) {
    state.has_vram.store(has_vram, Relaxed);
    state.vram_settled.send_modify(|count| *count += 1);
}

/// Content of `card.json`, as far as a process that takes memory needs it.
#[derive(Deserialize)]
struct CardSize {
    total_mib: u64,
    pages: Option<u32>,
}

/// A simulated card.
struct Card {
    directory: PathBuf,
    pages: u32,
    /// Memory of a page, MiB.
    page_mib: u64,
}

impl Card {
    fn open(directory: &Path) -> io::Result<Card> {
        let file = directory.join(CARD_FILE);
        let named = |error: &dyn std::fmt::Display| {
            io::Error::new(
                ErrorKind::InvalidInput,
                format!("{}: {error}", file.display()),
            )
        };
        let text = std::fs::read(&file).map_err(|error| named(&error))?;
        let size: CardSize = serde_json::from_slice(&text).map_err(|error| named(&error))?;
        let pages = size.pages.unwrap_or(DEFAULT_PAGES);
        if !(1..=PAGES_MAX).contains(&pages) || size.total_mib < u64::from(pages) {
            return Err(named(&"not 1 to 1024 pages of at least 1 MiB"));
        }
        Ok(Card {
            directory: directory.to_owned(),
            pages,
            page_mib: size.total_mib / u64::from(pages),
        })
    }

    /// Pages that hold so much memory; more than there are when there is no such number.
    fn pages_for(&self, mib: u64) -> u32 {
        let pages = mib.div_ceil(self.page_mib).min(u64::from(self.pages) + 1);
        u32::try_from(pages).unwrap_or(u32::MAX)
    }

    /// Takes pages until `taken` has so many, or gives up those that it has beyond.
    fn fill(&self, taken: &mut Vec<File>, count: u32) -> io::Result<()> {
        taken.truncate(count as usize);
        let missing = count as usize - taken.len();
        taken.extend(self.take(u32::try_from(missing).unwrap_or(u32::MAX))?);
        Ok(())
    }

    /// Takes pages that nobody has, all or none.
    fn take(&self, count: u32) -> io::Result<Vec<File>> {
        let lock = open(&self.directory.join(LOCK_FILE))?;
        lock.lock()?;
        let mut taken = Vec::new();
        for page in 0..self.pages {
            if taken.len() == count as usize {
                break;
            }
            let file = open(&self.directory.join(format!("page-{page:04}")))?;
            match file.try_lock() {
                Ok(()) => taken.push(file),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        if taken.len() < count as usize {
            return Err(io::Error::new(ErrorKind::OutOfMemory, OUT_OF_MEMORY));
        }
        Ok(taken)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(total_mib: u64, pages: u32) -> (tempfile::TempDir, Card) {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(r#"{{"total_mib":{total_mib},"pages":{pages}}}"#);
        std::fs::write(dir.path().join(CARD_FILE), text).unwrap();
        let card = Card::open(dir.path()).unwrap();
        (dir, card)
    }

    #[test]
    fn the_fourth_process_that_takes_a_third_and_more_is_refused_and_dropped_pages_are_free() {
        let (_dir, card) = card(320 * 256, 320);
        let mut taken: Vec<_> = (0..3).map(|_| card.take(100).unwrap()).collect();
        let refused = card.take(100).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        assert_eq!(refused.to_string(), OUT_OF_MEMORY);
        assert_eq!(card.take(20).unwrap().len(), 20, "a refusal keeps nothing");
        taken.pop();
        assert_eq!(card.take(120).unwrap().len(), 120);
    }

    #[test]
    fn pages_hold_at_least_what_was_asked_for() {
        let (_dir, card) = card(1000, 10);
        assert_eq!(
            [0, 1, 100, 101].map(|mib| card.pages_for(mib)),
            [0, 1, 1, 2]
        );
        assert!(card.take(card.pages_for(u64::MAX)).is_err());
    }

    #[test]
    fn a_card_without_a_size_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Card::open(dir.path()).err().unwrap().to_string();
        assert!(missing.contains("card.json"), "{missing}");
    }
}
