//! What every transport promises, tested the same way on each: matching, landing, cancelling, failing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cancelling;
mod carrying;
mod disagreeing;
mod ending;
mod landing;
mod mixed;
mod opening;

use hexagram_physical::dtype::DType;
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::operation::{Operation, Poison, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::testing::{cases, spawn, spawn_hosts};
use hexagram_physical::transport::{Label, Land, Source};
use hexagram_physical::{Buffer, Transport, TransportKind, World, drive};
use std::rc::Rc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// An endpoint with what its operations need.
struct End {
    transport: Rc<dyn Transport>,
    poison: Poison,
    deadline: Duration,
    world: World,
}

impl End {
    fn new(world: World) -> Self {
        let transport = world.open(0).unwrap();
        End { transport, poison: Poison::default(), deadline: LONG, world }
    }

    fn terms(&self) -> Terms<'_> {
        Terms { transport: &*self.transport, poison: &self.poison, deadline: self.deadline }
    }

    fn send(&self, to: usize, label: Label, buffer: &Buffer) -> Operation<'_> {
        let ticket = self.transport.post_send(to, label, buffer.read(0..buffer.len()).unwrap());
        Operation::new(self.terms(), ticket, Source::Rank(to), label)
    }

    fn recv(&self, source: Source, label: Label, buffer: &Buffer, land: Land) -> Operation<'_> {
        let view = buffer.write(0..buffer.len()).unwrap();
        let ticket = self.transport.post_recv(source, label, view, land);
        Operation::new(self.terms(), ticket, source, label)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        drive::block_on(&*self.transport, future)
    }

    fn rank(&self) -> usize {
        self.transport.rank()
    }
}

fn label(sequence: u64, step: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, 0, sequence, step).unwrap(), fingerprint }
}

/// The only message of a lane.
fn on_lane(lane: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, lane, 0, 0).unwrap(), fingerprint }
}

/// Elements that tell sender, message and position apart.
fn numbers(rank: usize, message: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (rank * 31 + message * 7) as f32 + i as f32 * 0.5).collect()
}

/// Opens the endpoints of a world's ranks and has all of them wait for the last: nobody errs while others are still opening
/// theirs, who then could not. Ranks that MPI started are other processes, which open together anyway.
fn opening(transport: TransportKind, ranks: usize) -> impl Fn(World) -> End + Sync {
    let here = if TransportKind::ALL.contains(&transport) { ranks } else { 1 };
    let open = std::sync::Barrier::new(here);
    move |world| {
        let end = End::new(world);
        open.wait();
        end
    }
}

/// On every transport, and on the mixed one also with the ranks spread over two hosts, alternately.
fn on_all(ranks: &[usize], test: impl Fn(End) + Sync) {
    for (transport, ranks) in cases(ranks) {
        let open = opening(transport, ranks);
        spawn(transport, ranks, |world| test(open(world)));
        if transport == TransportKind::Mixed {
            let hosts: Vec<usize> = (0..ranks).map(|rank| rank % 2).collect();
            spawn_hosts(&hosts, |world| test(open(world)));
        }
    }
}
