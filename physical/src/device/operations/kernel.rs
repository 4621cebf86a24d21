//! User kernels: arithmetic on several runs of elements, such as a step of an optimizer.
//!
//! A [`Kernel`] is written for the host, and runs there for host memory. For device memory it runs on the queue of
//! the written runs, which may have a [`Program`] for it; otherwise the operands are copied to the host and back.
//! `apply` chooses.

use super::program::Program;
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, Element};
use std::fmt;

/// Arithmetic on several runs of elements.
///
/// ```
/// use hexagram_physical::device::{Kernel, Operands, apply};
/// use hexagram_physical::{Buffer, Result};
/// use std::sync::Arc;
///
/// /// Multiplies element by element: y ← x y.
/// #[derive(Debug)]
/// struct Multiply;
///
/// impl Kernel for Multiply {
///     fn run(&self, operands: Operands<'_>) -> Result<()> {
///         let ([x], [y]) = operands.all::<f32, 1, 1>()?;
///         y.iter_mut().zip(x).for_each(|(y, x)| *y *= x);
///         Ok(())
///     }
/// }
///
/// let x = Buffer::from_slice(&[2.0f32, 3.0])?;
/// let mut y = Buffer::from_slice(&[5.0f32, 7.0])?;
/// apply(Arc::new(Multiply), [x.read_all()?], [y.write_all()?])?;
/// assert_eq!(*y.host::<f32>()?, [10.0, 21.0]);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
pub trait Kernel: Send + Sync + fmt::Debug + 'static {
    /// Computes on operands in host memory.
    ///
    /// # Errors
    /// [`Error::Usage`] for unsupported operands. On a device it is a failure of the queue.
    fn run(&self, operands: Operands<'_>) -> Result<()>;

    /// Returns a device program that replaces [`Kernel::run`], with the same bits. With `None`, the default, the host
    /// runs it.
    fn program(&self) -> Option<Program> {
        None
    }
}

/// Operands of a [`Kernel`] in host memory: typed elements in aligned bytes.
pub struct Operands<'a> {
    /// Runs that it reads.
    pub reads: Vec<(DType, &'a [u8])>,
    /// Runs that it writes.
    pub writes: Vec<(DType, &'a mut [u8])>,
}

/// Operands of one type: `R` that are read, and `W` that are written.
type TypedOperands<'a, T, const R: usize, const W: usize> = ([&'a [T]; R], [&'a mut [T]; W]);

impl<'a> Operands<'a> {
    /// Returns the operands as elements of one type: `R` that are read, and `W` that are written.
    ///
    /// # Errors
    /// [`Error::Usage`] if the numbers of operands or the types differ.
    pub fn all<T: Element, const R: usize, const W: usize>(self) -> Result<TypedOperands<'a, T, R, W>> {
        let given = (self.reads.len(), self.writes.len());
        let other = || {
            let (reads, writes) = given;
            let what = format!("a kernel reads {R} and writes {W} runs, but got {reads} and {writes}");
            Error::usage(what, "pass the right numbers of runs")
        };
        let reads = self.reads.into_iter().map(|(dtype, bytes)| elements(dtype, bytes));
        let writes = self.writes.into_iter().map(|(dtype, bytes)| elements_mut(dtype, bytes));
        let reads = reads.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| other())?;
        let writes = writes.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| other())?;
        Ok((reads, writes))
    }
}

/// Returns bytes as elements of one type.
pub(crate) fn elements<T: Element>(dtype: DType, bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).ok().filter(|_| dtype == T::DTYPE).ok_or_else(|| strange(dtype, T::DTYPE))
}

fn elements_mut<T: Element>(dtype: DType, bytes: &mut [u8]) -> Result<&mut [T]> {
    let cast = bytemuck::try_cast_slice_mut(bytes).ok().filter(|_| dtype == T::DTYPE);
    cast.ok_or_else(|| strange(dtype, T::DTYPE))
}

fn strange(given: DType, wanted: DType) -> Error {
    Error::usage(format!("a kernel for {wanted} got {given}"), "convert the elements first")
}
