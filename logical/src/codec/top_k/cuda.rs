//! Programs of top-k: the entries of `top_k.cu` that a device launches.

use super::index_coding::IndexLayout;
use super::{KeptValues, TopK};
use crate::codec::shared::launches::{each, policy, program};
use hexagram_physical::device::program::{Argument, Code, Launch, Module, Program};
use std::ops::Range;

static TOP_K: Module = Module { name: "top_k", code: Code::Packed(hexagram_ptx::TOP_K) };

/// Longest chunk that gets one thread block even if there are few chunks; for longer ones, several launches are
/// faster.
const SHORT: usize = 1 << 13;
/// A longer chunk still gets a single block if it has at most this number of elements times the number of chunks. A block reads
/// its chunk five times, whereas few blocks leave most of a device idle. This is an estimate without a GPU measurement.
const EACH: usize = 1 << 12;

/// Elements of a tile: `TILE` words of 32 marks.
const TILE: usize = 256 * 32;
/// Bytes of the high parts of a tile.
const TILE_OF_HIGH: usize = 256 * 8;
/// Size of the counts of a tile.
const COUNTS: usize = 16;

/// Numbers of counters at each level, and the number of bits below those that are counted.
const LEVELS: [(u32, u32); 3] = [(1 << 11, 20), (1 << 10, 10), (1 << 10, 0)];

/// Threads per block of most kernels.
const THREADS: u32 = 256;
/// Threads of the kernels that choose and narrow, which have one block.
const ALL_THREADS: u32 = 1024;
/// Threads of the kernel that scans, which has one block.
const SCAN_THREADS: u32 = 512;
/// Threads per block of the kernels for bins.
const WIDE: u32 = 64;
/// Numbers of which a block of 64 threads computes the sum of a bin.
const PIECE: usize = 4096;

/// Maximum number of blocks of a counting kernel: each adds its counts to the total.
const COUNTING: usize = 1024;

impl TopK {
    pub(super) fn encoding(&self, len: usize) -> Program {
        let k = self.kept(len);
        if k == 0 {
            return program(&TOP_K, Vec::new());
        }
        let mut room = ScratchAllocator::default();
        let sink = SelectionOutput::new(self, len, k, &mut room);
        let mut launches = vec![sink.begin()];
        let size = self.chunk_len(len);
        if size <= SHORT || size / EACH <= len / size {
            launches.push(self.chunks(len, &sink));
        } else {
            let selection = Long::new(size.min(len), &mut room);
            let mut first = 0;
            for start in (0..len).step_by(size) {
                let elements = start..len.min(start + size);
                let kept = self.keep.of(elements.len());
                launches.extend(selection.launches(self, elements, first..first + kept, &sink));
                first += kept;
            }
        }
        if self.values == KeptValues::Bins {
            launches.extend(in_bins(k, sink.kept, &mut room));
        }
        launches.push(sink.places(self.values_len(k)));
        Program { scratch: room.bytes, ..program(&TOP_K, launches) }
    }

    pub(super) fn decoding(&self, len: usize, weight: Option<f32>) -> Program {
        let k = self.kept(len);
        let to = Argument::Operand(1);
        let count = Argument::U64(len as u64);
        if k == 0 {
            return program(&TOP_K, Vec::new());
        }
        let places = IndexLayout::new(k, len);
        let low = self.values_len(k);
        let high = low + places.low_bytes();
        let bytes = places.bytes() - places.low_bytes();
        let tiles = bytes.div_ceil(TILE_OF_HIGH);
        let from = |at| Argument::OperandAt(0, at);
        let bytes = Argument::U64(bytes as u64);
        let counts = Argument::Scratch(0);
        let clear = weight.is_none().then(|| Launch::over("top_k_clear", len, vec![to, count]));
        let ones = each("top_k_ones", tiles, THREADS, vec![from(high), bytes, counts]);
        let form = [Argument::U32(u32::from(self.is_whole())), Argument::U32(places.low_bits())];
        let read = [from(0), from(low), from(high), bytes, counts, Argument::U64(k as u64), count];
        let write = [Argument::F32(weight.unwrap_or(1.0)), to, Argument::Refusing];
        let add = each("top_k_add", tiles, THREADS, [&read[..], &form, &write].concat());
        let launches = clear.into_iter().chain([ones, scan(counts, tiles), add]);
        let damage = "places of the wrong number, or not in order";
        Program { scratch: COUNTS * (tiles + 1), damage, ..program(&TOP_K, launches.collect()) }
    }

