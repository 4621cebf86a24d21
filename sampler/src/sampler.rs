//! The sampler trait: for each epoch, an order of draws that can be entered at any position.

use crate::parts::EpochPart;

/// The draws of one rank, from a position of an epoch to its end.
pub type Draws<T> = Box<dyn ExactSizeIterator<Item = T> + Send>;

/// An order of draws for each epoch: of samples (`Item = usize`), or of batches (`Item = Vec<usize>`).
///
/// An order depends on the options of the sampler and the epoch alone. Therefore ranks do not communicate, and
/// `(epoch, position)` is sufficient to resume in the middle of an epoch.
///
/// A *position* counts the draws of all ranks together: when every rank has drawn `k` times since position `p`, the
/// epoch is at `p + k * stride()`. A different number of ranks can continue there, and draws exactly the remaining
/// samples. If the order depends on the number of ranks, see [`set_parts`](Self::set_parts).
///
/// ```
/// use hexagram_sampler::{DistributedOptions, DistributedSampler, Sampler};
///
/// let of = |ranks, rank| DistributedSampler::new(DistributedOptions {
///     len: 10, replicas: ranks, rank, shuffle: false, ..Default::default()
/// });
/// let two = of(2, 0)?;
/// assert_eq!(two.iter().take(3).collect::<Vec<_>>(), [0, 2, 4]);
/// // Both ranks have drawn three times when the job is stopped. Four ranks continue:
/// let position = 3 * two.stride();
/// assert_eq!(of(4, 0)?.iter_from(position).collect::<Vec<_>>(), [6]);
/// assert_eq!(of(4, 3)?.iter_from(position).collect::<Vec<_>>(), [9]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
pub trait Sampler: Send + Sync {
    /// Draw: the index of a sample, or the indices of a batch.
    type Item;

    /// Returns the number of draws of this rank in the current epoch, from its beginning, on the present number of ranks. A
    /// position or earlier parts do not change it.
    fn len(&self) -> usize;

    /// Returns true if this rank has no draws in the current epoch.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the current epoch.
    fn epoch(&self) -> u64;

    /// Sets the epoch. Call it before each epoch, on every rank; otherwise all epochs have the same order.
    fn set_epoch(&mut self, epoch: u64);

    /// Returns the number of positions between two draws of this rank: usually the number of samples in one draw of
    /// all ranks.
    fn stride(&self) -> usize {
        1
    }

    /// Returns a number that is equal for samplers with the same orders in all epochs, whatever their rank and
    /// their [`grouping`](Self::grouping). Compare both before resuming at a position, which is only valid in the same
    /// order.
    fn fingerprint(&self) -> u64;

    /// Returns the number on which the order of samples depends in addition to the [`fingerprint`](Self::fingerprint): of
    /// ranks, or of samples in a step; 1 if the order is the same for all of them. At most [`u32::MAX`].
    fn grouping(&self) -> usize {
        1
    }

    /// Continues the current epoch after `parts` of it, which ranks have drawn with other groupings, in this order. This rank
    /// then draws from the samples that are left, and positions continue from the end of the last part. Holds until the epoch
    /// changes, or until the next call; an empty list means the whole epoch.
    ///
    /// Deterministic: the samples that are left, and their order, depend on the options, the epoch and `parts`. The
    /// default does nothing, for orders with a grouping of 1: a position is enough to continue in them.
    fn set_parts(&mut self, parts: &[EpochPart]) {
        let _ = parts;
    }

    /// Returns the draws of this rank in the current epoch from `position` on. Empty at or beyond the end of the
    /// epoch.
    fn iter_from(&self, position: usize) -> Draws<Self::Item>;

    /// Returns the draws of this rank in the current epoch.
    fn iter(&self) -> Draws<Self::Item> {
        self.iter_from(0)
    }
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn epoch(&self) -> u64 {
        (**self).epoch()
    }

    fn set_epoch(&mut self, epoch: u64) {
        (**self).set_epoch(epoch);
    }

    fn stride(&self) -> usize {
        (**self).stride()
    }

    fn fingerprint(&self) -> u64 {
        (**self).fingerprint()
    }

    fn grouping(&self) -> usize {
        (**self).grouping()
    }

    fn set_parts(&mut self, parts: &[EpochPart]) {
        (**self).set_parts(parts);
    }

    fn iter_from(&self, position: usize) -> Draws<Self::Item> {
        (**self).iter_from(position)
    }
}

/// Hashes 64-bit words with FNV-1a, starting with the name of the sampler, for [`Sampler::fingerprint`].
pub(crate) fn fingerprint(name: &str, words: impl IntoIterator<Item = u64>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let named = name.bytes().fold(OFFSET, step);
    words.into_iter().flat_map(u64::to_le_bytes).fold(named, step)
}
