//! Hundreds of ranks that come to the meeting in the same instant, while strangers connect there and keep silent. Alone
//! in its file, and so in its process: it takes thousands of descriptors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram_physical::bootstrap::{Launcher, Meeting, Placement};
use hexagram_physical::{JoinOptions, TransportKind, Vigilance, World};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Threads of one process; beside the strangers they take up its descriptors.
const RANKS: usize = 300;
const STRANGERS: usize = 2000;
const LONG: Duration = Duration::from_secs(120);

fn join(rank: usize, size: usize, port: u16) -> hexagram_physical::Result<World> {
    let meeting = Meeting::Tcp { host: "127.0.0.1".into(), port, agent: false };
    let (secret, launcher) = (b"secret".to_vec(), Launcher::Hexagram);
    let placement = Placement { rank, size, local_rank: rank, local_size: size, meeting, secret, launcher };
    let vigilance = Some(Vigilance { silence: LONG, ..Vigilance::default() });
    let (transport, deadline) = (TransportKind::Tcp, LONG);
    World::join_as(&placement, &JoinOptions { transport, deadline, vigilance, ..JoinOptions::default() })
}

/// Connects, and says nothing.
fn strangers(port: u16) -> Vec<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    (0..STRANGERS).filter_map(|_| TcpStream::connect_timeout(&address, LONG).ok()).collect()
}

fn together(size: usize) -> Duration {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (start, joined) = (Barrier::new(size), Barrier::new(size));
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (start, joined) = (&start, &joined);
            move || {
                start.wait();
                let since = Instant::now();
                let world = join(rank, size, port);
                let took = since.elapsed();
                // Nobody leaves before all are there.
                joined.wait();
                world.map(|world| assert_eq!(world.size(), size)).map(|()| took)
            }
        };
        let ranks: Vec<_> = (0..size).map(|number| scope.spawn(rank(number))).collect();
        let silent = scope.spawn(|| strangers(port));
        let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        drop(silent.join());
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} of {size} failed, such as: {}", failed.len(), failed[0]);
        outcomes.into_iter().flatten().max().unwrap_or_default()
    })
}

#[test]
fn ranks_that_come_together_all_join() {
    for size in [128, RANKS] {
        println!("{size} ranks joined within {:.2?}", together(size));
    }
}
