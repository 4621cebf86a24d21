//! Slots of the engine optimizer: its state of a bucket, by name.

use hexagram_logical::{Buffer, Error, Result};

/// State of the engine optimizer for one bucket, such as a momentum. The hook
/// [`slots_ready`](crate::Algorithm::slots_ready) receives it, between two optimizer steps.
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
    /// Creates the slots of a bucket, one buffer per name.
    pub(crate) fn new(names: &'static [&'static str], buffers: Vec<Buffer>) -> Self {
        Slots { names, buffers }
    }

    /// Returns the buffers, for the optimizer.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        self.buffers
    }

    /// Returns the names, as listed by the optimizer: `momentum` for SGD, if it has one.
    pub fn names(&self) -> &'static [&'static str] {
        self.names
    }

    /// Returns a slot. It has as many elements as the bucket, unless the optimizer stores less for some tensors.
    ///
    /// # Errors
    /// [`Error::Usage`] with the valid names, for an unknown name.
    pub fn get(&self, name: &str) -> Result<&Buffer> {
        self.place(name).map(|at| &self.buffers[at])
    }

    /// Returns a slot for writing: the optimizer continues with the new values.
    ///
    /// # Errors
    /// As [`Slots::get`].
    pub fn get_mut(&mut self, name: &str) -> Result<&mut Buffer> {
        self.place(name).map(|at| &mut self.buffers[at])
    }

    /// Returns all slots that have elements, by name, for writing.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Buffer)> {
        self.names.iter().copied().zip(&mut self.buffers).filter(|(_, buffer)| !buffer.is_empty())
    }

    fn place(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|slot| *slot == name);
        found.filter(|at| *at < self.buffers.len()).ok_or_else(|| {
            let what = format!("the optimizer has no slot `{name}`");
            let remedy = match self.names {
                [] => "use an optimizer with state, such as sgd(momentum=0.9)".to_owned(),
                names => format!("it has {}", names.join(", ")),
            };
            Error::usage(what, remedy)
        })
    }
}
