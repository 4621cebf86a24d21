//! The counted payload: equal on every transport, for messages and for shared memory.

use hexagram_logical::codec::MinMax8;
use hexagram_logical::encoding::Encoding;
use hexagram_logical::testing::{TRANSPORTS, skipped_under_mpi, spawn};
use hexagram_logical::{Buffer, Communicator, DType, ReduceOp, Result, TransportKind};
use std::sync::Arc;

/// Elements of f32 from none to more than a ring carries: 650 are the 2,600 bytes of a small model.
const LENGTHS: [usize; 7] = [0, 1, 650, 4099, 16384, 65536, 65541];

/// Operations by name, on a buffer of this rank.
type Operation = (&'static str, fn(&Communicator, &mut Buffer) -> Result<()>);

const OPERATIONS: [Operation; 7] = [
    ("barrier", |comm, _| comm.blocking().barrier()),
    ("all_reduce", |comm, buffer| comm.block_on(comm.all_reduce(buffer, ReduceOp::Mean))),
    ("broadcast", |comm, buffer| comm.block_on(comm.broadcast(buffer, comm.size() - 1))),
    ("all_gather", |comm, buffer| {
        let mut all = Buffer::zeroed(DType::F32, buffer.len() * comm.size())?;
        comm.block_on(comm.all_gather(buffer, &mut all))
    }),
    ("reduce_scatter", |comm, buffer| {
        let all = Buffer::zeroed(DType::F32, buffer.len() * comm.size())?;
        comm.block_on(comm.reduce_scatter(&all, buffer, ReduceOp::Sum))
    }),
    ("all_to_all", |comm, buffer| {
        let mut all = Buffer::zeroed(DType::F32, buffer.len() * comm.size())?;
        let mine = Buffer::zeroed(DType::F32, buffer.len() * comm.size())?;
        comm.block_on(comm.all_to_all(&mine, &mut all))
    }),
    ("all_reduce_encoded", |comm, buffer| {
        let mut encoding = Encoding::new(Arc::new(MinMax8::default()));
        comm.block_on(comm.all_reduce_encoded(buffer, ReduceOp::Mean, &mut encoding))
    }),
];

/// Returns the bytes of all ranks together in each operation, by length.
fn payloads(transport: TransportKind, ranks: usize, registered: bool) -> Vec<(&'static str, usize, u64)> {
    let by_rank = spawn(transport, ranks, |comm| {
        let mut counted = Vec::new();
        for (name, operation) in OPERATIONS {
            for len in LENGTHS {
                let mut buffer = match registered {
                    true => comm.registered(DType::F32, len)?,
                    false => Buffer::zeroed(DType::F32, len)?,
                };
                let before = comm.world().traffic().payload_sent();
                operation(&comm, &mut buffer)?;
                counted.push((name, len, comm.world().traffic().payload_sent() - before));
            }
        }
        Ok(counted)
    });
    let mut sums = by_rank.unwrap().into_iter();
    let mut all = sums.next().unwrap();
    sums.for_each(|one| all.iter_mut().zip(one).for_each(|(sum, (_, _, bytes))| sum.2 += bytes));
    all
}

#[test]
fn every_transport_counts_the_same_payload_at_every_size() {
    if skipped_under_mpi("it compares the other transports") {
        return;
    }
    for ranks in [1, 2, 3, 4] {
        let expected = payloads(TransportKind::Thread, ranks, false);
        for transport in TRANSPORTS {
            for registered in [false, true] {
                let found = payloads(transport, ranks, registered);
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found, expected, "{transport} × {ranks}, registered {registered}");
                }
            }
        }
    }
}

#[test]
fn the_payload_is_that_of_the_formulas() {
    let all = payloads(TransportKind::Shm, 4, false);
    let of = |name: &str, len: usize| all.iter().find(|(it, at, _)| (*it, *at) == (name, len)).unwrap().2;
    // n (n−1) S of an exchange, 2 (n−1) S otherwise.
    assert_eq!(of("all_reduce", 650), 12 * 2600);
    assert_eq!(of("all_reduce", 16384), 6 * 65536);
    assert_eq!(of("all_gather", 650), 12 * 2600);
    assert_eq!(of("broadcast", 650), 3 * 2600);
    assert_eq!(of("barrier", 0), 0);
}
