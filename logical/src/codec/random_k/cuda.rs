//! Programs of random-k: the entries of `random_k.cu` that a device launches.

use super::{RandomK, SEED};
use crate::codec::shared::launches::{policy, program};
use hexagram_physical::device::program::{Argument, Code, Launch, Module, Program};

static RANDOM_K: Module = Module { name: "random_k", code: Code::Packed(hexagram_ptx::RANDOM_K) };

/// Place of the flag for NaN and infinity, in scratch memory.
const ODD: Argument = Argument::Scratch(0);

impl RandomK {
    /// Returns the encoding program; `None` for more places than its arithmetic supports.
    pub(super) fn encoding(&self, len: usize, seed: u64) -> Option<Program> {
        let arguments = vec![Argument::U64(seed), ODD, Argument::Operand(1)];
        let begin = Launch { entry: "random_k_begin", blocks: 1, threads: 1, arguments };
        self.keeping(begin, Argument::OperandAt(1, SEED), len, seed)
    }

    /// Returns the encoding program without the seed, for a linear codec; `None` as for [`encoding`](Self::encoding).
    pub(super) fn encoding_values(&self, len: usize, seed: u64) -> Option<Program> {
        let begin = Launch::over("random_k_clear", 1, vec![ODD, Argument::U64(1)]);
        self.keeping(begin, Argument::Operand(1), len, seed)
    }

    /// Returns the program with this first launch, which writes the kept elements.
    fn keeping(&self, begin: Launch, values: Argument, len: usize, seed: u64) -> Option<Program> {
        let from = Argument::Operand(0);
        let k = u32::try_from(self.keep.of(len)).ok()?;
        let scratch = size_of::<u32>();
        if k == 0 {
            return Some(Program { scratch, ..program(&RANDOM_K, vec![begin]) });
        }
        let count = Argument::U64(len as u64);
        let policy = policy(self.not_finite);
        let arguments = vec![from, count, policy, ODD, Argument::Refusing];
        let look = Launch::over("random_k_look", len.div_ceil(4), arguments);
        let scale = Argument::F32(self.scale(len, k as usize));
        let number = Argument::U64(u64::from(k));
        let arguments = vec![from, count, number, scale, policy, Argument::U64(seed), ODD, values];
        let keep = Launch::over("random_k_keep", k as usize, arguments);
        Some(Program { scratch, ..program(&RANDOM_K, vec![begin, look, keep]) })
    }

    /// Returns the decoding program; `None` if there is no encoding program. Every message of the right size is
    /// valid.
    pub(super) fn decoding(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        let to = Argument::Operand(1);
        let count = Argument::U64(len as u64);
        let k = u32::try_from(self.keep.of(len)).ok()?;
        let clear = clear(len);
        let weight_or_one = Argument::F32(weight.unwrap_or(1.0));
        let arguments = vec![Argument::Operand(0), count, Argument::U64(u64::from(k)), weight_or_one, to];
        let add = Launch::over("random_k_add", k as usize, arguments);
        let launches = weight.is_none().then_some(clear).into_iter().chain((k > 0).then_some(add));
        Some(program(&RANDOM_K, launches.collect()))
    }

    /// Returns the decoding program without the seed, for a linear codec; `None` as for [`encoding`](Self::encoding).
    pub(super) fn decoding_values(&self, len: usize, seed: u64) -> Option<Program> {
        let k = u32::try_from(self.keep.of(len)).ok()?;
        let sizes = [len as u64, u64::from(k), seed].map(Argument::U64);
        let arguments = [Argument::Operand(0)].into_iter().chain(sizes).chain([Argument::Operand(1)]);
        let put = Launch::over("random_k_put", k as usize, arguments.collect());
        let launches = std::iter::once(clear(len)).chain((k > 0).then_some(put));
        Some(program(&RANDOM_K, launches.collect()))
    }
}

/// Returns the launch that sets the output to 0.
fn clear(len: usize) -> Launch {
    Launch::over("random_k_clear", len, vec![Argument::Operand(1), Argument::U64(len as u64)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, Keep};
    use hexagram_physical::testing::check_program;

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        let codec = RandomK::new(Keep::Ratio(0.5)).unwrap();
        for len in [0, 1, 100_000] {
            check_program(&codec.encode_program(len, 1).unwrap());
            check_program(&codec.decode_program(len, None).unwrap());
            check_program(&codec.encoding_values(len, 1).unwrap());
            check_program(&codec.decoding_values(len, 1).unwrap());
        }
        assert_eq!(codec.encode_program(1 << 40, 1), None);
        assert_eq!(codec.encoding_values(1 << 40, 1), None);
        assert_eq!(codec.decoding_values(1 << 40, 1), None);
    }
}
