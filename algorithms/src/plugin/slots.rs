//! Slots of the engine's optimizer: what it remembers of a bucket, by name.

use hexagram_logical::{Buffer, Error, Result};

/// Memory of the engine's optimizer of one bucket, such as a momentum. The hook
/// [`slots_ready`](crate::Algorithm::slots_ready) is given it, between the optimizer's step and the next.
///
/// ```
/// use hexagram::logical::Result;
/// use hexagram::algorithms::plugin::{Context, Slots};
///
/// /// Averages all that the optimizer remembers.
/// async fn average(context: &Context, slots: &mut Slots) -> Result<()> {
///     for (_, buffer) in slots.iter_mut() {
///         context.mean(buffer).await?;
///     }
///     Ok(())
/// }
/// ```
pub struct Slots {
    names: &'static [&'static str],
    buffers: Vec<Buffer>,
}

impl Slots {
    /// Creates the slots of a bucket, one buffer for each name.
    pub(crate) fn new(names: &'static [&'static str], buffers: Vec<Buffer>) -> Self {
        Slots { names, buffers }
    }

    /// Returns the buffers, for the optimizer.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        self.buffers
    }

    /// Returns the names, as the optimizer lists them: SGD's is `momentum`, if it has one.
    pub fn names(&self) -> &'static [&'static str] {
        self.names
    }

    /// Returns a slot. It has as many elements as the bucket, unless the optimizer remembers less of some tensors.
    ///
    /// # Errors
    /// [`Error::Usage`] with the names that there are, if this is none of them.
    pub fn get(&self, name: &str) -> Result<&Buffer> {
        self.place(name).map(|at| &self.buffers[at])
    }

    /// Returns a slot, to be changed: the optimizer goes on with what is left in it.
    ///
    /// # Errors
    /// As [`Slots::get`].
    pub fn get_mut(&mut self, name: &str) -> Result<&mut Buffer> {
        self.place(name).map(|at| &mut self.buffers[at])
    }

    /// Returns all slots that have elements, by name, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Buffer)> {
        self.names.iter().copied().zip(&mut self.buffers).filter(|(_, buffer)| !buffer.is_empty())
    }

    fn place(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|slot| *slot == name);
        found.filter(|at| *at < self.buffers.len()).ok_or_else(|| {
            let what = format!("the optimizer has no slot `{name}`");
            let remedy = match self.names {
                [] => "step with one that remembers something, such as sgd(momentum=0.9)".to_owned(),
                names => format!("it has {}", names.join(", ")),
            };
            Error::usage(what, remedy)
        })
    }
}
