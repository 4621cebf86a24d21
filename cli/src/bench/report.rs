//! Results of a measurement, in the columns of nccl-tests and as JSON.

use super::Bench;
use super::operation::BenchOperation;
use hexagram::physical::output;
use hexagram::{DType, Error, Queue, ReduceOp, Result, TransportKind};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// Device and path of a rank.
pub(super) struct BenchDevice {
    pub(super) queue: Queue,
    /// Path between the devices of the ranks, if any.
    pub(super) path: Option<TransportKind>,
}

impl BenchDevice {
    /// Returns the name of the path of device messages; `None` on the host.
    pub(super) fn path(&self) -> Option<String> {
        let staged = || "staged".to_owned();
        (!self.queue.is_host()).then(|| self.path.map_or_else(staged, |path| path.to_string()))
    }
}

/// One size of one operation.
pub(super) struct BenchRow {
    pub(super) operation: BenchOperation,
    pub(super) transport: TransportKind,
    pub(super) ranks: usize,
    pub(super) registered: bool,
    /// Name of rank 0's device.
    pub(super) device: String,
    /// Path of device messages; `None` on the host.
    pub(super) path: Option<String>,
    /// Measured size: the requested size, rounded down to a multiple that divides evenly among the ranks.
    pub(super) bytes: usize,
    /// Elements of one rank's block.
    pub(super) count: usize,
    pub(super) dtype: DType,
    pub(super) reduce: Option<ReduceOp>,
    /// Full name of the codec.
    pub(super) codec: Option<String>,
    pub(super) times: Times,
    /// Number of wrong elements on all ranks.
    pub(super) wrong: u64,
}

/// Times of the iterations on rank 0, in µs.
pub(super) struct Times {
    median: f64,
    p10: f64,
    p90: f64,
    p99: f64,
}

impl Times {
    /// Summarizes the times of at least one iteration.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |quantile: f64| {
            let place = quantile * times.len().saturating_sub(1) as f64;
            let time = |place: f64| times.get(place as usize).map_or(0.0, Duration::as_secs_f64) * 1e6;
            let low = time(place.floor());
            let high = time(place.ceil());
            low + (high - low) * place.fract()
        };
        Times { median: at(0.5), p10: at(0.1), p90: at(0.9), p99: at(0.99) }
    }
}

impl BenchRow {
    pub(super) fn wrong(&self) -> u64 {
        self.wrong
    }

    fn reduce(&self) -> String {
        self.reduce.map_or_else(|| "none".to_owned(), |reduce| reduce.to_string())
    }

    /// Returns the bytes of the size per second, in GB/s.
    fn algorithm_bandwidth(&self) -> f64 {
        if self.times.median > 0.0 { self.bytes as f64 / self.times.median / 1e3 } else { 0.0 }
    }

    /// Returns the bytes on the busiest link per second, in GB/s.
    fn bus_bandwidth(&self) -> f64 {
        self.algorithm_bandwidth() * self.operation.bus_factor(self.ranks)
    }

    fn json(&self) -> Value {
        json!({
            "op": self.operation.name(),
            "transport": self.transport.to_string(),
            "ranks": self.ranks,
            "bytes": self.bytes,
            "dtype": self.dtype.to_string(),
            "redop": self.reduce(),
            "codec": self.codec,
            "registered": self.registered,
            "device": self.device,
            "path": self.path,
            "time_us": self.times.median,
            "p10_us": self.times.p10,
            "p90_us": self.times.p90,
            "p99_us": self.times.p99,
            "algbw_gbs": self.algorithm_bandwidth(),
            "busbw_gbs": self.bus_bandwidth(),
            "wrong": self.wrong,
        })
    }
}

impl fmt::Display for BenchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BenchRow { bytes, count, dtype, wrong, .. } = self;
        let dtype = dtype.to_string();
        let reduce = self.reduce();
        let algorithm = self.algorithm_bandwidth();
        let bus = self.bus_bandwidth();
        let Times { median, p99, .. } = self.times;
        write!(f, "{bytes:>12} {count:>13} {dtype:>7} {reduce:>8} {median:>10.2} {p99:>10.2} ")?;
        write!(f, "{algorithm:>8.2} {bus:>8.2} {wrong:>8}")
    }
}

/// Returns the lines above the rows.
pub(super) fn heading(bench: &Bench, ranks: usize, place: &BenchDevice) -> String {
    let Bench { operation, transport, .. } = bench;
    let memory = if bench.registered { ", registered memory" } else { "" };
    let device = place.path().map_or_else(String::new, |path| format!(", {}, {path}", place.queue.name()));
    let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    let codec = bench.codec.as_ref().map_or_else(String::new, |codec| format!(", {}", codec.name()));
    let title = format!("# {}: {ranks}, {transport}{device}{memory}{codec}", operation.name());
    let columns = ["size", "count", "type", "redop", "time", "p99", "algbw", "busbw", "#wrong"];
    let units = ["(B)", "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", ""];
    let line = |[size, count, dtype, reduce, time, p99, algorithm, bus, wrong]: [&str; 9]| {
        let times = format!("{time:>10} {p99:>10}");
        format!("#{size:>11} {count:>13} {dtype:>7} {reduce:>8} {times} {algorithm:>8} {bus:>8} {wrong:>8}")
    };
    format!("{title}\n{}\n{}", line(columns), line(units).trim_end())
}

/// Checks, before the measurement, that a file can be written.
///
/// # Errors
/// [`Error::System`] if the file cannot be written.
pub(super) fn writable(path: &Path) -> Result<()> {
    output::check_writable(path).map_err(|cause| cannot_write(path, cause))
}

/// Writes rows to a file atomically, or to a stream such as a pipe.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub(super) fn write(path: &Path, rows: &[BenchRow]) -> Result<()> {
    let list: Value = rows.iter().map(BenchRow::json).collect();
    output::write(path, |out| writeln!(out, "{list:#}")).map_err(|cause| cannot_write(path, cause))
}

fn cannot_write(path: &Path, cause: io::Error) -> Error {
    let remedy = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free disk space there, or choose a different folder for --json"
        }
        _ => "choose a --json file in an existing, writable folder",
    };
    Error::system(format!("write {}", path.display()), cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(times: &[u64]) -> Times {
        Times::of(times.iter().copied().map(Duration::from_micros).collect())
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(micros(&[9, 1, 5]).median, 5.0);
        assert_eq!(micros(&[4, 1, 2, 100]).median, 3.0);
        let times = micros(&[0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert_eq!((times.p10, times.median, times.p90, times.p99), (10.0, 50.0, 90.0, 99.0));
        assert_eq!(micros(&[7]).p99, 7.0);
    }

    #[test]
    fn bandwidths_are_of_the_size_and_of_the_bus() {
        let row = BenchRow {
            operation: BenchOperation::AllReduce,
            transport: TransportKind::Shm,
            ranks: 4,
            device: "host".to_owned(),
            path: None,
            registered: false,
            bytes: 1_000_000,
            count: 250_000,
            dtype: DType::F32,
            reduce: Some(ReduceOp::Sum),
            codec: None,
            times: micros(&[500]),
            wrong: 3,
        };
        assert_eq!((row.algorithm_bandwidth(), row.bus_bandwidth()), (2.0, 3.0));
        let line = row.to_string();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["1000000", "250000", "f32", "sum", "500.00", "500.00", "2.00", "3.00", "3"]);
    }
}
