//! The two levels without an engine or a device.

use super::*;
use crate::driver::Event;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

const SIZES: Sizes = Sizes { state_bytes: 1000, page_bytes: 640, page_tokens: PAGE_TOKENS };

struct Levels {
    saves: Saves,
    events: Receiver<Event>,
}

impl Levels {
    fn open(host_bytes: u64, disk: Option<&Path>) -> Self {
        let limits = calla_store::Limits { bytes: 1 << 30, age: Duration::from_secs(3600) };
        let store = disk.map(|dir| {
            Store::open(dir, "tests", SIZES, limits, SystemTime::now()).expect("a folder")
        });
        let (sender, events) = channel();
        let events_to = Events::new(sender, Arc::new(|| {}));
        let levels = CacheLevels { host_bytes, store };
        let (saves, _) = Saves::open(levels, SIZES, events_to).unwrap();
        Self { saves, events }
    }

    /// Reads out the state after `len` tokens of a sequence, which `seed` names.
    fn read_out(&mut self, ticket: u64, seed: u32, len: usize) -> Option<usize> {
        let save = save(ticket, seed, len);
        let first_page = self.saves.first_page(&save)?;
        self.saves.take(&save, first_page, state(seed, len, first_page));
        Some(first_page)
    }

    /// The same as a step, until it is known what became of it.
    fn save(&mut self, ticket: u64, seed: u32, len: usize) -> Option<FileId> {
        if self.read_out(ticket, seed, len).is_none() {
            self.saves.lost(Ticket(ticket));
        }
        self.saves.commit();
        self.told().into_iter().find_map(|news| match news {
            News::Saved(Ticket(t), file) if t == ticket => Some(file),
            _ => None,
        })?
    }

    fn load(&mut self, file: FileId, first_page: usize) -> Option<(Level, Held)> {
        self.saves.load(Ticket(99), file, first_page);
        self.told().into_iter().find_map(|news| match news {
            News::Loaded(Ticket(99), read) => Some(read),
            _ => None,
        })?
    }

    /// All that the engine is told until no file is worked on.
    fn told(&mut self) -> Vec<News> {
        while self.saves.is_busy() {
            let Ok(Event::File(reply)) = self.events.recv() else { panic!("no grammars here") };
            self.saves.answered(reply);
        }
        std::iter::from_fn(|| self.saves.news()).collect()
    }

    fn gone(&mut self) -> Vec<FileId> {
        let gone = self.told().into_iter().filter_map(|news| match news {
            News::Gone(file) => Some(file),
            _ => None,
        });
        gone.collect()
    }
}

fn save(ticket: u64, seed: u32, len: usize) -> Save {
    let tokens = (0..len as u32).map(|i| seed * 1000 + i).collect();
    let (key, pages) = (CacheKey::default(), (0..len.div_ceil(PAGE_TOKENS)).collect());
    Save { ticket: Ticket(ticket), key, tokens, slot: 0, pages }
}

fn state(seed: u32, len: usize, first_page: usize) -> Held {
    let pages = (first_page..len.div_ceil(PAGE_TOKENS)).map(|i| Arc::new(vec![i as u8; 640]));
    Held { state: Arc::new(vec![seed as u8; 1000]), pages: pages.collect() }
}

#[test]
fn what_host_memory_drops_is_read_from_its_file() {
    let disk = tempfile::tempdir().unwrap();
    // Room for two states of two pages each.
    let mut levels = Levels::open(2 * (1000 + 2 * 640), Some(disk.path()));
    let files: Vec<FileId> =
        (1..4).map(|seed| levels.save(u64::from(seed), seed, 100).unwrap()).collect();
    let used = levels.saves.in_use();
    assert_eq!((used.host_prefixes, used.files), (2, 3));
    assert_eq!(levels.load(files[2], 0), Some((Level::Host, state(3, 100, 0))));
    assert_eq!(levels.load(files[2], 1), Some((Level::Host, state(3, 100, 1))));
    // Read with all its pages, it lies in host memory again; without the first it cannot.
    assert_eq!(levels.load(files[0], 1), Some((Level::Disk, state(1, 100, 1))));
    assert_eq!(levels.load(files[0], 0), Some((Level::Disk, state(1, 100, 0))));
    assert_eq!(levels.load(files[0], 0), Some((Level::Host, state(1, 100, 0))));
    assert_eq!(levels.saves.give_way(PressureLevel::Critical), 2);
    assert_eq!(levels.gone(), []);
    assert_eq!(levels.load(files[2], 0), Some((Level::Disk, state(3, 100, 0))));
    levels.saves.remove(files[2]);
    assert_eq!(levels.load(files[2], 0), None);
    assert_eq!(levels.saves.in_use().files, 2);
}

