//! The measurement loop. Apart from the operation, it only reads a clock.

use super::Bench;
use super::operation::{BenchCall, BenchMemory};
use super::pattern::{Pattern, spoil};
use super::report::{BenchDevice, BenchRow, Times};
use hexagram::logical::runtime;
use hexagram::testing::Reference;
use hexagram::{Communicator, Error, ReduceOp, Result};
use std::time::Duration;

/// Above this size, in bytes, a barrier precedes each iteration. Small operations keep the ranks in step by
/// themselves, and a barrier would distort their times.
const BARRIER_ABOVE: usize = 256 << 10;
const LARGE_ABOVE: usize = 16 << 20;

/// Returns the number of iterations that give a stable median for operations of `bytes` bytes.
fn iterations(bytes: usize) -> u32 {
    if bytes <= BARRIER_ABOVE {
        200
    } else if bytes <= LARGE_ABOVE {
        20
    } else {
        5
    }
}

/// Measures the next size up to `bytes` that divides evenly, and checks before and after.
///
/// # Errors
/// The errors of the operation. Wrong elements are counted, not an error.
pub(super) fn measure(
    bench: &Bench,
    comm: &Communicator,
    place: &BenchDevice,
    bytes: usize,
) -> Result<BenchRow> {
    let Bench { operation, dtype, registered, .. } = *bench;
    let memory = BenchMemory { queue: &place.queue, registered };
    let reduce = bench.reduce();
    let codec = bench.codec.as_ref();
    let (block, blocks) = operation.blocks(bytes / dtype.size(), comm.size());
    let mut work = BenchCall::new(comm, operation, (dtype, reduce), (block, blocks), memory, codec)?;
    let pattern = |round| Pattern { operation, reduce, dtype, ranks: comm.size(), block, round, hop: 0 };

    let mut wrong = check(comm, &mut work, pattern(1))?;
    fill(comm, &mut work, pattern(2))?;
    let bytes = block * blocks * dtype.size();
    let times = time(bench, comm, &mut work, bytes)?;
    wrong += check(comm, &mut work, pattern(3))?;

    let reduce = operation.reduces().then_some(reduce);
    let transport = comm.world().transport();
    let ranks = comm.size();
    let times = Times::of(times);
    let codec = codec.map(|codec| codec.name());
    Ok(BenchRow {
        operation,
        transport,
        ranks,
        registered,
        device: place.queue.name().to_owned(),
        path: place.path(),
        bytes,
        count: block,
        dtype,
        reduce,
        codec,
        times,
        wrong,
    })
}

/// Runs the operation once, and counts the wrong elements of all ranks.
fn check(comm: &Communicator, work: &mut BenchCall<'_>, pattern: Pattern) -> Result<u64> {
    let pattern = Pattern { hop: work.hop()?, ..pattern };
    spoil(work.result())?;
    fill(comm, work, pattern)?;
    let reference = |encoding| Reference::new(encoding, comm.size(), pattern.block, pattern.reduce);
    let reference = work.encoding.as_ref().map(reference);
    work.once()?;
    let here = match reference {
        Some(mut reference) => pattern.wrong_encoded(&mut reference, work.result())?,
        None => pattern.wrong(comm.rank(), work.result())?,
    };
    let mut all = [i64::try_from(here).unwrap_or(i64::MAX)];
    comm.blocking().all_reduce(&mut all, ReduceOp::Sum)?;
    // The sum that adds the counts may itself be broken.
    Ok(u64::try_from(all[0]).unwrap_or(u64::MAX).max(here))
}

/// Fills in this rank's contribution.
fn fill(comm: &Communicator, work: &mut BenchCall<'_>, pattern: Pattern) -> Result<()> {
    match work.encoding {
        Some(_) => pattern.fill_signed(comm.rank(), &mut work.input),
        None => pattern.fill(comm.rank(), &mut work.input),
    }
}

/// Returns the time of each iteration on this rank, or their mean. In-place sums grow from one iteration to the next,
/// possibly to infinity, which is as fast to add as any other number.
fn time(bench: &Bench, comm: &Communicator, work: &mut BenchCall<'_>, bytes: usize) -> Result<Vec<Duration>> {
    for _ in 0..bench.warmup {
        work.once()?;
    }
    let iterations = bench.iters.unwrap_or_else(|| iterations(bytes));
    let mut times = Vec::new();
    times.try_reserve_exact(iterations as usize).map_err(|_| {
        Error::usage(
            format!("not enough memory for the times of {iterations} iterations"),
            "use a smaller --iters",
        )
    })?;
    if bench.back_to_back {
        comm.block_on(comm.barrier())?;
        let start = runtime::now();
        (0..iterations).try_for_each(|_| work.once())?;
        return Ok(vec![start.elapsed() / iterations]);
    }
    for _ in 0..iterations {
        if bytes > BARRIER_ABOVE {
            comm.block_on(comm.barrier())?;
        }
        let start = runtime::now();
        work.once()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_operations_are_repeated_most() {
        let sizes = [0, 8, 256 << 10, (256 << 10) + 4, 16 << 20, (16 << 20) + 4, 1 << 30];
        assert_eq!(sizes.map(iterations), [200, 200, 200, 20, 20, 5, 5]);
    }
}
