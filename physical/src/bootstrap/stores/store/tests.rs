//! Ranks that meet through a store: on every transport, again and again, and without one of them.

use super::*;
use crate::control::health::HeartbeatOptions;
use crate::testing::SharedMap;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::sync::Mutex;

/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

const TRANSPORTS: [TransportKind; 3] = [TransportKind::Tcp, TransportKind::Shm, TransportKind::Mixed];

fn options(transport: TransportKind) -> JoinOptions {
    let heartbeat = Some(HeartbeatOptions { silence: PATIENCE, ..HeartbeatOptions::default() });
    JoinOptions { transport, deadline: PATIENCE, heartbeat, ..JoinOptions::default() }
}

/// Joins as a rank for each of these options, in a world of `size`. Returns the ranks' places on their hosts.
fn places(store: &SharedMap, size: usize, options: &[JoinOptions]) -> Vec<Result<(usize, usize)>> {
    let join = |(rank, options)| {
        let world = World::join_through(store, rank, size, options)?;
        world.open(0)?;
        Ok((world.local_rank(), world.local_size()))
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = options.iter().enumerate().map(|rank| scope.spawn(move || join(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_meet_again_and_again_through_the_same_keys_and_leave_none() {
    let store = SharedMap::default();
    for transport in TRANSPORTS {
        for size in [1, 2, 4, 2] {
            let found: Result<Vec<_>> =
                places(&store, size, &vec![options(transport); size]).into_iter().collect();
            let expected: Vec<_> = (0..size).map(|rank| (rank, size)).collect();
            assert_eq!(found.unwrap(), expected, "{transport}");
            assert!(store.keys().is_empty(), "{:?}", store.keys());
        }
    }
}

#[test]
fn places_on_hosts_are_counted_by_the_ranks_themselves() {
    let on = |host: &str| JoinOptions { host: Some(host.to_owned()), ..options(TransportKind::Mixed) };
    let found: Result<Vec<_>> =
        places(&SharedMap::default(), 4, &["a", "b", "a", "a"].map(on)).into_iter().collect();
    assert_eq!(found.unwrap(), [(0, 3), (0, 1), (1, 3), (2, 3)]);
}

#[test]
fn a_rank_that_is_not_there_is_named_at_the_deadline() {
    let short = JoinOptions { deadline: Duration::from_secs(2), ..options(TransportKind::Tcp) };
    let errors = places(&SharedMap::default(), 3, &[short.clone(), short]);
    let [leader, member] = [0, 1].map(|rank| errors[rank].as_ref().unwrap_err().to_string());
    assert!(leader.contains("find rank 2 of 3 in the store"), "{leader}");
    // It may be late, too.
    assert!(
        member.contains("find rank 2 of 3 in the store") || member.contains("find the address of rank 0"),
        "{member}"
    );
}

#[test]
fn two_ranks_0_are_told_so() {
    let store = SharedMap::default();
    let join = |deadline| {
        let options = JoinOptions { deadline, ..options(TransportKind::Tcp) };
        World::join_through(&store, 0, 2, &options).err().unwrap().to_string()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| join(Duration::from_secs(2)));
        // The second one writes its name over that of the first.
        store.get("hexagram/rank/0", PATIENCE).unwrap();
        let errors = [join(PATIENCE), first.join().unwrap()];
        assert!(errors.iter().all(|error| error.contains("are both rank 0 of this job")), "{errors:?}");
    });
}

#[test]
fn a_rank_that_cannot_join_is_named_on_all_others_at_once() {
    for bad in 0..3 {
        let mut all = vec![options(TransportKind::Tcp); 3];
        all[bad].interface = Some("no-such-0".into());
        for error in places(&SharedMap::default(), 3, &all) {
            let error = error.unwrap_err();
            assert!(
                matches!(&error, Error::Setup { .. }) && error.to_string().contains("no-such-0"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_store_that_holds_something_else_is_refused() {
    let store = SharedMap::default();
    store.put(&card(1), b"something else").unwrap();
    let error = World::join_through(&store, 0, 2, &options(TransportKind::Tcp)).map(drop).unwrap_err();
    assert!(error.to_string().contains("the entry of rank 1 in the store"), "{error}");
    let error = World::join_through(&store, 2, 2, &options(TransportKind::Tcp)).map(drop).unwrap_err();
    assert!(error.to_string().contains("rank 2 does not exist in a world of 2"), "{error}");
}

/// Store in which a value is there when it is asked for the second time, and that fails at the end of each wait before.
#[derive(Default)]
struct Late {
    waits: Mutex<Vec<Duration>>,
}

impl Store for Late {
    fn put(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn get(&self, _: &str, limit: Duration) -> io::Result<Vec<u8>> {
        let mut waits = self.waits.lock().unwrap();
        waits.push(limit);
        if waits.len() > 1 {
            return Ok(b"here".to_vec());
        }
        std::thread::sleep(limit);
        Err(io::ErrorKind::TimedOut.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_wait_that_was_told_goes_on_for_what_is_left() {
    let store = Late::default();
    let late = Duration::from_millis(600);
    let meeting = StoreMeeting { store: &store, rank: 1, size: 2, limit: PATIENCE, late };
    assert_eq!(meeting.get("key", PATIENCE, || "find the address of rank 0".into()).unwrap(), b"here");
    let waits = store.waits.lock().unwrap();
    assert_eq!((waits.len(), waits[0]), (2, late));
    assert!(waits[1] < PATIENCE, "{waits:?}");
}

#[test]
fn ranks_that_come_late_one_after_the_other_have_one_deadline_together() {
    let store = SharedMap::default();
    let limit = Duration::from_secs(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for rank in 1..4 {
                std::thread::sleep(Duration::from_secs(2));
                store.put(&card(rank), &present()).unwrap();
            }
        });
        let meeting = StoreMeeting { store: &store, rank: 0, size: 4, limit, late: limit };
        let error = meeting.meet(None).map(drop).unwrap_err().to_string();
        assert!(error.contains("of 4 in the store"), "{error}");
    });
}

#[test]
fn a_wait_without_time_left_is_not_told() {
    let store = Late::default();
    let late = Duration::from_millis(100);
    let meeting = StoreMeeting { store: &store, rank: 1, size: 2, limit: late, late };
    let error = meeting.get("key", late, || "find the address of rank 0".into()).unwrap_err().to_string();
    assert!(error.contains("find the address of rank 0 in the store"), "{error}");
    assert_eq!(store.waits.lock().unwrap().len(), 1);
}
