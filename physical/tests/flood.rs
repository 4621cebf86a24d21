//! Unauthenticated connections that flood every port of a job, while it starts and afterwards, only delay it. In a
//! separate process, since it connects to every listening port of this process.

use hexagram_physical::bootstrap::{Launcher, Placement, Rendezvous};
use hexagram_physical::dtype::DType;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::operation::{Operation, OperationContext, Poison};
use hexagram_physical::tag::Tag;
use hexagram_physical::testing::{free_port, in_own_process};
use hexagram_physical::transport::{Label, ReceiveMode, Source};
use hexagram_physical::{Buffer, JoinOptions, TransportKind, World, drive};
use std::collections::{HashSet, VecDeque};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const RANKS: usize = 3;
const LONG: Duration = Duration::from_secs(60);

/// Ports of 127.0.0.1 on which this process listens.
fn ports() -> Vec<u16> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = files.flatten().flat_map(|file| std::fs::read_link(file.path()));
    let mine: HashSet<String> = links.map(|link| link.display().to_string()).collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let listening = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let address = fields.get(1)?;
        let state = fields.get(3)?;
        let inode = fields.get(9)?;
        let ours = *state == "0A" && mine.contains(&format!("socket:[{inode}]"));
        ours.then(|| u16::from_str_radix(address.rsplit(':').next()?, 16).ok())?
    });
    listening.collect()
}

/// Bytes that unauthenticated connections send, in pieces.
const WORDS: [&[&[u8]]; 5] = [
    // A scanner that only checks whether a port is open, and one with a different protocol.
    &[],
    &[b"GET / HTTP/1.1\r\n\r\n"],
    // Greetings that begin well: one byte at a time, without an end, and without a proof.
    &[b"h", b"e", b"x", b"a"],
    &[b"hexagram\x02\0\0\0"],
    &[b"hexagram\x02\0\0\x000.1.0\0\0\0\0\0\0\0\0\0\0\0", &[7; 32], &[7; 32], &[255; 64]],
];

/// Connects to all ports again and again, and keeps the last connections open.
fn flood(stop: &AtomicBool, calls: &AtomicUsize) {
    let mut open = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        for port in ports().repeat(20) {
            let Ok(mut stream) = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), LONG) else {
                continue;
            };
            let call = calls.fetch_add(1, Ordering::Relaxed);
            stream.set_nonblocking(true).unwrap();
            // A rejected connection fails here.
            let _ = WORDS[call % WORDS.len()].iter().try_for_each(|piece| stream.write_all(piece));
            open.push_back(stream);
            if open.len() > 200 {
                drop(open.pop_front());
            }
        }
        std::thread::yield_now();
    }
}

/// Every rank sends its number to the next, over a channel that is opened here.
fn ring(world: &World, channel: u16) {
    let transport = world.open(channel).unwrap();
    let rank = world.rank();
    let poison = Poison::default();
    let terms = OperationContext { transport: &*transport, poison: &poison, deadline: LONG };
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::I32, 1);
    let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
    let mine = Buffer::from_slice(&[rank as i32]).unwrap();
    let theirs = Buffer::zeroed(DType::I32, 1).unwrap();
    let next = (rank + 1) % RANKS;
    let last = (rank + RANKS - 1) % RANKS;
    let send = transport.post_send(next, label, mine.read(0..1).unwrap());
    let recv = transport.post_recv(Source::Rank(last), label, theirs.write(0..1).unwrap(), ReceiveMode::Copy);
    for (ticket, peer) in [(send, next), (recv, last)] {
        let operation = Operation::new(terms, ticket, Source::Rank(peer), label);
        drive::block_on(&*transport, operation).unwrap();
    }
    assert_eq!(*theirs.host::<i32>().unwrap(), [last as i32]);
}

#[test]
fn a_flood_on_all_ports_delays_a_job_and_no_more() {
    in_own_process("flood::a_flood_on_all_ports_delays_a_job_and_no_more", || {
        let port = free_port();
        let stop = AtomicBool::new(false);
        let calls = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let floods: Vec<_> = (0..3).map(|_| scope.spawn(|| flood(&stop, &calls))).collect();
            let ranks: Vec<_> = (0..RANKS)
                .map(|rank| {
                    let rendezvous = Rendezvous::Tcp { host: "127.0.0.1".into(), port, agent: false };
                    let size = RANKS;
                    let secret = b"secret".to_vec();
                    let launcher = Launcher::Hexagram;
                    let local_rank = rank;
                    let local_size = size;
                    let placement =
                        Placement { rank, size, local_rank, local_size, rendezvous, secret, launcher };
                    let calls = &calls;
                    let transport = TransportKind::Tcp;
                    scope.spawn(move || {
                        // The flood reaches rank 0's port before the others connect.
                        while rank > 0 && calls.load(Ordering::Relaxed) < 1000 {
                            std::thread::yield_now();
                        }
                        let options = JoinOptions { transport, deadline: LONG, ..JoinOptions::default() };
                        let world = World::join_as(&placement, &options).unwrap();
                        for channel in 0..5 {
                            let before = calls.load(Ordering::Relaxed);
                            while calls.load(Ordering::Relaxed) < before + 300 {
                                std::thread::yield_now();
                            }
                            ring(&world, channel);
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
            stop.store(true, Ordering::Release);
            floods.into_iter().for_each(|flood| flood.join().unwrap());
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
    });
}
