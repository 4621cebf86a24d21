//! Rings: bytes come out in the order they went in, across the wrap and under a racing reader; damage is an error.
//! Control blocks: a peer that violates the protocol is an error, too.

use super::collectives::{ShmCollectives, ShmContext};
use super::control_block::{Counter, PAYLOAD, encode_label};
use super::park::ParkMode;
use super::segment::Segment;
use super::segment::region::{Region, Regions};
use super::segment::registered::BufferLocation;
use crate::control::health::Health;
use crate::device::Queue;
use crate::error::{Error, Peer};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::testing::{mappings, spawn};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::AtOnce;
use crate::transport::tag::Tag;
use crate::transport::{Bell, Label, Ticket, Traffic, TransportKind};
use crate::waiting::doorbell::Doorbell;
use std::cell::Cell;
use std::io::IoSlice;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

thread_local! {
    /// Place whose segment this thread's rank cannot map.
    static UNMAPPABLE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns true if this thread's rank must fail to map the segment of the rank at `place`.
pub(super) fn cannot_map(place: usize) -> bool {
    UNMAPPABLE.get() == Some(place)
}

/// Makes this thread's rank fail to map the segment of the rank at `place`.
pub(crate) fn refuse_to_map(place: usize) {
    UNMAPPABLE.set(Some(place));
}

fn waker() -> Arc<Doorbell> {
    Arc::new(Doorbell::new().unwrap())
}

/// Returns bytes that differ at every position in question.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_cross_the_wrap_in_order() {
    let (segment, file) = Segment::create(3, 0, waker()).unwrap();
    let theirs = Segment::map(&file, 3, 0, 1, waker()).unwrap();
    let bytes = pattern(1_000_000);
    let mut sent = 0;
    let mut got = Vec::new();
    let mut piece = vec![0; 70_001];
    while got.len() < bytes.len() {
        let (one, two) = bytes[sent..].split_at((bytes.len() - sent).min(333));
        sent += theirs.ring_of(1).write(&[IoSlice::new(one), IoSlice::new(two)]).unwrap();
        let read = segment.ring_of(1).read(&mut piece).unwrap();
        got.extend_from_slice(&piece[..read]);
    }
    assert!(got == bytes);
    assert_eq!(segment.ring_of(2).read(&mut piece).unwrap(), 0, "rings are apart");
}

