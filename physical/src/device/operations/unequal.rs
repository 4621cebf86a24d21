//! Comparisons of pairs of runs on their device, with the result at a later time.

use super::apply::apply;
use super::kernel::Operands;
#[cfg(feature = "cuda")]
use super::program::{Argument, Code, Launch, Module, Program};
use crate::device::{Kernel, Queue};
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView};
use std::sync::Arc;

/// Module of all programs in this file. Prepare it early, so that the driver does not delay a launch.
#[cfg(feature = "cuda")]
pub static MODULE: Module = Module { name: "unequal", code: Code::Packed(hexagram_ptx::UNEQUAL) };

/// Comparisons of pairs, by number, running or done.
///
/// ```
/// use hexagram_physical::device::{Queue, unequal::Unequal};
/// use hexagram_physical::Buffer;
///
/// let x = Buffer::from_slice(&[1.0f32, 0.0])?;
/// let y = Buffer::from_slice(&[1.0f32, -0.0])?;
/// let unequal = Unequal::new(&Queue::host(), 2)?;
/// unequal.compare(0, x.read_all()?, x.read_all()?)?;
/// unequal.compare(1, x.read_all()?, y.read_all()?)?;
/// assert_eq!(unequal.first()?, Some(1));
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
pub struct Unequal(Buffer);

impl Unequal {
    /// Creates the comparisons of `pairs` pairs, numbered from 0, on a queue.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_on`].
    pub fn new(queue: &Queue, pairs: usize) -> Result<Self> {
        Buffer::zeroed_on(queue, DType::I32, pairs).map(Unequal)
    }

    /// Enqueues the comparison of two runs, bit by bit. A pair that was unequal once stays so.
    ///
    /// # Errors
    /// [`Error::Usage`] if types or lengths differ, or the number is out of range.
    pub fn compare(&self, pair: usize, one: ReadView, other: ReadView) -> Result<()> {
        let dtype = one.dtype();
        let len = one.len();
        if (other.dtype(), other.len()) != (dtype, len) {
            let what = format!("{len} × {dtype} cannot be compared with {} × {}", other.len(), other.dtype());
            return Err(Error::usage(what, "use runs of equal type and length"));
        }
        apply(Arc::new(Compare { dtype, len }), [one, other], [self.0.write(pair..pair + 1)?])
    }

    /// Returns the number of the first unequal pair, if any. Waits for the device.
    ///
    /// # Errors
    /// The failure of earlier work.
    pub fn first(&self) -> Result<Option<usize>> {
        Ok(self.0.host::<i32>()?.iter().position(|differs| *differs != 0))
    }
}

/// Kernel that stores 1 if its operands differ, and nothing if they are equal.
#[derive(Debug)]
struct Compare {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only programs need to know it"))]
    dtype: DType,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only programs need to know it"))]
    len: usize,
}

impl Kernel for Compare {
    fn run(&self, mut operands: Operands<'_>) -> Result<()> {
        let differ = operands.reads.windows(2).any(|pair| pair[0].1 != pair[1].1);
        let places = operands.writes.iter_mut().filter(|_| differ);
        places.for_each(|(_, to)| to.copy_from_slice(&1i32.to_ne_bytes()));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn program(&self) -> Option<Program> {
        let entry = match self.dtype.size() {
            1 => "unequal_bytes",
            2 => "unequal_halves",
            4 => "unequal_words",
            _ => "unequal_doubles",
        };
        let len = Argument::U64(self.len as u64);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), len, Argument::Operand(2)];
        Some(Program::of(&MODULE, Launch::over(entry, self.len.div_ceil(4), arguments)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::dtype::Element;
    use crate::testing::{buffer, queue};

    fn check<T: Element>(one: T, other: T) {
        for len in [1, 3, 1000, 5001] {
            let x = buffer(&vec![one; len]);
            for place in [0, len / 2, len - 1] {
                let mut changed = vec![one; len];
                changed[place] = other;
                let y = buffer(&changed);
                let unequal = Unequal::new(&queue(), 3).unwrap();
                unequal.compare(0, x.read_all().unwrap(), x.copied().unwrap().read_all().unwrap()).unwrap();
                assert_eq!(unequal.first().unwrap(), None);
                unequal.compare(2, x.read_all().unwrap(), y.read_all().unwrap()).unwrap();
                assert_eq!(unequal.first().unwrap(), Some(2), "{len} elements, {place}");
                let before = [&x, &y].map(|run| run.read(0..place).unwrap());
                let [one, other] = before;
                unequal.compare(1, one, other).unwrap();
                assert_eq!(unequal.first().unwrap(), Some(2));
            }
        }
    }

    #[test]
    fn any_bit_makes_a_pair_unequal() {
        check(0.0f32, -0.0);
        check(1.0f64, f64::NAN);
        check(3u8, 7);
        check(half::bf16::ONE, half::bf16::ZERO);
    }

    #[test]
    fn runs_of_other_types_or_lengths_are_refused() {
        let unequal = Unequal::new(&queue(), 1).unwrap();
        let x = buffer(&[1.0f32, 2.0]);
        let shorter = unequal.compare(0, x.read_all().unwrap(), x.read(0..1).unwrap()).unwrap_err();
        assert!(shorter.to_string().contains("2 × f32"), "{shorter}");
        let other = unequal.compare(0, x.read_all().unwrap(), buffer(&[1i32, 2]).read_all().unwrap());
        assert!(other.unwrap_err().to_string().contains("i32"));
        assert!(unequal.compare(1, x.read_all().unwrap(), x.read_all().unwrap()).is_err());
        assert_eq!(unequal.first().unwrap(), None);
    }
}
