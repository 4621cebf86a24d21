//! Promises of every transport, as tests that any transport can be put through: matching, landing, cancelling, failing.

#![allow(clippy::disallowed_methods, reason = "the tests run on the system")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue has failed")]

pub mod cancelling;
pub mod carrying;
pub mod disagreeing;
pub mod ending;
pub mod landing;
pub mod opening;

use super::{cases, spawn, spawn_hosts};
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source};
use crate::waiting::drive;
use crate::{Buffer, Transport, TransportKind, World};
use std::rc::Rc;
use std::time::Duration;

/// Deadline of an operation that must succeed.
pub const LONG: Duration = Duration::from_secs(60);

/// Creates a test for each promise in [`testing::transport`](crate::testing::transport), over the transports of a
/// [`Matrix`](crate::testing::transport::Matrix).
///
/// ```no_run
/// use hexagram_physical::TransportKind;
/// use hexagram_physical::testing::transport::Matrix;
///
/// hexagram_physical::transport_matrix!(Matrix::Only(TransportKind::Shm));
/// ```
#[macro_export]
macro_rules! transport_matrix {
    ($matrix:expr) => {
        $crate::transport_matrix!(@each $matrix;
            cancelling::a_cancelled_receive_is_never_written_and_its_memory_is_free_at_once,
            cancelling::a_leaked_operation_never_reaches_freed_memory,
            carrying::any_source_takes_each_sender_once,
            carrying::concurrent_tags_never_mix,
            carrying::every_transport_carries_every_length_on_concurrent_lanes,
            carrying::everyone_sends_to_everyone_at_every_length,
            carrying::operations_run_under_a_foreign_executor,
            carrying::traffic_counts_header_and_payload,
            disagreeing::a_message_of_another_size_is_an_error_that_prints_both_sizes,
            disagreeing::disagreement_is_an_error_that_prints_both_sides,
            disagreeing::nobody_answering_is_a_deadline_that_names_the_peer,
            ending::a_panicking_rank_is_the_culprit_on_every_other_rank,
            ending::a_rank_that_has_finished_is_named_by_those_who_wait_for_it,
            ending::what_was_sent_before_leaving_still_arrives,
            landing::messages_are_reduced_where_they_land,
            opening::channels_are_apart_and_open_once);
    };
    (@each $matrix:expr; $($area:ident::$test:ident),*) => {
        $(
            #[test]
            fn $test() {
                $crate::testing::transport::$area::$test(&$matrix);
            }
        )*
    };
}

/// The transports over which a test of the matrix runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// The transports of [`cases`]: the built-in ones, or that of MPI.
    BuiltIn,
    /// One, such as one that a program has registered.
    Only(TransportKind),
}

impl Matrix {
    /// Returns the transports, with each number of `ranks`.
    pub fn cases(&self, ranks: &[usize]) -> Vec<(TransportKind, usize)> {
        match self {
            Matrix::BuiltIn => cases(ranks),
            Matrix::Only(kind) => ranks.iter().map(|ranks| (*kind, *ranks)).collect(),
        }
    }

    /// Runs `test` on every rank, over every transport, and over the mixed one also with the ranks spread over two
    /// hosts, alternately.
    pub fn all(&self, ranks: &[usize], test: impl Fn(End) + Sync) {
        for (transport, ranks) in self.cases(ranks) {
            let open = open_together(transport, ranks);
            spawn(transport, ranks, |world| test(open(world)));
            if transport == TransportKind::Mixed {
                let hosts: Vec<usize> = (0..ranks).map(|rank| rank % 2).collect();
                spawn_hosts(&hosts, |world| test(open(world)));
            }
        }
    }
}

/// An endpoint with the context of its operations.
pub struct End {
    /// The endpoint.
    pub transport: Rc<dyn Transport>,
    /// Record of failures.
    pub poison: Poison,
    /// Longest time that nothing of an operation may move.
    pub deadline: Duration,
    /// The world that the endpoint is of.
    pub world: World,
}

impl End {
    /// Opens channel 0 of a world.
    pub fn new(world: World) -> Self {
        let transport = world.open(0).unwrap();
        End { transport, poison: Poison::default(), deadline: LONG, world }
    }

    /// Returns the context of an operation, except its ticket.
    pub fn terms(&self) -> OperationContext<'_> {
        OperationContext { transport: &*self.transport, poison: &self.poison, deadline: self.deadline }
    }

    /// Starts sending a whole buffer.
    pub fn send(&self, to: usize, label: Label, buffer: &Buffer) -> Operation<'_> {
        let ticket = self.transport.post_send(to, label, buffer.read(0..buffer.len()).unwrap());
        Operation::new(self.terms(), ticket, Source::Rank(to), label)
    }

    /// Starts receiving into a whole buffer.
    pub fn recv(&self, source: Source, label: Label, buffer: &Buffer, land: ReceiveMode) -> Operation<'_> {
        let view = buffer.write(0..buffer.len()).unwrap();
        let ticket = self.transport.post_recv(source, label, view, land);
        Operation::new(self.terms(), ticket, source, label)
    }

    /// Drives a future to its end on this thread.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        drive::block_on(&*self.transport, future)
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }
}

/// Creates the label of a message of `count` floats in lane 0.
pub fn label(sequence: u64, step: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, 0, sequence, step).unwrap(), fingerprint }
}

/// Creates the label of the only message of a lane.
pub fn on_lane(lane: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, lane, 0, 0).unwrap(), fingerprint }
}

/// Creates elements that identify sender, message and position.
pub fn numbers(rank: usize, message: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (rank * 31 + message * 7) as f32 + i as f32 * 0.5).collect()
}

/// Returns a function that opens the endpoint of a rank and waits until all have: no rank fails while others are
/// still opening theirs, which would then fail, too. Ranks that MPI started are separate processes, which open
/// together anyway.
pub fn open_together(transport: TransportKind, ranks: usize) -> impl Fn(World) -> End + Sync {
    let here = if transport == TransportKind::Mpi { 1 } else { ranks };
    let open = std::sync::Barrier::new(here);
    move |world| {
        let end = End::new(world);
        open.wait();
        end
    }
}
