//! Messages of every length, on every lane and socket, arrive as they were sent.

use super::{End, label, numbers, on_lane};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn_as};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, JoinOptions, TransportKind};

#[test]
fn several_sockets_carry_one_stream() {
    if skipped_under_mpi("it is about sockets") {
        return;
    }
    const LEN: usize = (1 << 20) + 3;
    let with = |sockets| {
        let sockets = Some(sockets);
        JoinOptions { transport: TransportKind::Tcp, sockets, ..JoinOptions::default() }
    };
    // Of two ranks that differ, the lower number holds.
    spawn_as(&[with(3), with(2), with(4)], |world| {
        let end = End::new(world);
        let size = end.transport.size();
        let label = label(0, 0, LEN);
        let out = Buffer::from_slice(&numbers(end.rank(), 0, LEN)).unwrap();
        let into: Vec<_> = (0..size).map(|_| Buffer::zeroed(DType::F32, LEN).unwrap()).collect();
        let sends: Vec<_> = (0..size).map(|peer| end.send(peer, label, &out)).collect();
        for (peer, into) in into.iter().enumerate() {
            end.wait(end.recv(Source::Rank(peer), label, into, ReceiveMode::Copy)).unwrap();
            assert!(*into.host::<f32>().unwrap() == numbers(peer, 0, LEN), "from {peer}");
        }
        end.wait(async {
            for send in sends {
                send.await.unwrap();
            }
        });
        give_up_and_send_another(&end, &out);
    });
}

/// The transport completes a send given up half-way without its caller, on all sockets, so that the next one arrives.
fn give_up_and_send_another(end: &End, out: &Buffer) {
    let rank = end.rank();
    let size = end.transport.size();
    let next = (rank + 1) % size;
    let previous = (rank + size - 1) % size;
    let view = out.read(0..out.len()).unwrap();
    let ticket = end.transport.post_send(next, label(1, 0, out.len()), view);
    end.transport.cancel(ticket);
    let last = on_lane(1, 1);
    let one = Buffer::from_slice(&[7f32]).unwrap();
    let got = Buffer::zeroed(DType::F32, 1).unwrap();
    let send = end.send(next, last, &one);
    end.wait(end.recv(Source::Rank(previous), last, &got, ReceiveMode::Copy)).unwrap();
    end.wait(send).unwrap();
    assert_eq!(got.host::<f32>().unwrap()[0], 7.0);
}
