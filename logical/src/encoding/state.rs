//! What an encoding remembers: named buffers, and how many operations it has seen. Save it with a checkpoint.
//!
//! State belongs to one rank and one bucket layout: it cannot be restored with other ranks or buckets.

use hexagram_physical::{Buffer, DType, Device, Error, Host, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Named buffers, made at their first use, zeroed.
///
/// ```
/// use hexagram_logical::encoding::State;
/// use hexagram_logical::{Buffer, DType, Result};
///
/// type Saved = (u64, Vec<(String, DType, Vec<u8>)>);
///
/// fn save(state: &State) -> Result<Saved> {
///     let entry = |(name, buffer): (&str, &Buffer)| {
///         Ok((name.to_owned(), buffer.dtype(), buffer.read(0..buffer.len())?.bytes().to_vec()))
///     };
///     Ok((state.operations(), state.entries().map(entry).collect::<Result<_>>()?))
/// }
///
/// fn restore(state: &mut State, (operations, entries): Saved) -> Result<()> {
///     let entry = |(name, dtype, bytes): (String, DType, Vec<u8>)| {
///         let buffer = Buffer::zeroed(dtype, bytes.len() / dtype.size())?;
///         buffer.write(0..buffer.len())?.bytes_mut().copy_from_slice(&bytes);
///         Ok((name, buffer))
///     };
///     let entries: Vec<_> = entries.into_iter().map(entry).collect::<Result<_>>()?;
///     state.restore(operations, entries);
///     Ok(())
/// }
///
/// let (mut one, mut other) = (State::default(), State::default());
/// one.restore(7, [("error".to_owned(), Buffer::from_slice(&[1f32, 2.0])?)]);
/// restore(&mut other, save(&one)?)?;
/// assert_eq!((other.operations(), other.bytes()), (7, 8));
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Default)]
pub struct State {
    operations: u64,
    entries: BTreeMap<&'static str, Arc<Buffer>>,
    /// Restored, and not asked for yet.
    restored: BTreeMap<String, Arc<Buffer>>,
}

impl State {
    /// Operations so far: the draws of stochastic codecs follow from it.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Counts one more.
    pub fn advance(&mut self) {
        self.operations += 1;
    }

    /// Everything that is remembered, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Buffer)> {
        let entries = self.entries.iter().map(|(name, buffer)| (*name, &**buffer));
        entries.chain(self.restored.iter().map(|(name, buffer)| (name.as_str(), &**buffer)))
    }

    /// The entry of a name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.entries().find(|(known, _)| *known == name).map(|(_, buffer)| buffer)
    }

    /// A copy, which goes its own way from here.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub fn copied(&self) -> Result<State> {
        let copy = |(name, from): (&str, &Buffer)| -> Result<(String, Buffer)> {
            let to = Host.alloc(from.dtype(), from.len())?;
            Host.copy(&from.read(0..from.len())?, &mut to.write(0..to.len())?)?;
            Ok((name.to_owned(), to))
        };
        let entries = self.entries().map(copy).collect::<Result<Vec<_>>>()?;
        let mut state = State::default();
        state.restore(self.operations, entries);
        Ok(state)
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.entries().map(|(_, buffer)| buffer.len() * buffer.dtype().size()).sum()
    }

    /// Goes on where another state was: with its number of operations and its entries.
    pub fn restore(&mut self, operations: u64, entries: impl IntoIterator<Item = (String, Buffer)>) {
        self.operations = operations;
        self.entries.clear();
        self.restored = entries.into_iter().map(|(name, buffer)| (name, Arc::new(buffer))).collect();
    }

    /// The buffer of a name; whether it is new, and so zeroed, is the second value.
    ///
    /// # Errors
    /// [`Error::Usage`] if it was restored, or used before, with another type or length; as [`Buffer::zeroed`].
    pub fn entry(
        &mut self,
        device: &dyn Device,
        name: &'static str,
        dtype: DType,
        len: usize,
    ) -> Result<(Arc<Buffer>, bool)> {
        if let Some(buffer) = self.restored.remove(name) {
            self.entries.insert(name, buffer);
        }
        let Some(buffer) = self.entries.get(name) else {
            let buffer = Arc::new(device.alloc(dtype, len)?);
            self.entries.insert(name, Arc::clone(&buffer));
            return Ok((buffer, true));
        };
        if (buffer.dtype(), buffer.len()) == (dtype, len) {
            return Ok((Arc::clone(buffer), false));
        }
        let what = format!(
            "an encoding that remembers {} × {} as its {name} was given {len} × {dtype}",
            buffer.len(),
            buffer.dtype()
        );
        Err(Error::usage(
            what,
            "use one encoding for one bucket, and restore it with the same ranks and buckets",
        ))
    }
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

    #[test]
    fn entries_are_made_once_and_keep_their_size() {
        let mut state = State::default();
        let (made, new) = state.entry(&Host, "error", DType::F32, 3).unwrap();
        assert!(new);
        made.write(0..3).unwrap().bytes_mut()[0] = 9;
        let (again, new) = state.entry(&Host, "error", DType::F32, 3).unwrap();
        assert!(!new && again.read(0..1).unwrap().bytes()[0] == 9);
        assert_eq!(state.bytes(), 12);
        let error = state.entry(&Host, "error", DType::F32, 4).map(drop).unwrap_err();
        assert!(matches!(error, Error::Usage { .. }), "{error}");
    }

    #[test]
    fn a_restored_state_goes_on() {
        let mut state = State::default();
        state.restore(5, [("error".to_owned(), Buffer::from_slice(&[1.0f32, 2.0]).unwrap())]);
        assert_eq!(state.operations(), 5);
        assert_eq!(state.entries().map(|(name, _)| name).collect::<Vec<_>>(), ["error"]);
        let (error, new) = state.entry(&Host, "error", DType::F32, 2).unwrap();
        assert!(!new);
        assert_eq!(*error.host::<f32>().unwrap(), [1.0, 2.0]);
    }
}
