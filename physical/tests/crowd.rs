//! Hundreds of ranks join in the same instant, with idle connections to their rendezvous. In a separate process,
//! since it needs thousands of descriptors.

use hexagram_physical::bootstrap::{Launcher, Placement, Rendezvous};
use hexagram_physical::testing::{free_port, in_own_process};
use hexagram_physical::{HeartbeatOptions, JoinOptions, TransportKind, World};
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the limit of open files allows them, as all are of one process.
const RANKS: usize = 300;
const IDLE_CONNECTIONS: usize = 1000;
/// Descriptors for each rank, without the idle connections.
const FILES: u64 = 20;
const LONG: Duration = Duration::from_secs(120);

fn join(rank: usize, size: usize, port: u16) -> hexagram_physical::Result<World> {
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: false };
    let secret = b"secret".to_vec();
    let launcher = Launcher::Hexagram;
    let placement =
        Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
    let heartbeat = Some(HeartbeatOptions { silence: LONG, ..HeartbeatOptions::default() });
    let transport = TransportKind::Tcp;
    let deadline = LONG;
    World::join_as(&placement, &JoinOptions { transport, deadline, heartbeat, ..JoinOptions::default() })
}

/// Connects at least this often, until the ranks have joined. Sends nothing, and keeps the last connections open.
fn connect_idly(port: u16, least: usize, joined: &AtomicBool) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut open = VecDeque::new();
    let mut called = 0;
    while called < least || !joined.load(Ordering::Acquire) {
        // There is no listener before rank 0's, or after the rendezvous.
        open.extend(TcpStream::connect_timeout(&address, LONG));
        called += 1;
        if open.len() > IDLE_CONNECTIONS {
            drop(open.pop_front());
        }
    }
}

/// Joins as `size` ranks in the same instant; how long the last took.
fn together(size: usize, idle_at_least: usize) -> Duration {
    let port = free_port();
    let start = Barrier::new(size);
    let joined = Barrier::new(size);
    std::thread::scope(|scope| {
        let rank = |rank| {
            let start = &start;
            let joined = &joined;
            move || {
                start.wait();
                let since = Instant::now();
                let world = join(rank, size, port);
                let took = since.elapsed();
                // No rank leaves before all have joined.
                joined.wait();
                world.map(|world| assert_eq!(world.size(), size)).map(|()| took)
            }
        };
        let ranks: Vec<_> = (0..size).map(|number| scope.spawn(rank(number))).collect();
        let all_joined = Arc::new(AtomicBool::new(false));
        let silent = std::thread::spawn({
            let all_joined = Arc::clone(&all_joined);
            move || connect_idly(port, idle_at_least, &all_joined)
        });
        let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        all_joined.store(true, Ordering::Release);
        silent.join().unwrap();
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} of {size} failed, such as: {}", failed.len(), failed[0]);
        outcomes.into_iter().flatten().max().unwrap_or_default()
    })
}

/// One after the other: together they would need more descriptors than some machines allow.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn ranks_that_come_together_all_join() {
    in_own_process("crowd::ranks_that_come_together_all_join", || {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = getrlimit(Resource::Nofile).maximum.map_or(RANKS, |files| (files / FILES) as usize);
        for size in [128, RANKS].map(|size| size.min(allowed)) {
            println!("{size} ranks joined within {:.2?}", together(size, IDLE_CONNECTIONS));
        }
    });
}

#[test]
fn a_flood_of_silent_connections_keeps_no_rank_out() {
    in_own_process("crowd::a_flood_of_silent_connections_keeps_no_rank_out", || {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..5 {
            println!("6 ranks joined within {:.2?}", together(6, 0));
        }
    });
}
