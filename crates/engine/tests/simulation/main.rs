//! Random schedules of requests on a toy backend, each reproducible from its seed.
//!
//! Arrivals, cancels, branches, edits, evictions, restarts, drafts, grammars, faults of the device and of the
//! disk at random; after each, the engine's promises are checked: every reply equals that of a cold run, no
//! token is lost or doubled, pages and slots balance to zero, budgets hold, progress is made.
//! `CALLA_SIMULATIONS=1000000` runs a long campaign on all cores.

mod agent_loop;
mod cold;
mod files;
mod multi_step;
mod pace;
mod random;
mod requests;
mod toy;
mod world;

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Tallies, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn random_schedules_keep_every_promise() {
    let count = number("CALLA_SIMULATIONS", 2000);
    let first = number("CALLA_SIMULATION_SEED", 1);
    let total = Mutex::new(Tallies::default());
    let next = AtomicU64::new(first);
    let worker = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= first + count {
            return;
        }
        match catch_unwind(|| World::new(seed).run(20)) {
            Ok(tallies) => total.lock().unwrap().add(&tallies),
            Err(cause) => {
                eprintln!("CALLA_SIMULATION_SEED={seed} CALLA_SIMULATIONS=1 repeats this");
                resume_unwind(cause);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(worker);
        }
    });
    let total = total.into_inner().unwrap();
    println!("{count} schedules: {:?}", total.named());
    // A simulation that never reaches a case proves nothing about it.
    for (name, reached) in total.named() {
        assert!(reached >= count / 20, "{name}: {reached}");
    }
}
