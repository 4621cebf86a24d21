//! The program that combines the contributions of all ranks to one part of a result: the order, and the launches.

use crate::device::operations::program::{Argument, Code, Launch, Module, Program};
use crate::memory::dtype::{DType, ReduceOp};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::Size;

pub(super) static COMBINE: Module = Module { name: "combine", code: Code::Packed(hexagram_ptx::COMBINE) };

/// Contributions that are parameters of one launch.
const MOST: usize = 4;

/// Bytes that a thread loads and stores with one instruction.
const RUN: usize = 16;

/// Bytes of an address in the table.
const ADDRESS: usize = 8;

/// Order in which contributions are combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CombinationOrder {
    /// Ranks in that order. In a tree, the leaves come first, and then the rank that folds into each leaf, `None` for a leaf
    /// without one.
    ranks: Vec<Option<usize>>,
    /// Number of leaves of a tree, a power of two; 0 along a ring.
    leaves: usize,
}

impl CombinationOrder {
    /// Returns the order of the part of a result that belongs to `owner`: that of shared memory, and of messages.
    pub(super) fn of(fingerprint: &Fingerprint, ranks: usize, owner: usize) -> Self {
        let bytes = fingerprint.count as usize * fingerprint.dtype.size();
        let is_reduced_by_all = fingerprint.operation == OperationKind::AllReduce;
        // Two contributions are combined in one order only.
        let is_tree = ranks > 2 && is_reduced_by_all && Size::of(bytes, ranks) == Size::Middle;
        if is_tree { Self::tree(ranks) } else { Self::ring(ranks, owner) }
    }

    /// Returns the order of ranks owner + 1, owner + 2, …, owner.
    fn ring(ranks: usize, owner: usize) -> Self {
        CombinationOrder {
            ranks: (1..=ranks).map(|distance| Some((owner + distance) % ranks)).collect(),
            leaves: 0,
        }
    }

    /// Returns the order of a balanced tree, whose leaves are the first ranks, up to the largest power of two. Ranks at half of
    /// that distance are combined first, so they are neighbours in the order. The remaining ranks fold into the first leaves
    /// before that.
    fn tree(ranks: usize) -> Self {
        let bits = ranks.ilog2();
        let leaves = 1usize << bits;
        let leaf = |at: usize| if bits == 0 { 0 } else { at.reverse_bits() >> (usize::BITS - bits) };
        let folded = |at: usize| Some(leaf(at) + leaves).filter(|rank| *rank < ranks);
        let folds = if leaves < ranks { leaves } else { 0 };
        let ranks = (0..leaves).map(|at| Some(leaf(at))).chain((0..folds).map(folded)).collect();
        CombinationOrder { ranks, leaves }
    }
}

/// Chooses an entry of every type but booleans, by the type in its name.
macro_rules! entry {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            DType::I8 => [concat!("combine_", $name, "_i8"), concat!("combine_table_", $name, "_i8")],
            DType::I16 => [concat!("combine_", $name, "_i16"), concat!("combine_table_", $name, "_i16")],
            DType::U8 | DType::Bool => {
                [concat!("combine_", $name, "_u8"), concat!("combine_table_", $name, "_u8")]
            }
            DType::I32 => [concat!("combine_", $name, "_i32"), concat!("combine_table_", $name, "_i32")],
            DType::I64 => [concat!("combine_", $name, "_i64"), concat!("combine_table_", $name, "_i64")],
            DType::F16 => [concat!("combine_", $name, "_f16"), concat!("combine_table_", $name, "_f16")],
            DType::BF16 => [concat!("combine_", $name, "_bf16"), concat!("combine_table_", $name, "_bf16")],
            DType::F32 => [concat!("combine_", $name, "_f32"), concat!("combine_table_", $name, "_f32")],
            DType::F64 => [concat!("combine_", $name, "_f64"), concat!("combine_table_", $name, "_f64")],
        }
    };
}

/// Returns the names of the entries for parameters and for a table.
fn entries(op: ReduceOp, dtype: DType) -> [&'static str; 2] {
    match op.of(dtype) {
        ReduceOp::Mean if dtype.is_float() => entry!("mean", dtype),
        ReduceOp::Sum | ReduceOp::Mean => entry!("sum", dtype.unsigned()),
        ReduceOp::Product => entry!("product", dtype.unsigned()),
        ReduceOp::Min => entry!("min", dtype),
        ReduceOp::Max => entry!("max", dtype),
        ReduceOp::BitAnd if dtype == DType::Bool => entry!("land", DType::U8),
        ReduceOp::BitAnd => entry!("band", DType::U8),
        ReduceOp::BitOr if dtype == DType::Bool => entry!("lor", DType::U8),
        ReduceOp::BitOr => entry!("bor", DType::U8),
        ReduceOp::BitXor if dtype == DType::Bool => entry!("lxor", DType::U8),
        ReduceOp::BitXor => entry!("bxor", DType::U8),
    }
}

