//! Channels that are opened: once each, apart from each other, with ranks and not with foreign connections.

use super::{End, label};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, TransportKind};

#[test]
fn a_world_that_cannot_open_a_channel_says_whose_fault_it_is() {
    if skipped_under_mpi("it is about connecting") {
        return;
    }
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = spawn(transport, 4, |world| {
            if world.rank() == 1 {
                world.health().fail_self("gave up before it opened");
                return None;
            }
            // Over tcp a connection may be made before the other side looks at it; then the first operation fails.
            world.open(0).err().map(|error| error.to_string())
        });
        assert!(errors[0].is_some(), "rank 1 never called rank 0");
        for error in errors.into_iter().flatten() {
            assert!(error.contains("rank 1") && error.contains("before it opened"), "{transport}: {error}");
        }
    }
}

#[test]
fn foreign_connections_to_the_data_port_neither_delay_nor_enter() {
    if skipped_under_mpi("it is about sockets") {
        return;
    }
    spawn(TransportKind::Tcp, 2, |world| {
        // Every listening socket of this process, as a port scan would find.
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let listening = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let ports = listening.filter_map(|line| line.split_whitespace().nth(1)?.rsplit_once(':'));
        let ports: Vec<u16> = ports.filter_map(|(_, port)| u16::from_str_radix(port, 16).ok()).collect();
        let foreign: Vec<_> =
            ports.iter().filter_map(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).ok()).collect();
        assert!(!foreign.is_empty());
        let mut scanner = foreign[0].try_clone().unwrap();
        let _ = std::io::Write::write_all(&mut scanner, &[0; 200]);
        let end = End::new(world);
        let out = Buffer::from_slice(&[1f32]).unwrap();
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        let peer = 1 - end.rank();
        let send = end.send(peer, label(0, 0, 1), &out);
        end.wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, ReceiveMode::Copy)).unwrap();
        end.wait(send).unwrap();
        drop(foreign);
    });
}