    fn is_whole(&self) -> bool {
        self.values == KeptValues::Whole
    }

    /// Returns the launch for chunks with a thread block each.
    fn chunks(&self, len: usize, sink: &SelectionOutput) -> Launch {
        let size = self.chunk_len(len);
        let number = |number: usize| Argument::U64(number as u64);
        let kept = [number(self.keep.of(size)), number(self.keep.of(len % size)), policy(self.not_finite)];
        let read = [Argument::Operand(0), number(len), number(size)];
        let arguments = [&read[..], &kept, &sink.arguments(), &[Argument::Refusing]].concat();
        each("top_k_chunks", len.div_ceil(size), THREADS, arguments)
    }
}

/// Allocator of scratch memory.
#[derive(Default)]
struct ScratchAllocator {
    bytes: usize,
}

impl ScratchAllocator {
    fn take(&mut self, bytes: usize) -> Argument {
        let start = self.bytes;
        self.bytes = (start + bytes).next_multiple_of(16);
        Argument::Scratch(start)
    }
}

/// Memory to which selections write the kept elements.
struct SelectionOutput {
    /// Values, if they are not sent exactly.
    kept: Argument,
    is_whole: bool,
    places: IndexLayout,
    low: Argument,
    high: Argument,
    /// Words of both.
    words: usize,
}

impl SelectionOutput {
    fn new(codec: &TopK, len: usize, k: usize, room: &mut ScratchAllocator) -> Self {
        let places = IndexLayout::new(k, len);
        let words = |bytes: usize| bytes.div_ceil(16) * 2;
        let low_words = words(places.low_bytes());
        let high_words = words(places.bytes() - places.low_bytes());
        let low = room.take(8 * low_words);
        let high = room.take(8 * high_words);
        let is_whole = codec.is_whole();
        // The kernel has a parameter for it in both cases.
        let kept = room.take(if is_whole { 4 } else { 4 * k });
        SelectionOutput { kept, is_whole, places, low, high, words: low_words + high_words }
    }

    fn begin(&self) -> Launch {
        Launch::over("top_k_begin", self.words, vec![self.low, Argument::U64(self.words as u64)])
    }

    /// Returns the arguments of a kernel that writes here.
    fn arguments(&self) -> [Argument; 6] {
        let form = [u32::from(self.is_whole), self.places.low_bits()].map(Argument::U32);
        [Argument::Operand(1), self.kept, form[0], form[1], self.low, self.high]
    }

    /// Returns the launch that copies places behind values of `values` bytes.
    fn places(&self, values: usize) -> Launch {
        let bytes = [self.places.low_bytes(), self.places.bytes() - self.places.low_bytes()];
        let [low, high] = bytes.map(|bytes| Argument::U64(bytes as u64));
        let arguments = vec![self.low, low, self.high, high, Argument::OperandAt(1, values)];
        Launch::over("top_k_places", self.places.bytes(), arguments)
    }
}

/// Selection from a long run, on the whole device.
struct Long {
    bins: Argument,
    choice: Argument,
    marks: Argument,
    counts: Argument,
}

impl Long {
    fn new(size: usize, room: &mut ScratchAllocator) -> Self {
        let bins = room.take(8 << 11);
        let choice = room.take(16);
        let marks = room.take(size.div_ceil(32) * 4);
        Long { bins, choice, marks, counts: room.take(COUNTS * (size.div_ceil(TILE) + 1)) }
    }

