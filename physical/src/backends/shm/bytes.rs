//! Bytes of shared memory that another process may write while they are read.
//!
//! A peer that abandons an operation takes its memory back, and writes to it while others still read. Their data is
//! then invalid, and they detect it (see [`ControlBlock::withdraw`](super::control_block::ControlBlock::withdraw));
//! but until then the reads must not be undefined behaviour. So there is no `&[u8]` over such bytes, which would
//! promise the absence of writes, and no plain read through a pointer, which may not race with a write. Few bytes are
//! read by relaxed atomic loads. Many are copied by an assembly block of vector loads, which is opaque to Rust except
//! that it fills the copy, as relaxed loads of single bytes could have; the compiler does not vectorize atomic loads
//! itself. The work that follows uses the copy: a block of it stays in the first-level cache. Sums of f32 are added
//! by such loads themselves, without a copy.

use crate::device::kernels::SharedFloats;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Readable bytes that other processes may write at any time.
#[derive(Clone, Copy)]
pub(super) struct SharedBytes<'a> {
    start: *const u8,
    len: usize,
    /// True if the bytes are borrowed memory of this process without writers.
    own: bool,
    memory: PhantomData<&'a AtomicU8>,
}

impl<'a> SharedBytes<'a> {
    /// Creates a run of `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are mapped and initialised for the whole lifetime. While the run exists, this process writes them
    /// only atomically, if at all.
    pub(super) unsafe fn new(start: *const u8, len: usize) -> Self {
        SharedBytes { start, len, own: false, memory: PhantomData }
    }

    /// Wraps bytes of this process, to be read as those of others are.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        SharedBytes { start: bytes.as_ptr(), len: bytes.len(), own: true, memory: PhantomData }
    }

    /// Returns a range of these bytes.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a part of the bytes");
        SharedBytes { start: self.start.wrapping_add(range.start), len: range.len(), ..self }
    }

    /// Returns the bytes as a slice if they are memory of this process.
    pub(super) fn own(self) -> Option<&'a [u8]> {
        // SAFETY: `of` has borrowed them for as long.
        self.own.then(|| unsafe { std::slice::from_raw_parts(self.start, self.len) })
    }

    /// Returns bytes of other processes as f32, or `None` unless they are aligned.
    pub(super) fn floats(self) -> Option<SharedFloats<'a>> {
        let start: *const f32 = self.start.cast();
        // SAFETY: aligned, as just checked; `new` has promised the rest.
        (start.is_aligned() && !self.own)
            .then(|| unsafe { SharedFloats::new(start, self.len / size_of::<f32>()) })
    }

    /// Copies all bytes. Bytes that others write concurrently may be old or new in the copy, byte by byte.
    pub(super) fn load(self, to: &mut [u8]) {
        assert_eq!(self.len, to.len(), "a copy of all bytes");
        // SAFETY: both sides have the same length, as just checked.
        unsafe { self.copy_to(to.as_mut_ptr()) }
    }

    /// Copies all bytes, as [`SharedBytes::load`] does, to memory whose cache lines other cores have read. Where the
    /// processor can, the copy does not wait for these lines.
    pub(super) fn load_past_caches(self, to: &mut [u8]) {
        assert_eq!(self.len, to.len(), "a copy of all bytes");
        let before = to.as_ptr().align_offset(BLOCK).min(self.len);
        let (head, rest) = to.split_at_mut(before);
        self.part(0..before).load(head);
        // SAFETY: both sides have the length of `rest` from here on.
        let done = BLOCK * unsafe { stream_blocks(self.start.wrapping_add(before), rest) };
        self.part(before + done..self.len).load(&mut rest[done..]);
    }

    /// Copies all bytes, as [`SharedBytes::load`] does, to the beginning of uninitialised memory, and returns the copy.
    pub(super) fn load_to(self, to: &mut [MaybeUninit<u8>]) -> &mut [u8] {
        let to = &mut to[..self.len];
        // SAFETY: as above; afterwards the bytes are initialised.
        unsafe {
            self.copy_to(to.as_mut_ptr().cast());
            std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), self.len)
        }
    }

    /// Copies all bytes to `to`.
    ///
    /// # Safety
    /// There is room for all bytes.
    unsafe fn copy_to(self, to: *mut u8) {
        // SAFETY: promised by the caller and by `new`; borrowed memory has no writers.
        unsafe {
            match self.own {
                true => to.copy_from_nonoverlapping(self.start, self.len),
                false => copy::<true>(self.start, to, self.len),
            }
        }
    }
}

