//! The parts of shared memory that several processes access concurrently, under every interleaving: `RUSTFLAGS='--cfg
//! hexagram_loom' cargo test -p hexagram-physical --lib --release --target-dir target/loom loom`.
//!
//! Loom simulates the memory model of the language, not that of one processor. Processes are threads here, and bytes
//! are cells that report racing accesses.

use super::atomic::{SharedAtomic, shared_atomic};
use super::control_block::{ControlBlock, ControlMemory, Counter, LABEL, SLOT};
use super::park::{ParkMode, Parker};
use super::ring::{ByteRing, RingMemory};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::io::IoSlice;

shared_atomic!(AtomicU64, u64, fence);

/// Bytes that report concurrent accesses.
struct LoomBytes(Vec<UnsafeCell<u8>>);

// SAFETY: loom itself reports unordered accesses of two threads to one cell, which is the subject of the test.
unsafe impl Sync for LoomBytes {}
// SAFETY: as above.
unsafe impl Send for LoomBytes {}

impl LoomBytes {
    fn new(len: usize) -> Self {
        LoomBytes((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        for (cell, byte) in self.0[offset..].iter().zip(bytes) {
            // SAFETY: loom checks for exclusive access.
            cell.with_mut(|place| unsafe { *place = *byte });
        }
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        for (cell, byte) in self.0[offset..].iter().zip(into) {
            // SAFETY: loom checks that there is no writer.
            *byte = cell.with(|place| unsafe { *place });
        }
    }
}

const CAPACITY: usize = 2;

struct LoomMemory {
    counts: [AtomicU64; 5],
    bytes: LoomBytes,
    /// Replaces the futex of the kernel: a thread sleeps only if the bell has not changed since it was read, in one
    /// step.
    kernel: (Mutex<()>, Condvar),
}

impl LoomMemory {
    fn new(bytes: usize) -> Arc<Self> {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(LoomMemory {
            counts,
            bytes: LoomBytes::new(bytes),
            kernel: (Mutex::new(()), Condvar::new()),
        })
    }

    fn parker(&self) -> Parker<'_, AtomicU64> {
        Parker { bell: &self.counts[3], parked: &self.counts[4] }
    }

    /// Wakes a parked thread, as `Segment::unpark` does.
    fn unpark(&self) {
        Parker::<AtomicU64>::fence_before_unpark();
        if self.parker().unpark().is_some() {
            drop(self.kernel.0.lock().unwrap());
            self.kernel.1.notify_all();
        }
    }

    /// Parks until `done`, which looks for work, as `StreamEndpoint::park_unless` does.
    fn sleep_until(&self, mut done: impl FnMut() -> bool) {
        loop {
            let last_bell = self.counts[3].load(Ordering::Acquire);
            self.parker().announce_park(ParkMode::Futex);
            if done() {
                return self.parker().end_park();
            }
            let mut kernel = self.kernel.0.lock().unwrap();
            while self.counts[3].load(Ordering::Acquire) == last_bell {
                // Without a waker this never returns, which loom reports as a deadlock.
                kernel = self.kernel.1.wait(kernel).unwrap();
            }
            drop(kernel);
            self.parker().end_park();
        }
    }
}

impl RingMemory for Arc<LoomMemory> {
    type Atomic = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        &self.counts[0]
    }

    fn tail(&self) -> &AtomicU64 {
        &self.counts[1]
    }

    fn blocked(&self) -> &AtomicU64 {
        &self.counts[2]
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        self.bytes.store(offset, from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.bytes.load(offset, into);
    }
}

#[test]
fn bytes_come_out_of_a_ring_as_they_went_in() {
    loom::model(|| {
        let model = LoomMemory::new(CAPACITY);
        let theirs = Arc::clone(&model);
        let writer = thread::spawn(move || {
            let mut sent = 0;
            while sent < 3 {
                sent += ByteRing(Arc::clone(&theirs)).write(&[IoSlice::new(&[1, 2, 3][sent..])]).unwrap();
                thread::yield_now();
            }
        });
        let mut got = Vec::new();
        while got.len() < 3 {
            let mut piece = [0; 2];
            let read = ByteRing(Arc::clone(&model)).read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..read]);
            thread::yield_now();
        }
        assert_eq!(got, [1, 2, 3]);
        writer.join().unwrap();
    });
}

