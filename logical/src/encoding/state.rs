//! The state of an encoding: named buffers, and the number of operations. Save it with a checkpoint.
//!
//! State belongs to one bucket layout. Entries have one number per element of the bucket, or only for the
//! [chunk](State::is_chunk) that this rank combines.

use hexagram_physical::{Buffer, DType, Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Memory of an encoding: named buffers, zeroed at their first use.
///
/// ```
/// use hexagram_logical::Buffer;
/// use hexagram_logical::encoding::State;
///
/// let mut state = State::default();
/// state.restore(7, [("error".to_owned(), Buffer::from_slice(&[1f32, 2.0])?)]);
///
/// // To save it: the number of operations, and each entry's name and elements.
/// let saved: Vec<(String, Vec<f32>)> = state
///     .entries()
///     .map(|(name, buffer)| Ok((name.to_owned(), buffer.host::<f32>()?.to_vec())))
///     .collect::<Result<_, hexagram_logical::Error>>()?;
/// assert_eq!(state.operations(), 7);
/// assert_eq!(saved, [("error".to_owned(), vec![1.0, 2.0])]);
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Default)]
pub struct State {
    operations: u64,
    entries: BTreeMap<&'static str, Arc<Buffer>>,
    /// Restored entries that have not been used yet.
    restored: BTreeMap<String, Arc<Buffer>>,
}

impl State {
    /// Returns the number of operations so far, which determines the draws of stochastic codecs.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Increments the number of operations.
    pub fn advance(&mut self) {
        self.operations += 1;
    }

    /// Returns all entries with their names.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Buffer)> {
        let entries = self.entries.iter().map(|(name, buffer)| (*name, &**buffer));
        entries.chain(self.restored.iter().map(|(name, buffer)| (name.as_str(), &**buffer)))
    }

    /// Returns the entry of a name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.entries().find(|(known, _)| *known == name).map(|(_, buffer)| buffer)
    }

    /// Returns true if an entry has numbers only for the elements that its rank combines in an
    /// [`all_reduce_encoded`](crate::Communicator::all_reduce_encoded): the [`chunk`](super::chunk) of that rank.
    pub fn is_chunk(&self, name: &str) -> bool {
        // Sparse all-reduces have a mean of all elements, and no message from an owner.
        name == "server error" || name == "mean" && self.get("heard").is_some()
    }

    /// Copies the state; the copy is independent.
    ///
    /// # Errors
    /// As [`Buffer::copied`].
    pub fn copied(&self) -> Result<State> {
        let copy = |(name, buffer): (&str, &Buffer)| Ok((name.to_owned(), buffer.copied()?));
        let entries = self.entries().map(copy).collect::<Result<Vec<_>>>()?;
        let mut state = State::default();
        state.restore(self.operations, entries);
        Ok(state)
    }

    /// Returns the size of all entries, in bytes.
    pub fn bytes(&self) -> usize {
        self.entries().map(|(_, buffer)| buffer.len() * buffer.dtype().size()).sum()
    }

    /// Restores the number of operations and the entries of another state.
    pub fn restore(&mut self, operations: u64, entries: impl IntoIterator<Item = (String, Buffer)>) {
        self.operations = operations;
        self.entries.clear();
        self.restored = entries.into_iter().map(|(name, buffer)| (name, Arc::new(buffer))).collect();
    }

    /// Returns the buffer of a name, and true if it is new and thus zeroed. It is created at the first call, on the
    /// device of `served`, the buffer that it belongs to.
    ///
    /// # Errors
    /// [`Error::Usage`] if it was restored, or used before, with a different type or length; as [`Buffer::zeroed_same_device`].
    pub fn entry(
        &mut self,
        served: &Buffer,
        name: &'static str,
        dtype: DType,
        len: usize,
    ) -> Result<(Arc<Buffer>, bool)> {
        self.find_or_make(name, dtype, len, || served.zeroed_same_device(dtype, len))
    }

    /// Returns the numbers of a name in host memory: those that control the work rather than take part in it. The
    /// second value is as in [`State::entry`].
    ///
    /// # Errors
    /// As [`State::entry`].
    pub(crate) fn control(
        &mut self,
        name: &'static str,
        dtype: DType,
        len: usize,
    ) -> Result<(Arc<Buffer>, bool)> {
        self.find_or_make(name, dtype, len, || Buffer::zeroed(dtype, len))
    }

    fn find_or_make(
        &mut self,
        name: &'static str,
        dtype: DType,
        len: usize,
        make: impl Fn() -> Result<Buffer>,
    ) -> Result<(Arc<Buffer>, bool)> {
        if let Some(restored) = self.restored.get(name) {
            check_size(name, restored, dtype, len)?;
            // Checkpoints are in host memory.
            let buffer = make()?;
            buffer.write_all()?.copy_from(&restored.read_all()?)?;
            self.entries.insert(name, Arc::new(buffer));
            self.restored.remove(name);
        }
        if let Some(buffer) = self.entries.get(name) {
            check_size(name, buffer, dtype, len)?;
            return Ok((Arc::clone(buffer), false));
        }
        let buffer = Arc::new(make()?);
        self.entries.insert(name, Arc::clone(&buffer));
        Ok((buffer, true))
    }
}

/// Fails if an entry has a different type or length.
fn check_size(name: &str, entry: &Buffer, dtype: DType, len: usize) -> Result<()> {
    if (entry.dtype(), entry.len()) == (dtype, len) {
        return Ok(());
    }
    let what = format!(
        "the entry {name} of an encoding has {} × {}, and the buffer {len} × {dtype}",
        entry.len(),
        entry.dtype()
    );
    Err(Error::usage(
        what,
        "use a separate encoding for each bucket, and restore it with the same ranks and buckets",
    ))
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.entries().map(|(name, buffer)| (name, buffer.len()));
        f.debug_map().entry(&"operations", &self.operations).entries(sizes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn entries_are_made_once_and_keep_their_size() {
        let served = testing::zeroed(DType::F32, 3);
        let mut state = State::default();
        let (made, new) = state.entry(&served, "error", DType::F32, 3).unwrap();
        assert!(new);
        let nine = testing::buffer(&[9f32; 3]);
        made.write_all().unwrap().copy_from(&nine.read_all().unwrap()).unwrap();
        let (again, new) = state.entry(&served, "error", DType::F32, 3).unwrap();
        assert!(!new && *again.host::<f32>().unwrap() == [9.0; 3]);
        assert_eq!(state.bytes(), 12);
        let error = state.entry(&served, "error", DType::F32, 4).map(drop).unwrap_err();
        assert!(matches!(error, Error::Usage { .. }), "{error}");
    }

    #[test]
    fn a_restored_state_goes_on() {
        let served = testing::zeroed(DType::F32, 2);
        let mut state = State::default();
        state.restore(5, [("error".to_owned(), Buffer::from_slice(&[1.0f32, 2.0]).unwrap())]);
        assert_eq!(state.operations(), 5);
        assert_eq!(state.entries().map(|(name, _)| name).collect::<Vec<_>>(), ["error"]);
        let (error, new) = state.entry(&served, "error", DType::F32, 2).unwrap();
        assert!(!new);
        assert_eq!(*error.host::<f32>().unwrap(), [1.0, 2.0]);
    }
}
