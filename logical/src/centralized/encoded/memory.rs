//! What a rank says of its numbers, with g what it has, C the codec and D its decoding:
//!
//! ```text
//! no feedback     c = C(g)
//! error           e ← e + g        c = C(e)        e ← e − D(c)
//! difference      g ← g − h        c = C(g)        h ← h + D(c)
//! ```

use crate::encoding::{Encoding, Feedback};
use crate::{Buffer, Call, Communicator, DType, Part, ReduceOp, Result};
use std::ops::Range;
use std::sync::Arc;

/// What one who encodes remembers of each element.
pub(super) enum Memory {
    Nothing,
    /// What is still to be said.
    Error(Arc<Buffer>),
    /// What the receivers have.
    Estimate(Arc<Buffer>),
}

impl Memory {
    /// A rank's memory of what it contributes to a buffer of `len` elements.
    pub(super) fn of_worker(comm: &Communicator, encoding: &mut Encoding, len: usize) -> Result<Self> {
        let feedback = encoding.feedback();
        let mut entry = |name| entry(comm, encoding, name, len);
        Ok(match feedback {
            Feedback::Error | Feedback::TwoLevel => Memory::Error(entry("error")?),
            Feedback::Difference => Memory::Estimate(entry("estimate")?),
            Feedback::None | Feedback::Extrapolation => Memory::Nothing,
        })
    }

    /// Writes the message for a range of `buffer`, which may change by it; returns its size.
    pub(super) fn say(
        &self,
        (comm, call): (&Communicator, &Call<'_>),
        encoding: &Encoding,
        (buffer, range): (&Buffer, Range<usize>),
        (message, seed): (Part<'_>, u64),
    ) -> Result<usize> {
        let codec = &**encoding.codec();
        let device = comm.device();
        let numbers = Part::of(buffer, range.clone());
        let (spoken, memory, weight) = match self {
            Memory::Nothing => return call.encode(codec, numbers, message, seed),
            Memory::Error(error) => {
                device.reduce(ReduceOp::Sum, &numbers.read()?, &mut error.write(range.clone())?)?;
                (Part::of(error, range.clone()), error, -1.0)
            }
            Memory::Estimate(estimate) => {
                device.add_scaled(-1.0, &estimate.read(range.clone())?, &mut numbers.write()?)?;
                (numbers, estimate, 1.0)
            }
        };
        let bytes = call.encode(codec, spoken, message.clone(), seed)?;
        let memory = Part::of(memory, range);
        call.decode(codec, comm.rank(), message.first(bytes), Some(weight), memory)?;
        Ok(bytes)
    }
}

/// Something that an encoding remembers of `len` elements, zero at first.
pub(super) fn entry<C: ?Sized>(
    comm: &Communicator,
    encoding: &mut Encoding<C>,
    name: &'static str,
    len: usize,
) -> Result<Arc<Buffer>> {
    Ok(encoding.state_mut().entry(comm.device(), name, DType::F32, len)?.0)
}
