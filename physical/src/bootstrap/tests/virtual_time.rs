//! Start-up and heartbeats in virtual time, by the production code: minutes take milliseconds here, and every run is
//! the same.

use crate::bootstrap::hosts::WorldHosts;
use crate::bootstrap::meeting::rendezvous_member::ControlStreams;
use crate::bootstrap::sockets::stream::RankStream;
use crate::bootstrap::variables::{Launcher, Placement};
use crate::bootstrap::*;
use crate::control::Control;
use crate::control::health::Health;
use crate::error::Peer;
use crate::runtime;
use crate::runtime::VirtualTime;
use crate::testing::rendezvous;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

/// Joins as `present` of `size` ranks and keeps the worlds until all have joined. Returns their errors, and the time
/// of the last.
fn join(present: usize, size: usize, deadline: Duration) -> (Vec<Option<String>>, Duration) {
    let place = rendezvous();
    VirtualTime::run(|| {
        let start = runtime::now();
        let (outcomes, outcome) = mpsc::channel();
        for rank in 0..present {
            let rendezvous = place.clone();
            let launcher = Launcher::Hexagram;
            let secret = b"test".to_vec();
            let placement =
                Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
            let transport = TransportKind::Tcp;
            let options = JoinOptions { transport, deadline, ..JoinOptions::default() };
            let outcomes = outcomes.clone();
            let join = move || {
                let joined = World::join_as(&placement, &options);
                let _ = outcomes.send((rank, joined.as_ref().err().map(ToString::to_string)));
                // Rank 0 stays for the others.
                drop(joined);
            };
            runtime::spawn("hexagram-test", join).unwrap();
        }
        let mut ended: Vec<_> = (0..present).map(|_| runtime::receive(&outcome).unwrap()).collect();
        ended.sort_unstable();
        (ended.into_iter().map(|(_, error)| error).collect(), start.elapsed())
    })
}

#[test]
fn ranks_join_in_virtual_time() {
    let (errors, took) = join(3, 3, Duration::from_secs(60));
    assert_eq!(errors, [None, None, None]);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_rank_that_never_comes_is_missed_after_a_minute_of_virtual_time() {
    let real = std::time::Instant::now();
    let (errors, took) = join(2, 3, Duration::from_secs(60));
    for error in errors {
        let error = error.unwrap();
        assert!(error.contains("rank 2 of 3 did not join within 60s"), "{error}");
    }
    assert!((60..65).contains(&took.as_secs()), "{took:?}");
    assert!(real.elapsed() < Duration::from_secs(300));
}

/// Returns the time after which rank 0 gives up a rank that holds its connection and is silent, and its error.
fn silence() -> (Duration, String) {
    VirtualTime::run(|| {
        let start = runtime::now();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = Arc::new(Health::new(0, (0..2).map(peer).collect()));
        let hosts = Arc::new(WorldHosts::new(0, &[]));
        let streams = ControlStreams::Leader(vec![None, Some(RankStream::Local(ours))]);
        let control = Control::start(0, streams, &health, &hosts, None).unwrap();
        while health.verdict().is_none() {
            runtime::sleep(Duration::from_millis(1));
        }
        let verdict = health.verdict().unwrap();
        assert_eq!(verdict.culprit.rank, 1);
        let given_up = start.elapsed();
        drop(control);
        (given_up, verdict.cause.clone())
    })
}

#[test]
fn a_silent_rank_is_judged_at_the_same_moment_in_every_run() {
    let (after, cause) = silence();
    let tolerance = crate::control::health::HeartbeatOptions::default().tolerance();
    assert!((tolerance..tolerance + Duration::from_millis(50)).contains(&after), "{after:?}");
    assert!(cause.contains("has been silent for 4.4 s"), "{cause}");
    assert!((0..5).all(|_| silence() == (after, cause.clone())));
}
