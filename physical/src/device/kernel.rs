//! Kernels of one's own: arithmetic on several runs of elements at once, such as a step of an optimizer.
//!
//! A [`Kernel`] is written for the host, and runs there for memory of the host. For memory of a device it goes to the
//! queue of what it writes, which has a [`Program`] for it, or else the operands are copied to the host and back.

use super::elsewhere;
use super::program::Program;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::memory::{ReadView, WriteView};
use crate::runtime::{Work, charge};
use std::fmt;
use std::sync::Arc;

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
    /// Computes on operands that are in host memory.
    ///
    /// # Errors
    /// [`Error::Usage`] for operands that it cannot deal with. On a device it is a failure of the queue.
    fn run(&self, operands: Operands<'_>) -> Result<()>;

    /// Returns what a device runs in place of [`Kernel::run`], to the same bits; `None`, as here, lets the host do it.
    fn program(&self) -> Option<Program> {
        None
    }
}

/// Operands of a [`Kernel`] in host memory: elements of some types, whose bytes are aligned to them.
pub struct Operands<'a> {
    /// Runs that it reads.
    pub reads: Vec<(DType, &'a [u8])>,
    /// Runs that it writes.
    pub writes: Vec<(DType, &'a mut [u8])>,
}

/// Operands of one type: `R` that are read, and `W` that are written.
type Typed<'a, T, const R: usize, const W: usize> = ([&'a [T]; R], [&'a mut [T]; W]);

impl<'a> Operands<'a> {
    /// Returns the operands as elements of one type: `R` that are read, and `W` that are written.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are other than so many, or if they are of another type.
    pub fn all<T: Element, const R: usize, const W: usize>(self) -> Result<Typed<'a, T, R, W>> {
        let given = (self.reads.len(), self.writes.len());
        let other = || {
            let (reads, writes) = given;
            let what = format!("a kernel that reads {R} and writes {W} runs was given {reads} and {writes}");
            Error::usage(what, "give it as many runs of elements as it takes")
        };
        let reads = self.reads.into_iter().map(|(dtype, bytes)| elements(dtype, bytes));
        let writes = self.writes.into_iter().map(|(dtype, bytes)| elements_mut(dtype, bytes));
        let reads = reads.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| other())?;
        let writes = writes.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| other())?;
        Ok((reads, writes))
    }
}

/// Returns bytes as elements of one type.
pub(super) fn elements<T: Element>(dtype: DType, bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).ok().filter(|_| dtype == T::DTYPE).ok_or_else(|| strange(dtype, T::DTYPE))
}

fn elements_mut<T: Element>(dtype: DType, bytes: &mut [u8]) -> Result<&mut [T]> {
    let cast = bytemuck::try_cast_slice_mut(bytes).ok().filter(|_| dtype == T::DTYPE);
    cast.ok_or_else(|| strange(dtype, T::DTYPE))
}

fn strange(given: DType, wanted: DType) -> Error {
    Error::usage(format!("a kernel for {wanted} was given {given}"), "convert the elements first")
}

/// Runs a kernel where the operands are.
///
/// On a device it is enqueued: its failure is known when somebody waits for the queue.
///
/// # Errors
/// Those of [`Kernel::run`] on the host; [`Error::System`] if memory for copies runs out.
pub fn apply<const R: usize, const W: usize>(
    kernel: Arc<dyn Kernel>,
    reads: [ReadView; R],
    mut writes: [WriteView; W],
) -> Result<()> {
    apply_all(kernel, &reads, &mut writes)
}

/// Runs a kernel as [`apply`] does, on as many runs as there are.
///
/// # Errors
/// As [`apply`].
pub fn apply_all(kernel: Arc<dyn Kernel>, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    let on_host = reads.iter().all(ReadView::is_on_host) && writes.iter().all(WriteView::is_on_host);
    if on_host {
        return run(&*kernel, reads, writes);
    }
    elsewhere::apply(&kernel, reads, writes)
}

/// Runs a kernel on views of host memory.
pub(super) fn run(kernel: &dyn Kernel, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    charge(|| {
        let read: usize = reads.iter().map(ReadView::byte_len).sum();
        let written: usize = writes.iter().map(WriteView::byte_len).sum();
        Work::Kernel { bytes: read + written }
    });
    kernel.run(Operands {
        reads: reads.iter().map(|view| (view.dtype(), view.bytes())).collect(),
        writes: writes.iter_mut().map(|view| (view.dtype(), view.bytes_mut())).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;
    use crate::memory::Buffer;
    use crate::testing::late::Late;

    /// Swaps two runs, of which each becomes larger by a third one.
    #[derive(Debug)]
    struct Swap;

    impl Kernel for Swap {
        fn run(&self, operands: Operands<'_>) -> Result<()> {
            let ([more], [x, y]) = operands.all::<f32, 1, 2>()?;
            for ((x, y), more) in x.iter_mut().zip(y).zip(more) {
                std::mem::swap(x, y);
                *x += more;
                *y += more;
            }
            Ok(())
        }
    }

    fn swapped(more: &Queue, x: &Queue, y: &Queue) -> Result<(Vec<f32>, Vec<f32>)> {
        let more = Buffer::from_slice_on(more, &[0.5f32, 0.25])?;
        let x = Buffer::from_slice_on(x, &[1.0f32, 2.0])?;
        let y = Buffer::from_slice_on(y, &[8.0f32, 16.0, 32.0])?;
        for _ in 0..3 {
            apply(Arc::new(Swap), [more.read_all()?], [x.write_all()?, y.write(1..3)?])?;
            more.write_all()?.add_scaled(1.0, &x.read_all()?)?;
        }
        let x = x.host::<f32>()?.to_vec();
        Ok((x, y.host::<f32>()?.to_vec()))
    }

    #[test]
    fn runs_where_the_operands_are_and_to_the_same_bits() {
        let host = Queue::host();
        let want = swapped(&host, &host, &host).unwrap();
        assert_ne!(want.0, [1.0, 2.0]);
        for seed in 0..20 {
            let late = Late::new(seed);
            let queues = [late.queue(), late.queue(), Late::new(seed + 1).queue(), Queue::host()];
            for x in &queues {
                for y in &queues {
                    for more in &queues {
                        assert_eq!(swapped(more, x, y).unwrap(), want, "seed {seed}: {more:?}, {x:?}, {y:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_operands_than_it_takes_are_refused_or_a_failure_of_the_queue() {
        for queue in [Queue::host(), Late::new(0).queue()] {
            let run = |dtype, reads| {
                let [more, x, y] = [0; 3].map(|_| Buffer::zeroed_on(&queue, dtype, 2));
                let more = more?.read_all()?;
                match reads {
                    1 => apply(Arc::new(Swap), [more], [x?.write_all()?, y?.write_all()?]),
                    _ => apply(Arc::new(Swap), [], [x?.write_all()?, y?.write_all()?]),
                }?;
                queue.check()
            };
            assert!(run(DType::F32, 1).is_ok());
            let refusal = |dtype, reads| run(dtype, reads).unwrap_err().to_string();
            assert!(refusal(DType::F64, 1).contains("f32 was given f64"), "{queue:?}");
            assert!(refusal(DType::F32, 0).contains("was given 0 and 2"), "{queue:?}");
        }
    }
}
