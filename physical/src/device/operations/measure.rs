//! Measures: properties of numbers, possibly on a device, for the host.
//!
//! Each is computed on the device of the numbers; only the result is copied. The measures of several runs are copied
//! together.

use super::apply::apply;
use super::kernel::{Operands, elements};
#[cfg(feature = "cuda")]
use super::program::{Argument, Code, Launch, Module, Program};
#[cfg(feature = "cuda")]
use super::sums::Sums;
use crate::device::Kernel;
use crate::device::kernels::{all_finite, sums};
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, Element};
use crate::memory::{Buffer, ReadView};
use std::sync::Arc;

/// Module of all programs in this file. Prepare it early, so that the driver does not delay a launch.
#[cfg(feature = "cuda")]
pub static MODULE: Module = Module { name: "measure", code: Code::Packed(hexagram_ptx::MEASURE) };

/// Returns Σ x² of each run, in double precision and in the order of [`kernels::sums`](crate::device::kernels::sums). Waits for
/// the device.
///
/// # Errors
/// [`Error::Usage`] unless they are of f32 or f64; on a device, the failure of earlier work.
pub fn squares(runs: Vec<ReadView>) -> Result<Vec<f64>> {
    measured(Quantity::Squares, runs.into_iter().map(|run| [run]))
}

/// Returns Σ (x − y)² of each pair of runs, as [`squares`] does of single ones.
///
/// # Errors
/// As [`squares`], and [`Error::Usage`] if types or lengths of a pair differ.
pub fn squared_distances(pairs: Vec<[ReadView; 2]>) -> Result<Vec<f64>> {
    measured(Quantity::Distance, pairs.into_iter())
}

/// Returns the index of the first element of each run that is NaN or infinite, if any; errors are those of [`squares`].
///
/// # Errors
/// As [`squares`].
pub fn not_finite(runs: Vec<ReadView>) -> Result<Vec<Option<usize>>> {
    let found: Vec<i64> = measured(Quantity::NotFinite, runs.into_iter().map(|run| [run]))?;
    Ok(found.into_iter().map(|index| usize::try_from(index).ok()).collect())
}

/// Measures a quantity of several tuples of runs, and waits for it once.
fn measured<T: Element, const N: usize>(
    quantity: Quantity,
    operands: impl ExactSizeIterator<Item = [ReadView; N]>,
) -> Result<Vec<T>> {
    let mut results: Option<Buffer> = None;
    let count = operands.len();
    for (at, runs) in operands.enumerate() {
        let measure = MeasureKernel::new(quantity, &runs)?;
        let results = match &results {
            Some(results) => results,
            None => results.insert(Buffer::zeroed_on(&runs[0].queue(), T::DTYPE, count)?),
        };
        apply(Arc::new(measure), runs, [results.write(at..at + 1)?])?;
    }
    results.map_or_else(|| Ok(Vec::new()), |results| Ok(results.host::<T>()?.to_vec()))
}

/// Quantity of one or two runs, which is stored as one number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Quantity {
    /// Σ x², an f64.
    Squares,
    /// Σ (x − y)², an f64.
    Distance,
    /// Index of the first element that is not finite, an i64; −1 if all are.
    NotFinite,
}

/// Kernel that stores a quantity.
#[derive(Debug)]
struct MeasureKernel {
    quantity: Quantity,
    dtype: DType,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only programs need to know it"))]
    len: usize,
}

impl MeasureKernel {
    fn new(quantity: Quantity, runs: &[ReadView]) -> Result<Self> {
        let refuse = |what: String| Err(Error::usage(what, "use runs of f32 or f64, of equal lengths"));
        let [first, others @ ..] = runs else { return refuse("there are no runs to measure".to_owned()) };
        let dtype = first.dtype();
        let len = first.len();
        if !matches!(dtype, DType::F32 | DType::F64) {
            return refuse(format!("norms are undefined for {dtype}"));
        }
        match others.iter().find(|run| (run.dtype(), run.len()) != (dtype, len)) {
            Some(run) => refuse(format!(
                "the distance of {len} × {dtype} from {} × {} is undefined",
                run.len(),
                run.dtype()
            )),
            None => Ok(MeasureKernel { quantity, dtype, len }),
        }
    }

    /// Returns the bytes of the quantity.
    fn of(&self, reads: &[(DType, &[u8])]) -> Result<[u8; 8]> {
        let is_narrow = self.dtype == DType::F32;
        match (self.quantity, reads) {
            (Quantity::Squares, [x]) if is_narrow => Ok(sums::squares_f32(of_type(x)?).to_ne_bytes()),
            (Quantity::Squares, [x]) => Ok(sums::squares_f64(of_type(x)?).to_ne_bytes()),
            (Quantity::Distance, [x, y]) if is_narrow => {
                Ok(sums::distance_f32(of_type(x)?, of_type(y)?).to_ne_bytes())
            }
            (Quantity::Distance, [x, y]) => Ok(sums::distance_f64(of_type(x)?, of_type(y)?).to_ne_bytes()),
            (Quantity::NotFinite, [x]) if is_narrow => Ok(first(of_type::<f32>(x)?, all_finite)),
            (Quantity::NotFinite, [x]) => Ok(first(of_type::<f64>(x)?, |_| false)),
            _ => Err(Error::usage(
                "a measure got the wrong number of runs",
                "pass one run, or two for a distance",
            )),
        }
    }
}

