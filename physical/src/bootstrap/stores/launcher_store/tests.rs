//! Ranks that meet through the store of a launcher; written values are visible only after a fence.

use super::*;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};

/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of ranks.
const SIZE: usize = 3;

/// Launcher of some ranks: the written values, and those visible since the last fence.
struct Launcher {
    written: Mutex<BTreeMap<(usize, String), String>>,
    readable: Mutex<BTreeMap<(usize, String), String>>,
    fence: Barrier,
}

/// A rank of it.
struct Rank(Arc<Launcher>, usize);

impl Manager for Rank {
    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        assert!(!value.contains([' ', '=']), "a value is one word: {value}");
        self.0.written.lock().unwrap().insert((self.1, key.to_owned()), value.to_owned());
        Ok(())
    }

    fn fence(&mut self, _: Duration) -> io::Result<()> {
        if self.0.fence.wait().is_leader() {
            *self.0.readable.lock().unwrap() = self.0.written.lock().unwrap().clone();
        }
        self.0.fence.wait();
        Ok(())
    }

    fn get(&mut self, owner: usize, key: &str, _: Duration) -> io::Result<String> {
        let found = self.0.readable.lock().unwrap().get(&(owner, key.to_owned())).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Joins as each rank, with its options; returns each rank's view of its world.
fn joined(options: &[JoinOptions]) -> Vec<Result<(usize, usize)>> {
    let launcher = Arc::new(Launcher {
        written: Mutex::default(),
        readable: Mutex::default(),
        fence: Barrier::new(SIZE),
    });
    let join = |rank: usize, options: &JoinOptions| {
        let store = LauncherStore::over(Box::new(Rank(Arc::clone(&launcher), rank)), 3, PATIENCE);
        let world = World::join_through(&store, rank, SIZE, options);
        store.finish();
        let world = world?;
        world.open(0)?;
        Ok((world.local_rank(), world.local_size()))
    };
    std::thread::scope(|scope| {
        let join = &join;
        let ranks =
            options.iter().enumerate().map(|(rank, options)| scope.spawn(move || join(rank, options)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn options() -> JoinOptions {
    JoinOptions { transport: TransportKind::Tcp, deadline: PATIENCE, ..JoinOptions::default() }
}

#[test]
fn ranks_meet_by_two_fences() {
    let places: Result<Vec<_>> = joined(&vec![options(); SIZE]).into_iter().collect();
    assert_eq!(places.unwrap(), [(0, 3), (1, 3), (2, 3)]);
}

#[test]
fn a_rank_that_cannot_join_is_named_on_all_others() {
    for bad in 0..SIZE {
        let mut all = vec![options(); SIZE];
        all[bad].interface = Some("no-such-0".into());
        for error in joined(&all) {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("no-such-0"), "rank {bad}: {error}");
        }
    }
}

#[test]
fn bytes_are_one_word() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&hex(&bytes)).unwrap(), bytes);
    for text in ["0", "0g", "+f", "é"] {
        assert!(from_hex(text).is_err(), "{text}");
    }
}
