//! Mixed worlds: the link of each pair, and the endpoint of each kind of world.

use crate::backends::shm::refuse_to_map;
use crate::memory::dtype::DType;
use crate::testing::{spawn_as, spawn_hosts};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source};
use crate::world::JoinOptions;
use crate::{Buffer, Error, Transport, TransportKind, World};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

#[test]
fn a_world_of_one_host_is_one_of_shared_memory() {
    let native = |hosts: &[usize]| {
        spawn_hosts(hosts, |world| {
            let endpoint = world.open(0).unwrap();
            (endpoint.kind(), endpoint.native().is_some())
        })
    };
    assert_eq!(native(&[0, 0, 0]), [(TransportKind::Shm, true); 3]);
    assert_eq!(native(&[0]), [(TransportKind::Shm, true)]);
    assert_eq!(native(&[0, 1]), [(TransportKind::Mixed, false); 2]);
    assert_eq!(native(&[0, 1, 0]), [(TransportKind::Mixed, false); 3]);
}

/// Sends a byte to every other rank and receives one from each. Returns the ranks to which it went by TCP.
fn greet_all(world: &World, endpoint: &dyn Transport) -> Vec<usize> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 1);
    let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
    let peers = || (0..world.size()).filter(|peer| *peer != world.rank());
    let by_tcp = || world.traffic().bytes_sent_by(TransportKind::Tcp);
    let mut tickets = Vec::new();
    let mut to = Vec::new();
    let mut buffers = Vec::new();
    for peer in peers() {
        let mine = Buffer::from_slice(&[7u8]).unwrap();
        let theirs = Buffer::zeroed(DType::U8, 1).unwrap();
        let before = by_tcp();
        tickets.push(endpoint.post_send(peer, label, mine.read(0..1).unwrap()));
        if by_tcp() > before {
            to.push(peer);
        }
        let view = theirs.write(0..1).unwrap();
        tickets.push(endpoint.post_recv(Source::Rank(peer), label, view, ReceiveMode::Copy));
        buffers.push(theirs);
    }
    let mut context = Context::from_waker(Waker::noop());
    for ticket in tickets {
        let started = Instant::now();
        while endpoint.poll(ticket, &mut context).map(Result::unwrap).is_pending() {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing came");
            endpoint.progress();
        }
    }
    assert!(buffers.iter().all(|buffer| buffer.host::<u8>().unwrap()[0] == 7));
    to
}

#[test]
fn memory_goes_to_those_who_share_it_and_sockets_to_everyone_else() {
    let by_tcp = spawn_hosts(&[0, 1, 0, 1, 2], |world| greet_all(&world, &*world.open(0).unwrap()));
    assert_eq!(by_tcp, [vec![1, 3, 4], vec![0, 2, 4], vec![1, 3, 4], vec![0, 2, 4], vec![0, 1, 2, 3]]);
}

#[test]
fn a_pair_that_cannot_map_its_memory_takes_tcp_and_all_ranks_know() {
    let ranks = spawn_hosts(&[0, 0, 0], |world| {
        if world.rank() == 2 {
            refuse_to_map(0);
        }
        let endpoint = world.open(0).unwrap();
        (endpoint.kind(), endpoint.native().is_some(), greet_all(&world, &*endpoint))
    });
    let mixed = |by_tcp| (TransportKind::Mixed, false, by_tcp);
    assert_eq!(ranks, [mixed(vec![2]), mixed(vec![]), mixed(vec![0])]);
}

#[test]
fn shared_memory_alone_refuses_a_pair_that_cannot_map_its_memory_on_every_rank() {
    let options = JoinOptions { transport: TransportKind::Shm, ..JoinOptions::default() };
    let texts = spawn_as(&vec![options; 3], |world| {
        if world.rank() == 2 {
            refuse_to_map(0);
        }
        world.open(0).err().map_or_else(String::new, |error| error.to_string())
    });
    for (rank, text) in texts.iter().enumerate() {
        let names = text.contains("rank 0 ") && text.contains("rank 2 ");
        assert!(names && text.contains("share no memory on channel 0"), "rank {rank}: {text}");
    }
}

#[test]
fn shared_memory_alone_does_not_reach_another_host() {
    let on = |host: &str| JoinOptions {
        transport: TransportKind::Shm,
        host: Some(host.to_owned()),
        deadline: std::time::Duration::from_secs(5),
        ..JoinOptions::default()
    };
    let outcome = std::panic::catch_unwind(|| spawn_as(&[on("one"), on("other")], |_| ()));
    let panic = outcome.unwrap_err();
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("cannot join") && text.contains("cannot share memory"), "{text}");
}

#[test]
fn more_sockets_than_make_sense_are_refused() {
    for sockets in [0, 17] {
        let options = JoinOptions { sockets: Some(sockets), ..JoinOptions::default() };
        let error = options.sockets().unwrap_err();
        assert!(matches!(&error, Error::Setup { .. }), "{error}");
        assert!(error.to_string().contains("use 1 to 16"), "{error}");
    }
}
