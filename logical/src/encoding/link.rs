//! The feedback link: memory of a sender for the errors of its messages, or for the estimates of their receivers.
//! Every primitive that encodes uses one.
//!
//! With g the numbers to send, C the codec and D its decoding:
//!
//! ```text
//!               compensate      encode        remember
//! direct                        c = C(g)
//! error         s = g + β e     c = C(s)      e ← s − D(c)      β = 1 unless it decays
//! difference    s = g − h       c = C(s)      h ← h + D(c)
//! ```

use super::message::MessageSender;
use super::{Encoding, Feedback};
use crate::{Buffer, DType, Part, ReduceOp, Result};
use hexagram_physical::codec::Codec;
use std::ops::Range;
use std::sync::Arc;

/// Memory of one sender for its messages in one direction.
pub(crate) enum FeedbackLink {
    /// No memory.
    Direct,
    /// Error e of the messages so far; its share `kept` is added to the next message.
    Error { memory: Arc<Buffer>, kept: f64 },
    /// Estimate h that the receivers have decoded so far.
    Difference(Arc<Buffer>),
}

/// Names of the memory in the [`State`](super::State) of an encoding.
#[derive(Clone, Copy)]
pub(crate) struct LinkNames {
    pub(crate) error: &'static str,
    pub(crate) difference: &'static str,
}

/// Parameters of one message.
#[derive(Clone, Copy)]
pub(crate) struct Coding<'a> {
    pub(crate) codec: &'a dyn Codec,
    /// Seed of the draws of the codec.
    pub(crate) seed: u64,
    pub(crate) sender: MessageSender<'a>,
    /// Index of the first element, for errors.
    pub(crate) start: usize,
}

impl FeedbackLink {
    /// Returns the link of the sender of an encoding for `len` elements, with memory on the device of `served`;
    /// initially zero.
    ///
    /// # Errors
    /// As [`State::entry`](super::State::entry).
    pub(crate) fn of<C: ?Sized>(
        encoding: &mut Encoding<C>,
        names: LinkNames,
        served: &Buffer,
        len: usize,
    ) -> Result<Self> {
        let feedback = encoding.feedback();
        let mut entry = |name| Ok(encoding.state_mut().entry(served, name, DType::F32, len)?.0);
        Ok(match (feedback.error_kept(), feedback) {
            (Some(kept), _) => FeedbackLink::Error { memory: entry(names.error)?, kept },
            (None, Feedback::Difference) => FeedbackLink::Difference(entry(names.difference)?),
            (None, _) => FeedbackLink::Direct,
        })
    }

    /// Returns the link of a sender that stores its whole error in a buffer.
    pub(crate) fn error(memory: &Arc<Buffer>) -> Self {
        FeedbackLink::Error { memory: Arc::clone(memory), kept: 1.0 }
    }

    /// Writes the numbers to encode for `value`, the elements `at` of the link, to `to`. The memory does not change
    /// until [`FeedbackLink::remember`], so that a failure to encode has no effect on it.
    ///
    /// # Errors
    /// As [`Buffer::read`] and [`Buffer::write`].
    pub(crate) fn compensate_into(&self, at: Range<usize>, value: &Part<'_>, to: &Part<'_>) -> Result<()> {
        let value = value.read()?;
        let mut to = to.write()?;
        match self {
            FeedbackLink::Direct => to.copy_from(&value),
            FeedbackLink::Error { memory, kept } => {
                to.weighted_sum(&[(1.0, Some(&value)), (*kept, Some(&memory.read(at)?))])
            }
            FeedbackLink::Difference(known) => {
                to.weighted_sum(&[(1.0, Some(&value)), (-1.0, Some(&known.read(at)?))])
            }
        }
    }

    /// Returns the place of the numbers to encode for `value`, which is overwritten or added to the memory. It needs
    /// no further buffer, and is for operations after whose failure the memory is invalid.
    ///
    /// # Errors
    /// As [`FeedbackLink::compensate_into`].
    pub(crate) fn compensate_in_place<'a>(&'a self, at: Range<usize>, value: Part<'a>) -> Result<Part<'a>> {
        match self {
            FeedbackLink::Direct => Ok(value),
            FeedbackLink::Error { memory, kept } => {
                let sum = Part::of(memory, at);
                if *kept == 1.0 {
                    sum.write()?.reduce(ReduceOp::Sum, &value.read()?)?;
                } else {
                    sum.write()?.weighted_sum(&[(*kept, None), (1.0, Some(&value.read()?))])?;
                }
                Ok(sum)
            }
            FeedbackLink::Difference(known) => {
                value.write()?.add_scaled(-1.0, &known.read(at)?)?;
                Ok(value)
            }
        }
    }

