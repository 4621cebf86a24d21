//! `hexagram bench`: measures the time of a collective, and checks its result.
//!
//! `operation` defines the operations and their sizes, `pattern` the inputs and expected outputs, `measure` the loop,
//! `report` the columns and the JSON.

mod measure;
mod operation;
mod pattern;
mod report;

use crate::console::{self, PrintError, ProgramError};
use crate::ranks::{ProgramRanks, Ran};
use crate::table::Table;
use crate::transports;
use clap::Args;
use hexagram::codec::{self, Codec};
use hexagram::physical::device::DeviceChoice;
use hexagram::{Communicator, DType, Error, JoinOptions, ReduceOp, Result, TransportKind, World};
use operation::BenchOperation;
use report::{BenchDevice, BenchRow};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const AFTER_HELP: &str = "\
Sizes are bytes, as nccl-tests counts them: of the whole buffer, which all_gather, reduce_scatter and all_to_all \
divide into a block for each rank. K, M and G are powers of 1024. algbw is size/time, busbw the traffic of one link: \
algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, 1 for broadcast (from rank \
0) and send_recv (to the next rank, from the previous one) and gossip (with the peer of a one-peer \
exponential schedule). GB are 10^9 bytes.

time is the median on rank 0, p99 the 99th percentile; all_reduce, broadcast and gossip work in place. \
Above 256 KiB, an untimed barrier precedes each iteration; smaller iterations run back to back. \
#wrong counts elements, on all ranks, that differ from the result computed without communication, before and after the \
measurement. The comparison is bitwise, also for encoded messages; only means have a tolerance.

Exit code: 0 on success; 1 if a rank failed, an element was wrong, or the output could not be written; 2 for invalid \
options; 141 if the reader closed the output, which ends the measurement.

Example: hexagram bench all_reduce --ranks 2 -b 8 -e 64M -f 4";

