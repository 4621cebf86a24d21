//! Programs of a queue's arithmetic: the module, its entry, and the number of threads.
//!
//! Operands have the numbers of [`Argument::Operand`]: inputs first, then outputs. Integers have neither factors nor
//! weights; their programs launch nothing.

use crate::device::operations::program::{Argument, Code, Launch, Module, Program};
use crate::memory::dtype::{DType, ReduceOp};

static REDUCE: Module = Module { name: "reduce", code: Code::Packed(hexagram_ptx::REDUCE) };
static WEIGHTED: Module = Module { name: "weighted", code: Code::Packed(hexagram_ptx::WEIGHTED) };

/// Modules of all programs here.
pub(super) static MODULES: [&Module; 2] = [&REDUCE, &WEIGHTED];

/// Bytes that a thread loads or stores with one instruction.
const RUN: usize = 16;

/// Terms that are parameters of one launch.
const PARAMETERS: usize = 8;

/// Bytes of a term in the table: its address and its weight.
const TERM: usize = 16;

/// Chooses an entry of every type but booleans, by the type in its name.
macro_rules! of_any {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            DType::U8 | DType::Bool => concat!($name, "_u8"),
            DType::I8 => concat!($name, "_i8"),
            DType::I16 => concat!($name, "_i16"),
            DType::I32 => concat!($name, "_i32"),
            DType::I64 => concat!($name, "_i64"),
            DType::F16 => concat!($name, "_f16"),
            DType::BF16 => concat!($name, "_bf16"),
            DType::F32 => concat!($name, "_f32"),
            DType::F64 => concat!($name, "_f64"),
        }
    };
}

/// Chooses an entry of every float type, by the type in its name.
macro_rules! of_float {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            DType::F16 => Some(concat!($name, "_f16")),
            DType::BF16 => Some(concat!($name, "_bf16")),
            DType::F32 => Some(concat!($name, "_f32")),
            DType::F64 => Some(concat!($name, "_f64")),
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::Bool => None,
        }
    };
}

/// Returns the program of `to ← to ∘ from`, whose operands are `from` and `to`.
pub(super) fn reduce(op: ReduceOp, dtype: DType, len: usize) -> Program {
    let is_bool = dtype == DType::Bool;
    let op = op.of(dtype);
    let entry = match op {
        ReduceOp::Sum | ReduceOp::Mean => of_any!("reduce_sum", dtype.unsigned()),
        ReduceOp::Product => of_any!("reduce_product", dtype.unsigned()),
        ReduceOp::Min => of_any!("reduce_min", dtype),
        ReduceOp::Max => of_any!("reduce_max", dtype),
        ReduceOp::BitAnd if is_bool => "reduce_land_u8",
        ReduceOp::BitAnd => "reduce_band_u8",
        ReduceOp::BitOr if is_bool => "reduce_lor_u8",
        ReduceOp::BitOr => "reduce_bor_u8",
        ReduceOp::BitXor if is_bool => "reduce_lxor_u8",
        ReduceOp::BitXor => "reduce_bxor_u8",
    };
    // Bits are combined as bytes, for integers of any width.
    let (dtype, len) = if op.is_bitwise() { (DType::U8, len * dtype.size()) } else { (dtype, len) };
    let arguments = vec![Argument::Operand(0), Argument::Operand(1), Argument::U64(len as u64)];
    program(&REDUCE, [over(entry, dtype, len, arguments)])
}

/// Returns the program of `to ← factor × to`, whose operand is `to`.
pub(super) fn scale(factor: f64, dtype: DType, len: usize) -> Program {
    let factor = if dtype.is_half() { Argument::F32(factor as f32) } else { Argument::F64(factor) };
    let arguments = vec![factor, Argument::Operand(0), Argument::U64(len as u64)];
    program(&REDUCE, of_float!("reduce_scale", dtype).map(|entry| over(entry, dtype, len, arguments)))
}

/// Returns the program of `to ← to + weight × from`, whose operands are `from` and `to`.
pub(super) fn add_scaled(weight: f64, dtype: DType, len: usize) -> Program {
    let weight = if dtype == DType::F64 { Argument::F64(weight) } else { Argument::F32(weight as f32) };
    let arguments = vec![weight, Argument::Operand(0), Argument::Operand(1), Argument::U64(len as u64)];
    program(&REDUCE, of_float!("reduce_add_scaled", dtype).map(|entry| over(entry, dtype, len, arguments)))
}

/// Returns the program of `to ← Σ weight × term`. Its operands are the terms in their order, without those that are
/// `None` (these stand for `to`), and then `to`.
pub(super) fn weighted_sum<T>(terms: &[(f64, Option<T>)], dtype: DType, len: usize) -> Program {
    let to = Argument::Operand(terms.iter().filter(|(_, term)| term.is_some()).count());
    let mut read = 0;
    let terms = terms.iter().map(|(weight, term)| {
        let operand = if term.is_some() { Argument::Operand(read) } else { to };
        read += usize::from(term.is_some());
        (operand, weight_of(*weight, dtype))
    });
    let terms: Vec<_> = terms.collect();
    if terms.len() <= PARAMETERS { direct(&terms, to, dtype, len) } else { by_table(&terms, to, dtype, len) }
}

