//! Programs of random-k: which entries of `random_k.cu` a device launches.

use super::RandomK;
use crate::codec::launches::{policy, program};
use hexagram_physical::device::program::{Argument, Code, Launch, Module, Program};

static RANDOM_K: Module = Module { name: "random_k", code: Code::Ptx(include_str!("../random_k.ptx")) };

impl RandomK {
    /// Returns the program of encoding; `None` for more places than its arithmetic has room for.
    pub(super) fn encoding(&self, len: usize, seed: u64) -> Option<Program> {
        let from = Argument::Operand(0);
        let odd = Argument::Scratch(0);
        let to = Argument::Operand(1);
        let k = u32::try_from(self.keep.of(len)).ok()?;
        let arguments = vec![Argument::U64(seed), odd, to];
        let begin = Launch { entry: "random_k_begin", blocks: 1, threads: 1, arguments };
        let scratch = size_of::<u32>();
        if k == 0 {
            return Some(Program { scratch, ..program(&RANDOM_K, vec![begin]) });
        }
        let count = Argument::U64(len as u64);
        let policy = policy(self.not_finite);
        let arguments = vec![from, count, policy, odd, Argument::Refusing];
        let look = Launch::over("random_k_look", len.div_ceil(4), arguments);
        let scale = Argument::F32(self.scale(len, k as usize));
        let number = Argument::U64(u64::from(k));
        let arguments = vec![from, count, number, scale, policy, Argument::U64(seed), odd, to];
        let keep = Launch::over("random_k_keep", k as usize, arguments);
        Some(Program { scratch, ..program(&RANDOM_K, vec![begin, look, keep]) })
    }

    /// Returns the program of decoding; `None` where there is none of encoding. Every message of the right size is one.
    pub(super) fn decoding(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        let to = Argument::Operand(1);
        let count = Argument::U64(len as u64);
        let k = u32::try_from(self.keep.of(len)).ok()?;
        let clear = Launch::over("random_k_clear", len, vec![to, count]);
        let weight_or_one = Argument::F32(weight.unwrap_or(1.0));
        let arguments = vec![Argument::Operand(0), count, Argument::U64(u64::from(k)), weight_or_one, to];
        let add = Launch::over("random_k_add", k as usize, arguments);
        let launches = weight.is_none().then_some(clear).into_iter().chain((k > 0).then_some(add));
        Some(program(&RANDOM_K, launches.collect()))
    }
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
        }
        assert_eq!(codec.encode_program(1 << 40, 1), None);
    }
}