    /// Returns the launches for a part of a run, whose kept elements have these numbers.
    fn launches(
        &self,
        codec: &TopK,
        elements: Range<usize>,
        numbers: Range<usize>,
        sink: &SelectionOutput,
    ) -> Vec<Launch> {
        let number = |number: usize| Argument::U64(number as u64);
        let policy = policy(codec.not_finite);
        let len = elements.len();
        let tiles = len.div_ceil(TILE);
        let from = [Argument::OperandAt(0, 4 * elements.start), number(len)];
        let over = |entry, arguments: &[Argument]| {
            let blocks = len.div_ceil(4 * THREADS as usize).min(COUNTING);
            each(entry, blocks, THREADS, [&from[..], &[policy], arguments].concat())
        };
        let choice = self.choice;
        let arguments = vec![number(numbers.len()), self.bins, choice];
        let choose = Launch { entry: "top_k_choose", blocks: 1, threads: ALL_THREADS, arguments };
        let refusing = Argument::RefusingAt(elements.start as u64);
        let place = [number(elements.start), number(numbers.start), choice, self.marks, self.counts, policy];
        let keep = [&from[..], &place, &sink.arguments()].concat();
        vec![
            choose,
            over("top_k_spread", &[self.bins, refusing]),
            self.narrow(0),
            over("top_k_mark", &[choice, self.marks, self.bins]),
            self.narrow(1),
            over("top_k_refine", &[choice, self.marks, self.bins]),
            self.narrow(2),
            each("top_k_count", tiles, THREADS, {
                [&from[..], &[policy, choice, self.marks, self.counts]].concat()
            }),
            scan(self.counts, tiles),
            each("top_k_keep", tiles, THREADS, keep),
        ]
    }

    fn narrow(&self, level: usize) -> Launch {
        let (count, shift) = LEVELS[level];
        let arguments = vec![self.bins, Argument::U32(count), Argument::U32(shift), self.choice];
        Launch { entry: "top_k_narrow", blocks: 1, threads: ALL_THREADS, arguments }
    }
}

fn scan(counts: Argument, tiles: usize) -> Launch {
    let arguments = vec![counts, Argument::U64(tiles as u64)];
    Launch { entry: "top_k_scan", blocks: 1, threads: SCAN_THREADS, arguments }
}

/// Returns the launches that write k values in two bits to the beginning of a message.
fn in_bins(k: usize, kept: Argument, room: &mut ScratchAllocator) -> [Launch; 6] {
    let pieces = k.div_ceil(PIECE);
    let moments = room.take(16);
    let sums = room.take(4 * 8 * pieces);
    let counts = room.take(4 * 8 * pieces);
    let count = Argument::U64(k as u64);
    let squares = |squares| Argument::U32(u32::from(squares));
    let codes = Argument::OperandAt(1, 16);
    let sum = |is: bool| each("top_k_sum", pieces, WIDE, vec![kept, count, squares(is), moments, sums]);
    let moment = |is: bool| each("top_k_moment", 1, WIDE, vec![sums, count, squares(is), moments]);
    [
        sum(false),
        moment(false),
        sum(true),
        moment(true),
        each("top_k_bin", pieces, WIDE, vec![kept, count, moments, sums, counts, codes]),
        each("top_k_means", 1, WIDE, vec![sums, counts, count, Argument::Operand(1)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, Keep};
    use hexagram_physical::testing::check_program;

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        let whole = TopK::new(Keep::Ratio(0.01)).unwrap();
        let few = whole.in_chunks(1 << 16);
        for codec in [whole, few, whole.in_two_bits(), TopK::sparse_loco()] {
            for len in [0, 1, 1000, 1 << 15, 100_000, 1 << 20, 1 << 40] {
                check_program(&codec.encode_program(len, 1).unwrap());
                check_program(&codec.decode_program(len, None).unwrap());
            }
        }
    }
}