#[test]
fn a_parked_reader_is_woken_by_bytes() {
    loom::model(|| {
        let model = LoomMemory::new(CAPACITY);
        let theirs = Arc::clone(&model);
        let writer = thread::spawn(move || {
            ByteRing(Arc::clone(&theirs)).write(&[IoSlice::new(&[7])]).unwrap();
            theirs.unpark();
        });
        let mut byte = [0];
        model.sleep_until(|| ByteRing(Arc::clone(&model)).read(&mut byte).unwrap() == 1);
        assert_eq!(byte, [7]);
        writer.join().unwrap();
    });
}

#[test]
fn a_writer_parked_on_a_full_ring_is_woken_by_freed_bytes() {
    loom::model(|| {
        let model = LoomMemory::new(CAPACITY);
        ByteRing(Arc::clone(&model)).write(&[IoSlice::new(&[1, 2])]).unwrap();
        let theirs = Arc::clone(&model);
        let reader = thread::spawn(move || {
            let mut piece = [0; 2];
            assert_eq!(ByteRing(Arc::clone(&theirs)).read(&mut piece).unwrap(), 2);
            if ByteRing(Arc::clone(&theirs)).take_blocked() {
                theirs.unpark();
            }
        });
        model.sleep_until(|| ByteRing(Arc::clone(&model)).write(&[IoSlice::new(&[3])]).unwrap() == 1);
        reader.join().unwrap();
    });
}

/// Bytes of a control block.
trait Payload: Send + Sync + 'static {
    fn new(len: usize) -> Self;
    fn store(&self, offset: usize, bytes: &[u8]);
    fn load(&self, offset: usize, into: &mut [u8]);
}

/// No thread may write these bytes while another one reads them.
impl Payload for LoomBytes {
    fn new(len: usize) -> Self {
        LoomBytes::new(len)
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        LoomBytes::store(self, offset, bytes);
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        LoomBytes::load(self, offset, into);
    }
}

/// Bytes that may be written at any time, like those of a rank that gives up.
struct Loose(Vec<AtomicU8>);

impl Payload for Loose {
    fn new(len: usize) -> Self {
        Loose((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        self.0[offset..].iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        into.iter_mut().zip(&self.0[offset..]).for_each(|(to, byte)| *to = byte.load(Ordering::Relaxed));
    }
}

/// The part of a control block that one lane needs.
struct Sheet<B> {
    rounds: [AtomicU64; 2],
    counters: [AtomicU64; 5],
    bytes: B,
}

impl<B: Payload> Sheet<B> {
    /// Creates the control block of each rank.
    fn all<const RANKS: usize>() -> Arc<[Self; RANKS]> {
        let count = |_| AtomicU64::new(0);
        Arc::new(std::array::from_fn(|_| Sheet {
            rounds: std::array::from_fn(count),
            counters: std::array::from_fn(count),
            bytes: B::new(2),
        }))
    }
}

impl<B: Payload> ControlMemory for Sheet<B> {
    type Atomic = AtomicU64;

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        match offset {
            0 => &self.rounds[0],
            SLOT => &self.rounds[1],
            _ => &self.counters[(offset - 2 * SLOT) / 8],
        }
    }

    // The first byte of the payload is enough; cells are expensive.
    fn store(&self, offset: usize, bytes: &[u8]) {
        if offset % SLOT == 8 + LABEL {
            self.bytes.store(offset / SLOT, &bytes[..1]);
        }
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        if offset % SLOT == 8 + LABEL {
            self.bytes.load(offset / SLOT, &mut into[..1]);
        }
    }
}

/// Calls `look` until it returns something.
fn await_some<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        match look() {
            Some(found) => return found,
            None => thread::yield_now(),
        }
    }
}

/// Returns the first byte that a rank has published.
fn payload<B: Payload>(control_block: &ControlBlock<'_, Sheet<B>>, round: u64) -> Option<u8> {
    let mut byte = [0];
    control_block.read(0, round)?.load(&mut byte);
    Some(byte[0])
}

