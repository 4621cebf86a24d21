//! Programs of QSGD: the entries of `qsgd.cu` that a device launches.

use super::{BLOCK, Qsgd};
use crate::codec::shared::launches::{each, policy, program};
use hexagram_physical::device::program::{Argument, Code, Launch, Module, Program};

static QSGD: Module = Module { name: "qsgd", code: Code::Packed(hexagram_ptx::QSGD) };

/// Threads for one piece, which is packed together.
const THREADS: u32 = 64;
/// Threads that add the sums of many pieces.
const NORM_THREADS: u32 = 512;

impl Qsgd {
    pub(super) fn encoding(&self, len: usize, seed: u64) -> Program {
        let pieces = self.pieces(len);
        if pieces == 0 {
            return program(&QSGD, Vec::new());
        }
        let layout = self.layout(len);
        let policy = policy(self.not_finite);
        let code = [Argument::U32(self.levels.count()), Argument::U32(self.levels.bits())];
        let draw = [policy, Argument::U64(seed)];
        if self.bucket <= BLOCK {
            let to = [Argument::Operand(1), Argument::Refusing];
            return program(&QSGD, vec![piecewise("qsgd_encode", pieces, &[&layout, &code, &draw, &to])]);
        }
        let squares = Argument::Scratch(0);
        let norms = Argument::Scratch(8 * pieces);
        let buckets = len.div_ceil(self.bucket);
        let sum = piecewise("qsgd_squares", pieces, &[&layout, &[policy, squares, Argument::Refusing]]);
        let [_, numbers @ ..] = &layout;
        let head = [code[1], norms, Argument::Operand(1)];
        let many = self.bucket.min(len).div_ceil(BLOCK) > 2 * THREADS as usize;
        let threads = if many { NORM_THREADS } else { THREADS };
        let heads = each("qsgd_norms", buckets, threads, [&[squares], &numbers[..], &head].concat());
        let pack = piecewise("qsgd_pack", pieces, &[&layout, &code, &draw, &[norms, Argument::Operand(1)]]);
        Program { scratch: 8 * pieces + 4 * buckets, ..program(&QSGD, vec![sum, heads, pack]) }
    }

    pub(super) fn decoding(&self, len: usize, weight: Option<f32>) -> Program {
        let pieces = self.pieces(len);
        if pieces == 0 {
            return program(&QSGD, Vec::new());
        }
        let code = [Argument::U32(self.levels.count()), Argument::U32(self.levels.bits())];
        let factor = [Argument::F32(weight.unwrap_or(1.0)), Argument::U32(u32::from(weight.is_none()))];
        let to = [Argument::Operand(1), Argument::Refusing];
        let launch = piecewise("qsgd_decode", pieces, &[&self.layout(len), &code, &factor, &to]);
        Program {
            damage: "a norm below 0 or infinite, or a level above the largest",
            ..Program::of(&QSGD, launch)
        }
    }

    /// Returns the number of pieces of all buckets.
    fn pieces(&self, len: usize) -> usize {
        len / self.bucket * self.bucket.div_ceil(BLOCK) + (len % self.bucket).div_ceil(BLOCK)
    }

    /// Returns the input, and its division.
    fn layout(&self, len: usize) -> [Argument; 4] {
        let number = |number: usize| Argument::U64(number as u64);
        [Argument::Operand(0), number(len), number(self.bucket), number(self.pieces(len))]
    }
}

fn piecewise(entry: &'static str, count: usize, arguments: &[&[Argument]]) -> Launch {
    each(entry, count, THREADS, arguments.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use hexagram_physical::testing::check_program;

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        for bucket in [1, 512, 513, 1 << 40] {
            let codec = Qsgd { bucket, ..Qsgd::default() };
            for len in [0, 1, 512, 100_000] {
                codec.encode_program(len, 1).iter().for_each(check_program);
                codec.decode_program(len, None).iter().for_each(check_program);
            }
        }
    }
}