#[test]
fn without_files_what_gives_way_is_gone() {
    let mut levels = Levels::open(2 * (1000 + 2 * 640), None);
    let files: Vec<FileId> =
        (1..3).map(|seed| levels.save(u64::from(seed), seed, 100).unwrap()).collect();
    // Three pages do not fit beside another; the one that was used last stays longest.
    assert!(levels.load(files[0], 0).is_some());
    assert_eq!(levels.read_out(3, 3, 100), Some(0));
    levels.saves.commit();
    let told = levels.told();
    assert!(
        matches!(told[..], [News::Gone(gone), News::Saved(Ticket(3), Some(_))] if gone == files[1])
    );
    assert_eq!(levels.saves.give_way(PressureLevel::Warning), 1);
    assert_eq!(levels.gone(), [files[0]]);
    assert_eq!(levels.load(files[0], 0), None);
    // Far too long: refused before anything is read out, and nothing gives way to it.
    assert_eq!(levels.read_out(4, 4, 1000), None);
    assert_eq!(levels.saves.in_use().host_prefixes, 1);
}

#[test]
fn pages_that_a_level_has_are_not_read_out_again() {
    let disk = tempfile::tempdir().unwrap();
    let mut levels = Levels::open(1 << 20, Some(disk.path()));
    levels.save(1, 1, 128).unwrap();
    assert_eq!(levels.read_out(2, 1, 200), Some(2));
    // Nor those of the same step.
    assert_eq!(levels.read_out(3, 1, 300), Some(3));
    levels.saves.commit();
    assert_eq!(levels.told().len(), 2);
    // Files have them, host memory does not.
    levels.saves.give_way(PressureLevel::Critical);
    assert_eq!(levels.read_out(4, 1, 310), Some(0));
    levels.saves.commit();
    levels.told();
    let used = levels.saves.in_use();
    assert_eq!((used.host_prefixes, used.files), (1, 4));
}

#[test]
fn of_a_step_that_failed_nothing_is_kept() {
    let disk = tempfile::tempdir().unwrap();
    let mut levels = Levels::open(1 << 20, Some(disk.path()));
    levels.read_out(1, 1, 100);
    levels.read_out(2, 2, 100);
    levels.saves.roll_back();
    let told = levels.told();
    let lost = |news: &News| matches!(news, News::Saved(_, None));
    assert!(told.len() == 2 && told.iter().all(lost));
    assert_eq!(levels.saves.in_use(), SavedUse::default());
    // Not even its pages are taken to be there.
    assert_eq!(levels.read_out(3, 1, 100), Some(0));
}

#[test]
fn a_damaged_file_behind_host_memory_is_noticed_when_it_is_needed() {
    let disk = tempfile::tempdir().unwrap();
    let mut levels = Levels::open(1 << 20, Some(disk.path()));
    let file = levels.save(1, 1, 100).unwrap();
    for folder in std::fs::read_dir(disk.path()).unwrap() {
        for entry in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "calla") {
                let mut bytes = std::fs::read(&path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
    }
    assert_eq!(levels.load(file, 0), Some((Level::Host, state(1, 100, 0))));
    levels.saves.give_way(PressureLevel::Critical);
    assert_eq!(levels.load(file, 0), None);
    assert_eq!(levels.saves.in_use(), SavedUse::default());
}

/// KV pages are smaller than what the allocator maps by itself once it has freed one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn what_host_memory_took_goes_back_to_the_system() {
    const PAGE: usize = 1_310_720;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        1024 * line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let sizes = Sizes { state_bytes: 8, page_bytes: PAGE, page_tokens: PAGE_TOKENS };
    let (sender, _events) = channel();
    let levels = CacheLevels { host_bytes: 1 << 30, store: None };
    let (mut saves, _) = Saves::open(levels, sizes, Events::new(sender, Arc::new(|| {}))).unwrap();
    // From now on the allocator keeps what is not larger than this.
    drop(std::hint::black_box(vec![1_u8; 2 * PAGE]));
    let save = save(1, 1, 60 * PAGE_TOKENS);
    let pages = (0..60).map(|i| Arc::new(vec![i as u8 + 1; PAGE])).collect();
    let given = Held { state: Arc::new(vec![0; 8]), pages };
    saves.take(&save, 0, given.clone());
    saves.commit();
    // Something behind them keeps the heap from shrinking by itself.
    let behind = std::hint::black_box(vec![1_u8; PAGE]);
    drop(given);
    let before = resident();
    assert_eq!(saves.give_way(PressureLevel::Critical), 1);
    let freed = before.saturating_sub(resident());
    assert!(freed > 55 * PAGE, "{freed} bytes of {}", 60 * PAGE);
    drop(behind);
}
