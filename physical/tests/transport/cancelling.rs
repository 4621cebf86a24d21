//! Operations that are given up, or dropped: their memory is free, and the streams stay intact.

use super::{label, numbers, on_lane, open_together};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, TransportKind};

#[test]
fn a_send_cancelled_half_way_leaves_the_stream_whole() {
    if skipped_under_mpi("it is about streams") {
        return;
    }
    // Only streams have a half-way.
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let open = open_together(transport, 2);
        spawn(transport, 2, |world| {
            let end = open(world);
            const LARGE: usize = 8 << 20;
            let small = on_lane(1, 3);
            if end.rank() == 0 {
                let out = Buffer::from_slice(&numbers(0, 0, LARGE)).unwrap();
                let ticket = end.transport.post_send(1, label(0, 0, LARGE), out.read(0..LARGE).unwrap());
                end.transport.cancel(ticket);
                assert!(end.transport.kind() == transport);
                drop(out);
                let out = Buffer::from_slice(&[1.0f32, 2.0, 3.0]).unwrap();
                end.wait(end.send(1, small, &out)).unwrap();
            } else {
                let into = Buffer::zeroed(DType::F32, 3).unwrap();
                end.wait(end.recv(Source::Rank(0), small, &into, ReceiveMode::Copy)).unwrap();
                assert_eq!(*into.host::<f32>().unwrap(), [1.0, 2.0, 3.0]);
            }
        });
    }
}