/// Measure a collective and check its results.
///
/// Under mpirun, srun, torchrun or `hexagram run`, this process is one rank; otherwise it starts the ranks itself.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Bench {
    /// Operation to measure
    #[arg(value_enum, value_name = "OP")]
    operation: BenchOperation,

    /// Number of ranks to start; under a launcher, the number of ranks to expect [default: 2]
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<usize>,

    #[arg(help = transports::help())]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    transport: TransportKind,

    /// Device that has the buffers: cpu, cuda (one for each rank of a host in turn), cuda:N, or auto; the heading names the
    /// path of GPU memory: ipc, nccl (for collectives; messages are staged), or staged by way of the host
    #[arg(long, value_name = "NAME", default_value_t)]
    device: DeviceChoice,

    /// Smallest size, in bytes
    #[arg(short, long, value_name = "SIZE", default_value = "8", value_parser = size)]
    begin: usize,

    /// Largest size, in bytes
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    end: usize,

    /// Factor from one size to the next
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,

    /// Element type: u8, i8, i16, i32, i64, f16, bf16, f32, f64 or bool
    #[arg(short, long, value_name = "TYPE", default_value_t = DType::F32, value_parser = |name: &str| one_of(&DType::ALL, name))]
    dtype: DType,

    /// Reduction: sum, mean, min, max, product, band, bor or bxor [default: sum; mean with --codec]
    #[arg(short = 'o', long = "op", value_name = "REDOP", value_parser = |name: &str| one_of(&ReduceOp::ALL, name))]
    reduce: Option<ReduceOp>,

    #[arg(help = format!("Codec for the messages of all_reduce, as in `top-k(5%)`: {}", codec::names().join(", ")))]
    #[arg(long, value_name = "NAME", value_parser = codec::named)]
    codec: Option<Arc<dyn Codec>>,

    /// Use memory that other ranks of this host can read directly, if the transport supports it
    #[arg(long)]
    registered: bool,

    /// Iterations for each size [default: 200 up to 256 KiB, 20 up to 16 MiB, 5 above]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,

    /// Run iterations back to back at every size, and report the mean of their times
    #[arg(long)]
    back_to_back: bool,

    /// Untimed iterations before the measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    warmup: u32,

    /// Also write the rows to this file, as a JSON list
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Bench {
    /// Measures as one rank, or starts all ranks and waits for them.
    pub(crate) fn execute(self) -> ExitCode {
        match self.start() {
            Ok(0) => ExitCode::SUCCESS,
            Ok(code) => ExitCode::from(code),
            Err(error) => console::failure("hexagram bench", error),
        }
    }

    fn start(&self) -> Result<u8, ProgramError> {
        self.check()?;
        let started = ProgramRanks {
            program: "hexagram bench".to_owned(),
            ranks: self.ranks,
            otherwise: 2,
            deadline: JoinOptions::default().deadline,
            transport: self.transport,
            configuration: String::new(),
        };
        match started.run(|world| self.rank(world))? {
            Ran::Here(wrong) => {
                let wrong: Vec<u64> = wrong.into_iter().collect::<Result<_, _>>()?;
                Ok(u8::from(wrong.into_iter().any(|wrong| wrong > 0)))
            }
            Ran::Elsewhere(code) => Ok(code),
        }
    }

    /// Checks the options before any rank starts.
    fn check(&self) -> Result<()> {
        if self.begin > self.end {
            let what = format!("-b {} is larger than -e {}", self.begin, self.end);
            return Err(Error::usage(what, "choose -b at most -e"));
        }
        if self.begin == 0 && self.end > 0 {
            let what = format!("-b 0 times -f {} never reaches -e", self.factor);
            return Err(Error::usage(what, "choose -b above 0, or -e 0"));
        }
        if self.operation.reduces() {
            self.reduce().check(self.dtype)?;
        }
        if self.operation == BenchOperation::Gossip && !self.dtype.is_float() {
            let what = format!("the mean of two {} elements is undefined", self.dtype);
            return Err(Error::usage(what, "use a floating-point type"));
        }
        // In-place sums grow from one iteration to the next, until they exceed the range of every codec.
        let encodable = self.operation == BenchOperation::AllReduce
            && (self.dtype, self.reduce()) == (DType::F32, ReduceOp::Mean);
        if self.codec.is_some() && !encodable {
            let what = "--codec needs all_reduce with -d f32 and -o mean";
            return Err(Error::usage(what, "leave out --codec, or -d and -o"));
        }
        self.device.check()?;
        self.json.as_deref().map_or(Ok(()), report::writable)
    }

    fn reduce(&self) -> ReduceOp {
        self.reduce.unwrap_or(if self.codec.is_some() { ReduceOp::Mean } else { ReduceOp::Sum })
    }

    /// Runs the whole benchmark on one rank, or the part whose output could be printed. Returns the number of wrong
    /// elements, here or on all ranks.
    fn rank(&self, world: &World) -> Result<Result<u64, PrintError>> {
        let comm = Communicator::open(world, 0)?;
        let queue = self.device.queue(world.local_rank())?;
        let path = comm.attach(&queue)?;
        let place = BenchDevice { queue, path };
        let mut rows = Vec::new();
        let mut table = Table::new(&comm);
        let mut is_printed = table.line(&report::heading(self, comm.size(), &place))?;
        let mut sizes = self.sizes();
        while let Some(bytes) = sizes.next().filter(|_| is_printed) {
            let row = measure::measure(self, &comm, &place, bytes)?;
            is_printed = table.line(&row.to_string())?;
            rows.push(row);
        }
        let head = comm.rank() == 0;
        if let Some(path) = self.json.as_deref().filter(|_| head && is_printed) {
            report::write(path, &rows)?;
        }
        // All ranks wait until the file exists, so that a failure of rank 0 is an error on every rank.
        comm.block_on(comm.barrier())?;
        let wrong = rows.iter().map(BenchRow::wrong).sum();
        if head && wrong > 0 {
            console::line(
                "hexagram bench",
                format!("{wrong} elements were wrong: do not use this transport on this machine"),
            );
        }
        Ok(table.finish().map(|()| wrong))
    }

    /// Returns all sizes, in bytes, ascending.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        let next = |size: &usize| size.checked_mul(self.factor as usize).filter(|_| *size > 0);
        std::iter::successors(Some(self.begin), next).take_while(|size| *size <= self.end)
    }
}

/// Parses a size as nccl-tests does: a number of bytes, or of K, M or G, which are powers of 1024.
fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "write it as 8, 256K, 64M or 1G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "larger than the address space".to_owned())
}

/// Finds a value by its printed name.
fn one_of<T: Copy + Display>(all: &[T], name: &str) -> Result<T, String> {
    all.iter().copied().find(|one| one.to_string() == name).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(T::to_string).collect();
        format!("use one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("8", 8), ("1K", 1024), ("64M", 64 << 20), ("2g", 2 << 30), ("3k", 3072)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "1KB", "64 M", "eight", "99999999999G", "８"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_those_that_are_printed() {
        assert_eq!(one_of(&DType::ALL, "bf16"), Ok(DType::BF16));
        assert_eq!(
            one_of(&DType::ALL, "F32").unwrap_err(),
            "use one of u8, i8, i16, i32, i64, f16, bf16, f32, f64, bool"
        );
    }
}
