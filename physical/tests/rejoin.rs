//! Ranks join and leave world after world in one process, as in a program with many process groups; no world may
//! leave anything behind. In a separate process, whose descriptors and threads it counts.

use hexagram_physical::testing::{SharedMap, in_own_process, skipped_under_mpi};
use hexagram_physical::{JoinOptions, TransportKind, World};
use std::fs;
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const WORLDS: usize = 120;

/// Open resources of a process, by kind. Joined threads may stay in the system for a moment.
#[derive(Debug, Clone, Copy)]
struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Held {
    fn now() -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let is_shared =
            |line: &&str| line.contains("memfd") || line.contains("/dev/shm") || line.contains("hexagram");
        Held {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: maps.lines().filter(is_shared).count(),
        }
    }

    /// Returns true if there is more of any kind than before; resources counted then may have been removed since.
    fn exceeds(&self, before: &Held) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.mappings > before.mappings
    }
}

/// Joins a world, opens two channels, and leaves.
fn join_and_leave(store: &SharedMap, transport: TransportKind) {
    let options = JoinOptions { transport, deadline: Duration::from_secs(60), ..JoinOptions::default() };
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let options = &options;
            scope.spawn(move || {
                let world = World::join_through(store, rank, RANKS, options).unwrap();
                let endpoints = [0, 1].map(|channel| world.open(channel).unwrap());
                assert!(endpoints.iter().all(|endpoint| endpoint.size() == RANKS));
            });
        }
    });
}

#[test]
fn nothing_is_left_of_worlds_that_have_ended() {
    in_own_process("rejoin::nothing_is_left_of_worlds_that_have_ended", || {
        if skipped_under_mpi("its ranks are threads") {
            return;
        }
        let store = SharedMap::default();
        let transports = [TransportKind::Shm, TransportKind::Tcp, TransportKind::Mixed];
        transports.into_iter().for_each(|transport| join_and_leave(&store, transport));
        let before = Held::now();
        for transport in transports {
            (0..WORLDS).for_each(|_| join_and_leave(&store, transport));
        }
        let end = Instant::now() + Duration::from_secs(30);
        let mut after = Held::now();
        while after.exceeds(&before) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            after = Held::now();
        }
        assert!(!after.exceeds(&before), "{after:?}, where there was {before:?}");
    });
}