/// Returns the program of one part of this many `elements`, and its operands, from the address of each rank's contribution.
pub(super) fn program(
    fingerprint: &Fingerprint,
    order: &CombinationOrder,
    contributions: &[u64],
    to: u64,
    elements: usize,
) -> (Program, Vec<u64>) {
    // The ranks' contributions, then the result, then null.
    let operands = contributions.iter().copied().chain([to, 0]).collect();
    let to = contributions.len();
    let op = fingerprint.reduce.unwrap_or(ReduceOp::Sum);
    let dtype = fingerprint.dtype;
    let factor = 1.0 / contributions.len() as f64;
    let factor = if dtype.is_half() { Argument::F32(factor as f32) } else { Argument::F64(factor) };
    let mut arguments: Vec<Argument> = Some(factor).into_iter().collect();
    arguments.retain(|_| op == ReduceOp::Mean && dtype.is_float());
    let [direct, by_table] = entries(op, dtype);
    // Bits are combined as bytes, for integers of any width.
    let bytes = (DType::U8, elements * dtype.size());
    let (dtype, elements) = if op.of(dtype).is_bitwise() { bytes } else { (dtype, elements) };
    let len = Argument::U64(elements as u64);
    arguments.push(Argument::U32(order.ranks.len() as u32));
    if order.leaves == 0 && order.ranks.len() <= MOST {
        arguments.extend([len, Argument::Operand(to)]);
        arguments.extend(rows_of(&order.ranks, to));
        let launch = Launch::over(direct, elements.div_ceil(RUN / dtype.size()), arguments);
        return (Program::of(&COMBINE, launch), operands);
    }
    arguments.extend([Argument::U32(order.leaves as u32), len, Argument::Operand(to), Argument::Scratch(0)]);
    let combine = Launch::over(by_table, elements, arguments);
    let launches = table(order, to + 1).chain([combine]).collect();
    (Program::in_turn(&COMBINE, launches, order.ranks.len().next_multiple_of(MOST) * ADDRESS), operands)
}

/// Returns the launches that write the table, some rows each.
fn table(order: &CombinationOrder, null: usize) -> impl Iterator<Item = Launch> {
    order.ranks.chunks(MOST).enumerate().map(move |(number, ranks)| {
        let mut arguments = vec![Argument::Scratch(number * MOST * ADDRESS)];
        arguments.extend(rows_of(ranks, null));
        Launch { entry: "combine_entries", blocks: 1, threads: 1, arguments }
    })
}

/// Returns the operands of some ranks, padded with unused ones to the number of a launch.
fn rows_of(ranks: &[Option<usize>], unused: usize) -> impl Iterator<Item = Argument> {
    let rows = ranks.iter().map(move |rank| rank.unwrap_or(unused));
    rows.chain(std::iter::repeat(unused)).take(MOST).map(Argument::Operand)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_program;

    #[test]
    fn every_program_launches_what_is_in_its_module() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                for (ranks, count) in [(2, 1 << 20), (7, 40_000 / dtype.size()), (63, 1000)] {
                    let all = Fingerprint::new(OperationKind::AllReduce, dtype, count);
                    let all = Fingerprint { reduce: Some(op), ..all };
                    let order = CombinationOrder::of(&all, ranks, ranks / 2);
                    let (program, operands) = program(&all, &order, &vec![4096; ranks], 8192, count / ranks);
                    assert_eq!(operands.len(), ranks + 2);
                    check_program(&program);
                }
            }
        }
    }

    #[test]
    fn trees_have_those_first_that_are_half_the_ranks_apart() {
        let some = |ranks: &[usize]| ranks.iter().map(|rank| Some(*rank)).collect::<Vec<_>>();
        assert_eq!(
            CombinationOrder::tree(8),
            CombinationOrder { ranks: some(&[0, 4, 2, 6, 1, 5, 3, 7]), leaves: 8 }
        );
        assert_eq!(CombinationOrder::tree(4), CombinationOrder { ranks: some(&[0, 2, 1, 3]), leaves: 4 });
        let folded = [Some(0), Some(2), Some(1), Some(3), Some(4), None, Some(5), None];
        assert_eq!(CombinationOrder::tree(6), CombinationOrder { ranks: folded.to_vec(), leaves: 4 });
        assert_eq!(CombinationOrder::tree(1), CombinationOrder { ranks: some(&[0]), leaves: 1 });
        assert_eq!(CombinationOrder::ring(3, 1), CombinationOrder { ranks: some(&[2, 0, 1]), leaves: 0 });
    }
}