#[test]
fn a_racing_reader_sees_every_byte_and_a_full_ring_wakes_its_writer() {
    let (segment, file) = Segment::create(2, 0, waker()).unwrap();
    let (writers, files) = Segment::create(2, 1, waker()).unwrap();
    let bytes = pattern(3_000_000);
    let expected = bytes.clone();
    let writer = std::thread::spawn(move || {
        let theirs = Segment::map(&file, 2, 0, 1, waker()).unwrap();
        let mut sent = 0;
        let mut last_bell = writers.bell_count();
        while sent < bytes.len() {
            writers.announce_park(ParkMode::Futex);
            let written = theirs.ring_of(1).write(&[IoSlice::new(&bytes[sent..])]).unwrap();
            sent += written;
            theirs.unpark();
            if written == 0 {
                writers.park(last_bell, Duration::from_secs(60));
            }
            writers.end_park();
            last_bell = writers.bell_count();
        }
    });
    let writers = Segment::map(&files, 2, 1, 0, waker()).unwrap();
    let started = Instant::now();
    let mut got = Vec::new();
    let mut piece = vec![0; 9999];
    while got.len() < expected.len() {
        let read = segment.ring_of(1).read(&mut piece).unwrap();
        got.extend_from_slice(&piece[..read]);
        if read > 0 && segment.ring_of(1).take_blocked() {
            writers.unpark();
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the writer was not woken");
    }
    writer.join().unwrap();
    assert!(got == expected);
}

#[test]
fn every_pair_of_many_ranks_has_a_ring_of_its_own() {
    const RANKS: usize = 40;
    let (segment, file) = Segment::create(RANKS, 7, waker()).unwrap();
    let writers: Vec<_> = (0..RANKS).filter(|rank| *rank != 7).collect();
    let maps = writers.iter().map(|rank| Segment::map(&file, RANKS, 7, *rank, waker()).unwrap());
    let maps: Vec<_> = maps.collect();
    let message = |rank: usize, len: usize| vec![rank as u8 + 1; len];
    for (rank, map) in writers.iter().zip(&maps) {
        let whole = message(*rank, 1 << 20);
        let written = map.ring_of(*rank).write(&[IoSlice::new(&whole)]).unwrap();
        assert_eq!(written, segment.shape().ring, "a full ring");
    }
    let mut got = vec![0; 1 << 20];
    for rank in writers {
        let read = segment.ring_of(rank).read(&mut got).unwrap();
        assert_eq!(got[..read], message(rank, segment.shape().ring), "rank {rank}");
    }
}

#[test]
fn a_segment_of_another_shape_is_refused() {
    let (_segment, file) = Segment::create(2, 0, waker()).unwrap();
    assert!(Segment::map(&file, 3, 0, 1, waker()).is_err());
}

#[test]
fn a_bell_rung_before_a_park_ends_it() {
    let (segment, _file) = Segment::create(1, 0, waker()).unwrap();
    let last_bell = segment.bell_count();
    let theirs = Arc::clone(&segment);
    let ringer = std::thread::spawn(move || theirs.ring());
    let started = Instant::now();
    segment.park(last_bell, Duration::from_secs(60));
    assert!(started.elapsed() < Duration::from_secs(60));
    ringer.join().unwrap();
}

/// Creates rank 0 of two, and the segment of its peer for the test to write.
fn beside_a_test_peer() -> (ShmCollectives, Arc<Segment>) {
    let [mine, theirs] = [0, 1].map(|place| Segment::create(2, place, waker()).unwrap().0);
    let peers = (0..2).map(|rank| Peer { rank, host: "here".into(), pid: 1 }).collect();
    let context = ShmContext {
        rank: 0,
        segments: vec![mine, Arc::clone(&theirs)],
        regions: Regions::new(),
        health: Arc::new(Health::new(0, peers)),
        traffic: Traffic::default().tally(TransportKind::Shm),
        crowded: false,
    };
    (ShmCollectives::new(context), theirs)
}

fn sum(sequence: u64, len: usize) -> Label {
    let fingerprint = Fingerprint {
        reduce: Some(ReduceOp::Sum),
        ..Fingerprint::new(OperationKind::AllReduce, DType::F32, len)
    };
    Label { tag: Tag::new(0, 0, sequence, 0).unwrap(), fingerprint }
}

fn registered(native: &mut ShmCollectives, len: usize) -> Buffer {
    let (mine, _file) = Region::create(4 * len).unwrap();
    let (theirs, _file) = Region::create(4 * len).unwrap();
    let pointer = NonNull::new(mine.pointer()).unwrap();
    let (registration, keeper) = native.context.regions.insert(mine, vec![None, Some(theirs)]);
    // SAFETY: a fresh mapping of that size, kept by the region.
    unsafe { Buffer::shared(pointer, keeper, registration, DType::F32, len) }
}

fn poll(native: &mut ShmCollectives, ticket: Ticket) -> Poll<crate::Result<crate::transport::Received>> {
    native.progress();
    native.tickets().poll(ticket)
}

#[test]
fn memory_that_a_peer_does_not_have_is_an_error() {
    const LEN: usize = 50_000;
    // The odd one is within the part of the peer's memory that this rank reads: any numbers.
    let sources = [(0, usize::MAX), (0, 4 * LEN), (0, 3), (1, 0), (u32::MAX, usize::MAX - 8)];
    for (index, offset) in sources {
        let (mut native, peer) = beside_a_test_peer();
        let buffer = registered(&mut native, LEN);
        let mut label = sum(0, LEN);
        let ticket = native.post(label, None, buffer.write(0..LEN).unwrap());
        label.fingerprint.registered = true;
        peer.control_block().post(0, 1, &encode_label(&label), &BufferLocation { index, offset }.to_bytes());
        let mut outcome = poll(&mut native, ticket);
        // A part of the buffer may be mapped.
        for _ in 0..100 {
            outcome = if outcome.is_pending() { poll(&mut native, ticket) } else { outcome };
        }
        let odd = offset == 3 && outcome.is_pending();
        assert!(odd || matches!(outcome, Poll::Ready(Err(Error::Usage { .. }))), "{index} {offset}");
        native.cancel(ticket);
        assert!(buffer.write(0..LEN).is_ok(), "its view is released");
    }
}

#[test]
fn a_peer_that_drops_out_in_the_middle_is_missing_and_nothing_is_written_once_it_was_given_up() {
    const LEN: usize = 50_000;
    let (mut native, peer) = beside_a_test_peer();
    let mut buffer = registered(&mut native, LEN);
    let mut label = sum(0, LEN);
    let ticket = native.post(label, None, buffer.write(0..LEN).unwrap());
    assert_eq!(native.missing(ticket), [1], "before it has come");
    label.fingerprint.registered = true;
    let source = BufferLocation { index: 0, offset: 0 };
    peer.control_block().post(0, 1, &encode_label(&label), &source.to_bytes());
    for _ in 0..100 {
        assert!(poll(&mut native, ticket).is_pending());
    }
    assert_eq!(native.missing(ticket), [1], "after");
    assert!(buffer.host::<f32>().is_err(), "the operation has it");
    native.cancel(ticket);
    buffer.host_mut::<f32>().unwrap().fill(5.0);
    // It returns late.
    peer.control_block().set_progress(Counter::Reduced, 0, 1, 1000);
    peer.control_block().set_progress(Counter::Finished, 0, 1, 1);
    assert!(!native.progress());
    assert!(buffer.host::<f32>().unwrap().iter().all(|x| *x == 5.0));
}

/// Creates both ranks of a world of two, and a registered buffer of each.
fn pair(len: usize) -> ([ShmCollectives; 2], [Buffer; 2]) {
    let segments: Vec<Arc<Segment>> =
        (0..2).map(|place| Segment::create(2, place, waker()).unwrap().0).collect();
    let regions = [0, 1].map(|_| Region::create(4 * len).unwrap().0);
    let peers = || (0..2).map(|rank| Peer { rank, host: "here".into(), pid: 1 }).collect();
    let mut both = [0, 1].map(|rank| {
        ShmCollectives::new(ShmContext {
            rank,
            segments: segments.clone(),
            regions: Regions::new(),
            health: Arc::new(Health::new(rank, peers())),
            traffic: Traffic::default().tally(TransportKind::Shm),
            // One look at a time, so that the test controls the order.
            crowded: true,
        })
    });
    let buffers = [0, 1].map(|rank| {
        let mut theirs = vec![None, None];
        theirs[1 - rank] = Some(Arc::clone(&regions[1 - rank]));
        let pointer = NonNull::new(regions[rank].pointer()).unwrap();
        let (registration, keeper) = both[rank].context.regions.insert(Arc::clone(&regions[rank]), theirs);
        // SAFETY: a fresh mapping of that size, kept by the region.
        let mut buffer = unsafe { Buffer::shared(pointer, keeper, registration, DType::F32, len) };
        buffer.host_mut::<f32>().unwrap().fill(1.0);
        buffer
    });
    (both, buffers)
}

#[test]
fn memory_goes_back_to_the_system_when_its_owner_drops_it() {
    const BYTES: usize = 1 << 20;
    let (mine, file) = Region::create(BYTES).unwrap();
    let theirs = Region::map(&file, BYTES).unwrap();
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks as usize * 512;
    assert_eq!(blocks(), BYTES);
    drop(theirs);
    assert_eq!(blocks(), BYTES, "a peer returns only its own blocks");
    let theirs = Region::map(&file, BYTES).unwrap();
    drop(mine);
    assert_eq!(blocks(), 0, "though a peer has it mapped");
    drop(theirs);
}

#[test]
fn a_rank_that_drops_registered_memory_unmaps_that_of_its_peers_at_once() {
    // A size that no other test has, as all share the process.
    const BYTES: usize = 1237 * 4096;
    let together = std::sync::Barrier::new(3);
    spawn(TransportKind::Shm, 3, |world| {
        let endpoint = world.open(0).unwrap();
        let buffer = endpoint.register(&Queue::host(), DType::U8, BYTES, Duration::from_secs(60)).unwrap();
        let mut buffer = Some(buffer);
        for (dropped, left) in [(0, 9), (1, 6), (2, 3), (3, 0)] {
            together.wait();
            if world.rank() + 1 == dropped {
                buffer = None;
            }
            together.wait();
            assert_eq!(mappings(BYTES), left, "{dropped} ranks have dropped theirs");
        }
        drop(buffer);
    });
}

#[test]
fn an_operation_that_cannot_complete_immediately_is_resumed() {
    let ([mut first, mut second], _) = pair(1);
    for round in 0..3 {
        let mut theirs = 2.0f32;
        let mine = Buffer::from_slice(&[1.0f32]).unwrap();
        let started = first.at_once(&sum(round, 1), mine.write(0..1).unwrap().bytes_mut());
        assert!(matches!(started, AtOnce::Begun), "{started:?}");
        let done = second.at_once(&sum(round, 1), bytemuck::bytes_of_mut(&mut theirs));
        assert!(matches!(done, AtOnce::Done(Ok(()))), "{done:?}");
        let ticket = first.post(sum(round, 1), None, mine.write(0..1).unwrap());
        assert!(matches!(poll(&mut first, ticket), Poll::Ready(Ok(_))));
        assert_eq!((theirs, &*mine.host::<f32>().unwrap()), (3.0, &[3.0][..]));
    }
}

#[test]
fn ranks_that_differ_learn_of_it_at_once() {
    let ([mut first, mut second], _) = pair(1);
    let mut bytes = [[0; 4], [0; 4]];
    assert!(matches!(first.at_once(&sum(0, 1), &mut bytes[0]), AtOnce::Begun));
    let mut other = sum(0, 1);
    other.fingerprint.reduce = Some(ReduceOp::Max);
    let AtOnce::Done(Err(Error::Mismatch { mine, theirs, .. })) = second.at_once(&other, &mut bytes[1])
    else {
        panic!("no mismatch")
    };
    assert_eq!((mine, *theirs), (other.fingerprint, sum(0, 1).fingerprint));
}

#[test]
fn nobody_has_a_result_of_memory_that_was_taken_back_while_it_was_read() {
    const LEN: usize = 50_000;
    // After this many steps of the rank that gives up; after the last it only waits for the other to finish reading.
    for steps in 0..6 {
        let ([mut reader, mut quitter], [mine, mut theirs]) = pair(LEN);
        let kept = reader.post(sum(0, LEN), None, mine.write(0..LEN).unwrap());
        let given_up = quitter.post(sum(0, LEN), None, theirs.write(0..LEN).unwrap());
        // The reader's whole own part, and nothing of the other's.
        for _ in 0..3 {
            reader.progress();
        }
        for _ in 0..steps {
            quitter.progress();
        }
        assert!(poll(&mut quitter, given_up).is_pending());
        quitter.cancel(given_up);
        theirs.host_mut::<f32>().unwrap().fill(7.0);
        for _ in 0..100 {
            assert!(poll(&mut reader, kept).is_pending(), "after {steps} steps");
        }
        assert_eq!((reader.missing(kept), reader.ended(0)), (vec![1], None));
        assert!(reader.ended(1).is_some_and(|cause| cause.contains("gave")), "after {steps} steps");
        // Nor with the rank's next operation.
        let next = quitter.post(sum(1, LEN), None, theirs.write(0..LEN).unwrap());
        for _ in 0..100 {
            assert!(poll(&mut reader, kept).is_pending(), "after {steps} steps");
            assert!(poll(&mut quitter, next).is_pending());
        }
    }
}

#[test]
fn a_result_that_was_complete_counts_though_a_rank_gives_up_what_comes_next() {
    const LEN: usize = 50_000;
    let ([mut slow, mut quick], [mine, theirs]) = pair(LEN);
    let here = slow.post(sum(0, LEN), None, mine.write(0..LEN).unwrap());
    let there = quick.post(sum(0, LEN), None, theirs.write(0..LEN).unwrap());
    while poll(&mut quick, there).is_pending() {
        slow.progress();
    }
    // The slow rank has read everything, but not looked whether the other has.
    let next = quick.post(sum(1, LEN), None, theirs.write(0..LEN).unwrap());
    quick.cancel(next);
    assert!(matches!(poll(&mut slow, here), Poll::Ready(Ok(_))));
    assert!(mine.host::<f32>().unwrap().iter().all(|x| *x == 2.0));
}

#[test]
fn a_peer_that_writes_over_what_is_being_read_is_an_error_at_worst() {
    let (mut native, peer) = beside_a_test_peer();
    let round = Arc::new(AtomicU64::new(1));
    let now = Arc::clone(&round);
    let vandal = std::thread::spawn(move || {
        let payload = [0; PAYLOAD];
        loop {
            let round = now.load(Ordering::Relaxed);
            if round == 0 {
                return;
            }
            for round in [round, round + 2] {
                peer.control_block().post(0, round, &encode_label(&sum(round, 200)), &payload);
            }
        }
    });
    let mut buffer = Buffer::from_slice(&[1f32; 200]).unwrap();
    for number in 1..500 {
        round.store(number, Ordering::Relaxed);
        let ticket = native.post(sum(number, 200), None, buffer.write(0..200).unwrap());
        let outcome = loop {
            match poll(&mut native, ticket) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => std::hint::spin_loop(),
            }
        };
        let mut sums = buffer.host_mut::<f32>().expect("its view is released");
        match outcome {
            // The peer writes only zeros.
            Ok(_) => assert!(sums.iter().all(|sum| *sum == 1.0), "round {number}: {:?}", &sums[..]),
            Err(error @ (Error::Usage { .. } | Error::Mismatch { .. })) => {
                assert!(error.to_string().contains("rank 1 "), "round {number}: {error}");
            }
            Err(error) => panic!("round {number}: {error}"),
        }
        sums.fill(1.0);
    }
    round.store(0, Ordering::Relaxed);
    vandal.join().unwrap();
}

#[test]
fn a_lane_goes_on_in_order_after_an_operation_was_given_up() {
    let (mut native, peer) = beside_a_test_peer();
    let buffers = [1f32, 2.0, 4.0].map(|x| Buffer::from_slice(&[x]).unwrap());
    let [first, second] =
        [0, 1].map(|at| native.post(sum(at as u64, 1), None, buffers[at].write(0..1).unwrap()));
    native.cancel(first);
    let third = native.post(sum(2, 1), None, buffers[2].write(0..1).unwrap());
    for (round, ticket) in [(2, second), (3, third)] {
        let label = encode_label(&sum(round - 1, 1));
        peer.control_block().post(0, round, &label, bytemuck::bytes_of(&8f32));
        assert!(matches!(poll(&mut native, ticket), Poll::Ready(Ok(_))), "round {round}");
    }
    let got = buffers.map(|buffer| buffer.host::<f32>().unwrap()[0]);
    assert_eq!(got, [1.0, 10.0, 12.0]);
}