#[test]
fn nobody_writes_a_slot_that_somebody_reads() {
    loom::model(|| {
        let sheets = Sheet::<LoomBytes>::all::<2>();
        let rank = |rank: usize, sheets: Arc<[Sheet<LoomBytes>; 2]>| {
            // Three rounds, so that the first slot is used again.
            for round in 1..=3 {
                ControlBlock::new(&sheets[rank]).post(
                    0,
                    round,
                    &[0; LABEL],
                    &[(10 * rank) as u8 + round as u8],
                );
                let peer = ControlBlock::new(&sheets[1 - rank]);
                let payload = await_some(|| payload(&peer, round));
                // The peer may still read this rank's slot of this round, but not that of the next one.
                ControlBlock::new(&sheets[rank]).vacate(0, round + 1, 1);
                assert_eq!(payload, (10 * (1 - rank)) as u8 + round as u8);
            }
        };
        let theirs = Arc::clone(&sheets);
        let other = thread::spawn(move || rank(1, theirs));
        rank(0, sheets);
        other.join().unwrap();
    });
}

#[test]
fn a_slot_that_was_written_again_while_it_was_read_is_not_posted() {
    loom::model(|| {
        let sheets = Sheet::<Loose>::all::<1>();
        let theirs = Arc::clone(&sheets);
        // A rank that gives up does not wait.
        let other = thread::spawn(move || {
            [1, 3].into_iter().for_each(|round| {
                ControlBlock::new(&theirs[0]).post(0, round, &[0; LABEL], &[round as u8]);
            });
        });
        let control_block = ControlBlock::new(&sheets[0]);
        if let Some(payload) = payload(&control_block, 1)
            && control_block.is_published(0, 1)
        {
            assert_eq!(payload, 1);
        }
        other.join().unwrap();
    });
}

/// Content of the registered memory of a rank until it has given up.
const RIGHT: u64 = 1;
/// Content afterwards.
const WRONG: u64 = 2;

/// Does a rank's part, gives the operation up and writes to the rank's memory.
fn gives_up(sheet: &Sheet<Loose>, memory: &AtomicU64) {
    let control_block = ControlBlock::new(sheet);
    memory.store(RIGHT, Ordering::Relaxed);
    control_block.set_progress(Counter::Reduced, 0, 1, 1);
    control_block.set_progress(Counter::Finished, 0, 1, 1);
    control_block.withdraw(0, 1);
    memory.store(WRONG, Ordering::Relaxed);
}

/// Returns the content of the memory of a rank if the rank reports completion. No thread waits: loom tries all
/// orders.
fn reduced(sheet: &Sheet<Loose>, memory: &AtomicU64) -> Option<u64> {
    let complete = ControlBlock::new(sheet).progress(Counter::Reduced, 0, 1) > 0;
    complete.then(|| memory.load(Ordering::Relaxed))
}

#[test]
fn nobody_takes_what_a_rank_has_written_after_it_gave_up() {
    loom::model(|| {
        let shared = Arc::new((Sheet::<Loose>::all::<1>(), AtomicU64::new(0)));
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || gives_up(&theirs.0[0], &theirs.1));
        let (sheets, memory) = &*shared;
        let got = reduced(&sheets[0], memory);
        assert!(got.is_none_or(|got| got == RIGHT) || ControlBlock::new(&sheets[0]).has_withdrawn(0, 1));
        other.join().unwrap();
    });
}

#[test]
fn nobody_takes_from_a_third_what_a_rank_has_written_after_it_gave_up() {
    loom::model(|| {
        let memory = [0, 1].map(|_| AtomicU64::new(0));
        let shared = Arc::new((Sheet::<Loose>::all::<2>(), memory));
        let first = Arc::clone(&shared);
        let quitter = thread::spawn(move || gives_up(&first.0[0], &first.1[0]));
        let second = Arc::clone(&shared);
        let third = thread::spawn(move || {
            let (sheets, memory) = &*second;
            if let Some(got) = reduced(&sheets[0], &memory[0]) {
                memory[1].store(got, Ordering::Relaxed);
                ControlBlock::new(&sheets[1]).set_progress(Counter::Reduced, 0, 1, 1);
            }
        });
        let (sheets, memory) = &*shared;
        let got = reduced(&sheets[1], &memory[1]);
        assert!(got.is_none_or(|got| got == RIGHT) || ControlBlock::new(&sheets[0]).has_withdrawn(0, 1));
        quitter.join().unwrap();
        third.join().unwrap();
    });
}