/// Returns the weight in the type of the sum.
fn weight_of(weight: f64, dtype: DType) -> Argument {
    if dtype.is_half() { Argument::F32(weight as f32) } else { Argument::F64(weight) }
}

/// Returns the program of a sum whose terms are parameters.
fn direct(terms: &[(Argument, Argument)], to: Argument, dtype: DType, len: usize) -> Program {
    let mut arguments = vec![to, Argument::U64(len as u64), Argument::U32(terms.len() as u32)];
    arguments.extend(padded(terms, to, dtype));
    program(&WEIGHTED, of_float!("weighted_sum", dtype).map(|entry| over(entry, dtype, len, arguments)))
}

/// Returns the program of a sum that finds its terms in a table, to which they are written first.
fn by_table(terms: &[(Argument, Argument)], to: Argument, dtype: DType, len: usize) -> Program {
    let rows = terms.chunks(PARAMETERS).enumerate().filter_map(|(number, terms)| {
        let mut arguments = vec![Argument::Scratch(number * PARAMETERS * TERM)];
        arguments.extend(padded(terms, to, dtype));
        of_float!("weighted_terms", dtype).map(|entry| Launch { entry, blocks: 1, threads: 1, arguments })
    });
    let count = Argument::U32(terms.len() as u32);
    let arguments = vec![to, Argument::U64(len as u64), count, Argument::Scratch(0)];
    let sum = of_float!("weighted_table", dtype).map(|entry| Launch::over(entry, len, arguments));
    let scratch = terms.len().next_multiple_of(PARAMETERS) * TERM;
    Program { scratch, ..program(&WEIGHTED, rows.chain(sum)) }
}

/// Returns the arguments of up to 8 terms, padded with unused ones to 8.
fn padded(terms: &[(Argument, Argument)], to: Argument, dtype: DType) -> Vec<Argument> {
    let unused = std::iter::repeat((to, weight_of(0.0, dtype)));
    terms.iter().copied().chain(unused).take(PARAMETERS).flat_map(|(term, weight)| [term, weight]).collect()
}

/// Returns the launch of an entry that iterates over elements in runs of 16 bytes.
fn over(entry: &'static str, dtype: DType, len: usize, arguments: Vec<Argument>) -> Launch {
    Launch::over(entry, len.div_ceil(RUN / dtype.size()), arguments)
}

fn program(module: &'static Module, launches: impl IntoIterator<Item = Launch>) -> Program {
    Program { module, launches: launches.into_iter().collect(), scratch: 0, damage: "", then: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_program;

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        for dtype in DType::ALL {
            for len in [0, 1, 300, 1 << 40] {
                ReduceOp::ALL.into_iter().for_each(|op| check_program(&reduce(op, dtype, len)));
                check_program(&scale(0.5, dtype, len));
                check_program(&add_scaled(0.5, dtype, len));
                for count in 0..20 {
                    let terms: Vec<(f64, Option<()>)> =
                        (0..count).map(|term| (0.5, (term % 3 != 0).then_some(()))).collect();
                    check_program(&weighted_sum(&terms, dtype, len));
                }
            }
        }
    }

    #[test]
    fn every_type_that_has_an_operation_has_a_launch() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let launches = reduce(op, dtype, 5).launches;
                let kind = match op.of(dtype) {
                    op if op.is_bitwise() => DType::U8,
                    ReduceOp::Min | ReduceOp::Max => dtype,
                    _ => dtype.unsigned(),
                };
                assert!(launches[0].entry.ends_with(&format!("_{kind}")), "{op} of {dtype}: {launches:?}");
            }
            let launches = [
                scale(0.5, dtype, 5).launches.len(),
                add_scaled(0.5, dtype, 5).launches.len(),
                weighted_sum(&[(0.5, None::<()>); 8], dtype, 5).launches.len(),
                weighted_sum(&[(0.5, None::<()>); 17], dtype, 5).launches.len(),
            ];
            assert_eq!(launches, if dtype.is_float() { [1, 1, 1, 4] } else { [0; 4] }, "{dtype}");
        }
    }

    #[test]
    fn terms_are_numbered_as_they_are_read() {
        let program = weighted_sum(&[(0.25, Some(())), (0.5, None), (2.0, Some(()))], DType::F16, 5);
        let arguments = &program.launches[0].arguments;
        assert_eq!(arguments[..3], [Argument::Operand(2), Argument::U64(5), Argument::U32(3)]);
        let terms = [(0, 0.25), (2, 0.5), (1, 2.0), (2, 0.0)];
        let terms = terms.map(|(operand, weight)| [Argument::Operand(operand), Argument::F32(weight)]);
        assert_eq!(arguments[3..11], terms.concat());
    }
}