fn of_type<'a, T: Element>((dtype, bytes): &(DType, &'a [u8])) -> Result<&'a [T]> {
    elements(*dtype, bytes)
}

/// Returns the bytes of the index of the first element that is not finite. `none` is a fast test that returns true if
/// all are.
fn first<T: Copy + Into<f64>>(x: &[T], none: impl Fn(&[T]) -> bool) -> [u8; 8] {
    let found = if none(x) { None } else { x.iter().position(|x| !(*x).into().is_finite()) };
    found.map_or(-1, |index| index as i64).to_ne_bytes()
}

impl Kernel for MeasureKernel {
    fn run(&self, mut operands: Operands<'_>) -> Result<()> {
        let result = self.of(&operands.reads)?;
        operands.writes.iter_mut().for_each(|(_, to)| to.copy_from_slice(&result));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let wide = self.dtype == DType::F64;
        let len = Argument::U64(self.len as u64);
        if self.quantity == Quantity::NotFinite {
            let found = Argument::Operand(1);
            let entry = if wide { "measure_not_finite_f64" } else { "measure_not_finite_f32" };
            let none = Launch { entry: "measure_none", blocks: 1, threads: 1, arguments: vec![found] };
            let find = Launch::over(entry, self.len.div_ceil(4), vec![Argument::Operand(0), len, found]);
            return Some(Program::in_turn(&MODULE, vec![none, find], 0));
        }
        let is_distance = self.quantity == Quantity::Distance;
        let entry = match (is_distance, wide) {
            (false, false) => "measure_squares_f32",
            (false, true) => "measure_squares_f64",
            (true, false) => "measure_distance_f32",
            (true, true) => "measure_distance_f64",
        };
        let runs = 1 + usize::from(is_distance);
        let sums = Sums::new("measure_sums", 1, self.len, Argument::Operand(runs), 0);
        let operands = (0..runs).map(Argument::Operand).chain([len, sums.blocks]);
        let mut launches = vec![Launch::summing(entry, self.len, operands.collect())];
        launches.extend(sums.launches);
        Some(Program::in_turn(&MODULE, launches, sums.scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::buffer;

    fn drawn(len: usize, seed: u64) -> Vec<f32> {
        let draw = |at: usize| ((at as u64 * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
        (0..len).map(draw).collect()
    }

    fn all(runs: &[Buffer]) -> Vec<ReadView> {
        runs.iter().map(|run| run.read_all().unwrap()).collect()
    }

    #[test]
    fn measures_are_of_the_hosts_bits_on_every_device() {
        for len in [0, 1, 64, 4095, 4097, 9000] {
            let runs = [1, 2, 3].map(|seed| drawn(len, seed));
            let wide = runs.each_ref().map(|run| run.iter().map(|x| f64::from(*x) * 1.1).collect::<Vec<_>>());
            let narrow = runs.each_ref().map(|run| buffer(run));
            let doubles = wide.each_ref().map(|run| buffer(run));
            let expected = runs.each_ref().map(|run| sums::squares_f32(run));
            assert_eq!(squares(all(&narrow)).unwrap(), expected, "{len}");
            let expected = wide.each_ref().map(|run| sums::squares_f64(run));
            assert_eq!(squares(all(&doubles)).unwrap(), expected, "{len}");
            let pairs = |runs: &[Buffer; 3]| {
                let [a, b, c] = runs.each_ref().map(|run| || run.read_all().unwrap());
                vec![[a(), b()], [b(), c()]]
            };
            let expected = [(0, 1), (1, 2)].map(|(x, y)| sums::distance_f32(&runs[x], &runs[y]));
            assert_eq!(squared_distances(pairs(&narrow)).unwrap(), expected, "{len}");
            let expected = [(0, 1), (1, 2)].map(|(x, y)| sums::distance_f64(&wide[x], &wide[y]));
            assert_eq!(squared_distances(pairs(&doubles)).unwrap(), expected, "{len}");
        }
    }

    #[test]
    fn the_first_that_is_not_finite_is_found() {
        for (bad, places) in [(f32::NAN, vec![]), (f32::INFINITY, vec![0, 5]), (f32::NAN, vec![8999, 4000])] {
            let mut run = drawn(9000, 1);
            places.iter().for_each(|at| run[*at] = bad);
            let wide: Vec<f64> = run.iter().map(|x| f64::from(*x)).collect();
            let runs = [buffer(&run), buffer(&[1.0f32; 3])];
            let expected = places.iter().min().copied();
            assert_eq!(not_finite(all(&runs)).unwrap(), [expected, None]);
            assert_eq!(not_finite(all(&[buffer(&wide)])).unwrap(), [expected]);
        }
    }

    #[test]
    fn what_has_no_measure_is_refused() {
        let integers = squares(all(&[buffer(&[1i32])])).unwrap_err().to_string();
        assert!(integers.contains("norms are undefined for i32"), "{integers}");
        let runs = [buffer(&[1.0f32]), buffer(&[1.0f32, 2.0])].map(|run| run.read_all().unwrap());
        let apart = squared_distances(vec![runs]).unwrap_err().to_string();
        assert!(apart.contains("1 × f32") && apart.contains("2 × f32"), "{apart}");
        assert!(squares(Vec::new()).unwrap().is_empty());
    }
}
