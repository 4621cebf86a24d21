//! A rank 0 that runs out of descriptors while others connect waits until it has some again. In a separate process,
//! since it uses all of them up.

use hexagram_physical::bootstrap::{Launcher, Placement, Rendezvous};
use hexagram_physical::testing::{free_port, in_own_process};
use hexagram_physical::{JoinOptions, TransportKind, World};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

fn join(rank: usize, port: u16) -> hexagram_physical::Result<World> {
    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: false };
    let size = 2;
    let secret = b"secret".to_vec();
    let launcher = Launcher::Hexagram;
    let placement =
        Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
    let transport = TransportKind::Tcp;
    let deadline = Duration::from_secs(60);
    World::join_as(&placement, &JoinOptions { transport, deadline, ..JoinOptions::default() })
}

/// Opens every descriptor that this process may still have, and returns them.
fn use_up() -> Vec<OwnedFd> {
    let limit = Rlimit { current: Some(200), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let mut all = vec![file];
    loop {
        match rustix::io::dup(&all[0]) {
            Ok(another) => all.push(another),
            Err(Errno::MFILE) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_rendezvous_survives_the_want_of_descriptors() {
    in_own_process("descriptors::a_rendezvous_survives_the_want_of_descriptors", || {
        let port = free_port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let rank_0 = std::thread::spawn(move || join(0, port));
        let patience = Instant::now() + Duration::from_secs(30);
        let mut other = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < patience, "{error}"),
            }
        };
        // Rank 0 rejects a peer with a different protocol; by then it has all descriptors for itself.
        other.write_all(&[0; 100]).unwrap();
        let _ = other.read(&mut [0]);
        let socket = |_| rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let callers: Vec<OwnedFd> = (0..20).map(socket).collect();
        let all = use_up();
        callers.iter().for_each(|caller| rustix::net::connect(caller, &address).unwrap());
        // Longer than rank 0 waits before it tries again.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!rank_0.is_finished(), "rank 0 gave up: {:?}", rank_0.join().unwrap().err());
        drop(all);
        join(1, port).unwrap();
        rank_0.join().unwrap().unwrap();
    });
}
