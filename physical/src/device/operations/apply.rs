//! Runs a kernel on the device of its operands.

use super::cross_device;
use crate::device::{Kernel, host};
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use std::sync::Arc;

/// Runs a kernel on the device of its operands.
///
/// On a device the kernel is enqueued: its failure appears at the next wait for the queue.
///
/// # Errors
/// Those of [`Kernel::run`] on the host; [`Error::System`](crate::Error::System) if memory for copies runs out.
pub fn apply<const R: usize, const W: usize>(
    kernel: Arc<dyn Kernel>,
    reads: [ReadView; R],
    mut writes: [WriteView; W],
) -> Result<()> {
    apply_all(kernel, &reads, &mut writes)
}

/// Runs a kernel like [`apply`], on any number of runs.
///
/// # Errors
/// As [`apply`].
pub fn apply_all(kernel: Arc<dyn Kernel>, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    let on_host = reads.iter().all(ReadView::is_on_host) && writes.iter().all(WriteView::is_on_host);
    if on_host {
        return host::run(&*kernel, reads, writes);
    }
    cross_device::apply(&kernel, reads, writes)
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Operands;
    use super::*;
    use crate::Queue;
    use crate::memory::Buffer;
    use crate::memory::dtype::DType;
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
            assert!(refusal(DType::F64, 1).contains("f32 got f64"), "{queue:?}");
            assert!(refusal(DType::F32, 0).contains("got 0 and 2"), "{queue:?}");
        }
    }
}