/// Writes bytes of this process to memory that other processes may read at any time.
///
/// # Safety
/// `to` has room for them, mapped for writing; no reference of this process is to it.
pub(super) unsafe fn store(from: &[u8], to: *mut u8) {
    // SAFETY: promised by the caller; borrowed memory has no writers.
    unsafe { copy::<false>(from.as_ptr(), to, from.len()) }
}

/// Bytes that one iteration of the assembly copies.
const BLOCK: usize = 64;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Copies bytes such that one side, `from` if `LOADS`, may be shared.
///
/// # Safety
/// Both sides have `len` bytes and do not overlap; the other side is this process' alone.
#[inline]
unsafe fn copy<const LOADS: bool>(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    if len >= BLOCK {
        // SAFETY: only whole blocks that fit are copied.
        unsafe { done = BLOCK * blocks(from, to, len / BLOCK) };
    }
    let shared = if LOADS { from } else { to.cast_const() };
    // SAFETY: within both sides; words of the shared side are aligned, and it is reached by atomics only.
    unsafe {
        while shared.addr().is_multiple_of(WORD) && done + WORD <= len {
            let from = from.add(done).cast::<u64>();
            let to = to.add(done).cast::<u64>();
            if LOADS {
                to.write_unaligned(AtomicU64::from_ptr(from.cast_mut()).load(Ordering::Relaxed));
            } else {
                AtomicU64::from_ptr(to).store(from.read_unaligned(), Ordering::Relaxed);
            }
            done += WORD;
        }
        for at in done..len {
            if LOADS {
                to.add(at).write(AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed));
            } else {
                AtomicU8::from_ptr(to.add(at)).store(from.add(at).read(), Ordering::Relaxed);
            }
        }
    }
}

/// Copies `len` bytes by the string instruction.
///
/// # Safety
/// Both sides have `len` bytes and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads and writes the memory that the caller has promised, and the registers named; each byte is read
    // and written once. The direction is forwards, as everywhere in Rust.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies blocks by the instruction that stores 16 bytes, and then executes further instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_blocks {
    ($store:literal, $from:expr, $to:expr, $count:expr $(, $after:literal)?) => {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            concat!($store, " [{to}], {a}"),
            concat!($store, " [{to} + 16], {b}"),
            concat!($store, " [{to} + 32], {c}"),
            concat!($store, " [{to} + 48], {d}"),
            "add {from}, 64",
            "add {to}, 64",
            "sub {count}, 1",
            "jnz 2b",
            $($after,)?
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            count = inout(reg) $count => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        )
    };
}

/// Copies `count` blocks, at least one, and returns how many it has copied.
///
/// # Safety
/// Both sides have `count` blocks and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn blocks(from: *const u8, to: *mut u8, count: usize) -> usize {
    /// Bytes from which a string instruction copies faster than a loop, without reading the lines that it writes.
    const LONG: usize = 2048;
    if count * BLOCK >= LONG {
        // SAFETY: promised by the caller.
        unsafe { copy_string(from, to, count * BLOCK) };
        return count;
    }
    // SAFETY: reads and writes the memory that the caller has promised, and the registers named. Each byte is read
    // and written once, so that the block is equivalent to relaxed atomics.
    unsafe {
        copy_blocks!("movups", from, to, count);
    }
    count
}

/// Copies the whole blocks of `to`, which is aligned to a block, by stores that bypass the caches, and returns their
/// number.
///
/// # Safety
/// `from` has as many bytes as `to`, mapped and initialised.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream_blocks(from: *const u8, to: &mut [u8]) -> usize {
    let count = to.len() / BLOCK;
    if count == 0 || !to.as_ptr().addr().is_multiple_of(BLOCK) {
        return 0;
    }
    // SAFETY: as in `blocks`; the fence makes the stores visible before all later ones.
    unsafe {
        copy_blocks!("movntps", from, to.as_mut_ptr(), count, "sfence");
    }
    count
}

