//! Memory of collectives: none stays, for any number of calls, and little is used temporarily, for any size. Ranks
//! are threads, so the process is their sum.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram_logical::testing::spawn;
use hexagram_logical::{Buffer, Communicator, DType, ReduceOp, Result, TransportKind};
use std::fs;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

const RANKS: usize = 2;
const TRANSPORTS: [TransportKind; 3] = [TransportKind::Shm, TransportKind::Tcp, TransportKind::Mixed];

/// Measures the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number of /proc/self/status, there in KiB, in bytes.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

fn resident() -> usize {
    status("VmRSS")
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The result of `measure` on rank 0, while the others wait.
fn meanwhile<R>(comm: &Communicator, measure: impl FnOnce() -> R) -> Result<Option<R>> {
    comm.block_on(comm.barrier())?;
    let measured = (comm.rank() == 0).then(measure);
    comm.block_on(comm.barrier())?;
    Ok(measured)
}

/// A buffer of which every page is there.
fn full(len: usize, value: f32) -> Buffer {
    let mut buffer = Buffer::zeroed(DType::F32, len).unwrap();
    buffer.host_mut::<f32>().unwrap().fill(value);
    buffer
}

/// One of each kind, on buffers of rank and size that fit.
fn operate(comm: &Communicator, one: &mut Buffer, all: &mut Buffer) -> Result<()> {
    comm.block_on(comm.all_reduce(all, ReduceOp::Mean))?;
    comm.block_on(comm.reduce_scatter(all, one, ReduceOp::Sum))?;
    comm.block_on(comm.reduce(all, ReduceOp::Sum, 1))?;
    comm.block_on(comm.all_gather(one, all))?;
    comm.block_on(comm.broadcast(all, 0))?;
    Ok(())
}

#[test]
fn ten_thousand_operations_leave_nothing_behind() {
    let _alone = alone();
    for transport in TRANSPORTS {
        let grown = spawn(transport, RANKS, |comm| {
            let mut one = full(64, 1.0);
            let mut all = full(RANKS * 64, 1.0);
            let mut repeat = |times| (0..times).try_for_each(|_| operate(&comm, &mut one, &mut all));
            repeat(400)?;
            let before = meanwhile(&comm, || (resident(), descriptors()))?;
            repeat(2000)?;
            let after = meanwhile(&comm, || (resident(), descriptors()))?;
            Ok(before.zip(after))
        });
        let (before, after) = grown.unwrap()[0].unwrap();
        let grown = after.0.saturating_sub(before.0);
        let _ = writeln!(io::stderr(), "{transport}: {} KiB more after 10 000 operations", grown >> 10);
        // 26 bytes of every operation of a rank.
        assert!(grown < 512 << 10, "{transport}: {grown} bytes");
        assert_eq!(before.1, after.1, "{transport}: descriptors");
    }
}

#[test]
fn staging_is_small_whatever_the_size() {
    let _alone = alone();
    let len = (128 << 20) / size_of::<f32>();
    for transport in TRANSPORTS {
        let staged = spawn(transport, RANKS, |comm| {
            let mut one = full(len / RANKS, 1.0);
            let mut all = full(len, 1.0);
            // The peak begins anew where this is written.
            let before = meanwhile(&comm, || fs::write("/proc/self/clear_refs", "5").map(|()| resident()))?;
            operate(&comm, &mut one, &mut all)?;
            Ok(before.map(|before| (before.unwrap(), status("VmHWM"))))
        });
        let (before, peak) = staged.unwrap()[0].unwrap();
        let staged = peak.saturating_sub(before) / RANKS;
        let _ = writeln!(io::stderr(), "{transport}: {} KiB a rank beside the buffers", staged >> 10);
        assert!(staged < 32 << 20, "{transport}: {staged} bytes");
    }
}