    /// Updates the memory for `sum`, which was compensated at `at`, after the message was made. `decode` gets a weight, and
    /// adds the decoded message times that weight.
    ///
    /// # Errors
    /// The errors of `decode`; as [`FeedbackLink::compensate_into`].
    pub(crate) fn remember(
        &self,
        at: Range<usize>,
        sum: &Part<'_>,
        decode: impl FnOnce(f32, Part<'_>) -> Result<()>,
    ) -> Result<()> {
        if let FeedbackLink::Error { memory, .. } = self
            && !std::ptr::eq(sum.buffer, &**memory)
        {
            memory.write(at.clone())?.copy_from(&sum.read()?)?;
        }
        self.remember_in_place(at, decode)
    }

    /// Updates the memory after [`FeedbackLink::compensate_in_place`].
    ///
    /// # Errors
    /// As [`FeedbackLink::remember`].
    pub(crate) fn remember_in_place(
        &self,
        at: Range<usize>,
        decode: impl FnOnce(f32, Part<'_>) -> Result<()>,
    ) -> Result<()> {
        match self {
            FeedbackLink::Direct => Ok(()),
            FeedbackLink::Error { memory, .. } => decode(-1.0, Part::of(memory, at)),
            FeedbackLink::Difference(known) => decode(1.0, Part::of(known, at)),
        }
    }

    /// Updates the memory for a message of `sender` about the elements `at`, as every receiver does.
    ///
    /// # Errors
    /// As [`MessageSender::decode`].
    pub(crate) fn receive(
        &self,
        at: Range<usize>,
        codec: &dyn Codec,
        sender: MessageSender<'_>,
        message: Part<'_>,
    ) -> Result<()> {
        self.remember_in_place(at, |weight, to| sender.decode(codec, message, Some(weight), to))
    }

    /// Encodes the message for `sum`, which was compensated at `at`, to the beginning of `message`, updates the
    /// memory, and returns the size of the message in bytes.
    ///
    /// # Errors
    /// As [`MessageSender::encode`].
    pub(crate) fn encode(
        &self,
        coding: Coding<'_>,
        at: Range<usize>,
        sum: Part<'_>,
        message: Part<'_>,
    ) -> Result<usize> {
        let Coding { codec, seed, sender, start } = coding;
        let bytes = sender.encode(codec, start, sum.clone(), message.clone(), seed)?;
        let decode = |weight, to: Part<'_>| sender.decode(codec, message.first(bytes), Some(weight), to);
        self.remember(at, &sum, decode)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Half;
    use crate::testing::{buffer, zeroed};
    use hexagram_physical::Peer;

    /// Returns the input of the codec for `value`, and the size of the message.
    fn sent(link: &FeedbackLink, value: &[f32], in_place: bool) -> (Vec<f32>, Result<usize>) {
        let value = buffer(value);
        let message = buffer(&vec![0u8; 2 * value.len()]);
        let whole = || 0..value.len();
        let rank = Peer { rank: 0, host: "here".into(), pid: 1 };
        let sender = MessageSender::aside(&rank);
        let coding = Coding { codec: &Half::F16, seed: 0, sender, start: 0 };
        let aside = zeroed(DType::F32, value.len());
        let compensated = match in_place {
            true => link.compensate_in_place(whole(), Part::whole(&value)).unwrap(),
            false => {
                link.compensate_into(whole(), &Part::whole(&value), &Part::whole(&aside)).unwrap();
                Part::whole(&aside)
            }
        };
        let sum = compensated.buffer.host::<f32>().unwrap().to_vec();
        let bytes = link.encode(coding, whole(), compensated, Part::whole(&message));
        (sum, bytes)
    }

    #[test]
    fn an_error_is_what_messages_lost_so_far_however_it_is_added_up() {
        for in_place in [false, true] {
            let memory = Arc::new(buffer(&[0.25f32, 0.0]));
            let link = FeedbackLink::error(&memory);
            // 2049.25 becomes 2050 in f16, whose steps are of 2 there.
            assert_eq!(sent(&link, &[2049.0, 1.0], in_place).1.unwrap(), 4);
            assert_eq!(*memory.host::<f32>().unwrap(), [-0.75, 0.0]);
        }
    }

    #[test]
    fn an_error_that_decays_is_added_in_part() {
        for in_place in [false, true] {
            let memory = Arc::new(buffer(&[-0.5f32, 4.0]));
            let link = FeedbackLink::Error { memory: Arc::clone(&memory), kept: 0.75 };
            let (sum, bytes) = sent(&link, &[2049.0, 1.0], in_place);
            assert_eq!((sum, bytes.unwrap()), (vec![2048.625, 4.0], 4));
            assert_eq!(*memory.host::<f32>().unwrap(), [0.625, 0.0]);
        }
    }

    #[test]
    fn a_difference_follows_what_receivers_decode() {
        let memory = Arc::new(buffer(&[2048.0f32, 1.0]));
        let link = FeedbackLink::Difference(Arc::clone(&memory));
        for in_place in [false, true] {
            let (difference, bytes) = sent(&link, &[2049.0, 3.0], in_place);
            assert_eq!((difference[0], bytes.unwrap()), (if in_place { 0.0 } else { 1.0 }, 4));
            assert_eq!(*memory.host::<f32>().unwrap(), [2049.0, 3.0]);
        }
    }

    #[test]
    fn a_message_that_cannot_be_made_leaves_no_trace() {
        for link in [FeedbackLink::error, |memory: &Arc<Buffer>| FeedbackLink::Difference(Arc::clone(memory))]
        {
            let memory = Arc::new(buffer(&[1.0f32, 2.0]));
            let (_, refused) = sent(&link(&memory), &[f32::NAN, 1.0], false);
            assert!(matches!(refused, Err(crate::Error::NotFinite { index: 0, .. })), "{refused:?}");
            assert_eq!(*memory.host::<f32>().unwrap(), [1.0, 2.0]);
        }
    }
}