/// Copies nothing: all bytes are left to other copies.
///
/// # Safety
/// None is needed.
#[cfg(any(miri, not(target_arch = "x86_64")))]
unsafe fn stream_blocks(_: *const u8, _: &mut [u8]) -> usize {
    0
}

/// Copies `count` blocks, at least one, and returns how many it has copied.
///
/// # Safety
/// Both sides have `count` blocks and do not overlap.
#[cfg(all(target_arch = "aarch64", not(miri)))]
unsafe fn blocks(from: *const u8, to: *mut u8, count: usize) -> usize {
    // SAFETY: as for x86-64.
    unsafe {
        std::arch::asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "add {from}, {from}, #64",
            "stp {a:q}, {b:q}, [{to}]",
            "stp {c:q}, {d:q}, [{to}, #32]",
            "add {to}, {to}, #64",
            "subs {count}, {count}, #1",
            "b.ne 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            count = inout(reg) count => _,
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            options(nostack),
        );
    }
    count
}

/// Copies nothing: all bytes are left to the atomics.
///
/// # Safety
/// None is needed.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn blocks(_: *const u8, _: *mut u8, _: usize) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SharedBytes<'_> {
        fn to_vec(self) -> Vec<u8> {
            let mut copy = vec![0; self.len];
            self.load(&mut copy);
            copy
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn every_length_at_every_alignment_is_copied_and_nothing_else() {
        let mut from = pattern(2400);
        for start in (0..17).chain([63]).step_by(if cfg!(miri) { 7 } else { 1 }) {
            for len in (0..300)
                .step_by(if cfg!(miri) { 37 } else { 1 })
                .chain([2047, 2048, 2200])
                .take(if cfg!(miri) { 9 } else { usize::MAX })
            {
                assert_eq!(
                    SharedBytes::of(&from).part(start..start + len).to_vec(),
                    from[start..start + len]
                );
                // SAFETY: initialised, and no thread writes them.
                let shared = unsafe { SharedBytes::new(from.as_mut_ptr(), from.len()) };
                let shared = shared.part(start..start + len);
                assert!(shared.own().is_none());
                let want = &shared.to_vec();
                assert_eq!(*want, from[start..start + len]);
                let mut loaded = vec![0xee; len + 1];
                shared.load(&mut loaded[..len]);
                assert_eq!((&loaded[..len], loaded[len]), (&want[..], 0xee));
                let mut streamed = vec![0xee; start + len + 1];
                shared.load_past_caches(&mut streamed[start..start + len]);
                assert_eq!((&streamed[start..start + len], streamed[start + len]), (&want[..], 0xee));
                assert!(streamed[..start].iter().all(|byte| *byte == 0xee));
                let mut stored = vec![0xee; start + len + 1];
                // SAFETY: there is room for this many bytes.
                unsafe { store(want, stored[start..].as_mut_ptr()) };
                assert_eq!((&stored[start..start + len], stored[start + len]), (&want[..], 0xee));
                assert!(stored[..start].iter().all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    #[should_panic(expected = "a part of the bytes")]
    fn a_part_is_inside() {
        SharedBytes::of(&[0; 8]).part(3..9);
    }

    #[test]
    fn a_writer_beside_a_reader_is_no_race() {
        let words: Vec<AtomicU64> = (0..40).map(|_| AtomicU64::new(0)).collect();
        let bytes = words.len() * WORD;
        let start = words.as_ptr().cast::<u8>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..if cfg!(miri) { 3 } else { 1000 } {
                    words.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                }
            });
            for _ in 0..if cfg!(miri) { 3 } else { 1000 } {
                // SAFETY: within the words, which are written atomically.
                let copy = unsafe { SharedBytes::new(start, bytes) }.to_vec();
                assert!(copy.chunks(WORD).all(|word| word[2..] == [0; 6]));
            }
        });
    }
}
