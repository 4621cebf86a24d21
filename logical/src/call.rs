//! One operation under way: what an author of a primitive sends and receives with.
//!
//! A [`Call`] carries the operation's identity, so that the primitive names only peer, step and elements:
//!
//! ```text
//! comm.operate(fingerprint, async |call| {
//!     for step in 0..rounds {
//!         let send = call.send(next, step, &buffer, chunk)?;             // posted here, both of them,
//!         call.recv(previous, step, &buffer, other, Land::Copy)?.await?; // before the first await
//!         send.await?;
//!     }
//!     Ok(())
//! })
//! .await
//! ```

use hexagram_physical::memory::{ReadView, WriteView};
use hexagram_physical::operation::{Operation, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::transport::{Label, Land, Source};
use hexagram_physical::{Buffer, Error, Result};
use std::ops::Range;

/// One operation of a communicator.
pub struct Call<'a> {
    terms: Terms<'a>,
    label: Label,
}

impl<'a> Call<'a> {
    pub(crate) fn new(terms: Terms<'a>, label: Label) -> Self {
        Call { terms, label }
    }

    /// The same operation, for a message whose count is a matter between two ranks only.
    pub fn counting(&self, count: usize) -> Self {
        let mut label = self.label;
        label.fingerprint.count = count as u64;
        Call { terms: self.terms, label }
    }

    fn at(&self, step: usize) -> Result<Label> {
        let tag: Tag = self.label.tag.at_step(step)?;
        Ok(Label { tag, ..self.label })
    }

    /// Starts sending `elements` of `buffer`; they must not be written until the operation is done.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) if they are being written, [`Error::Usage`](crate::Error::Usage) if they lie
    /// outside the buffer or the step does not fit a tag.
    pub fn send(
        &self,
        to: usize,
        step: usize,
        buffer: &Buffer,
        elements: Range<usize>,
    ) -> Result<Operation<'a>> {
        check_rank(to, self.terms.transport.size())?;
        let (label, view) = (self.at(step)?, buffer.read(elements)?);
        let ticket = self.terms.transport.post_send(to, label, view);
        Ok(Operation::new(self.terms, ticket, Source::Rank(to), label))
    }

    /// Starts receiving into `elements` of `buffer`, stored or reduced as `land` says.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub fn recv(
        &self,
        from: usize,
        step: usize,
        buffer: &Buffer,
        elements: Range<usize>,
        land: Land,
    ) -> Result<Operation<'a>> {
        check_rank(from, self.terms.transport.size())?;
        let (label, view) = (self.at(step)?, buffer.write(elements)?);
        let source = Source::Rank(from);
        let ticket = self.terms.transport.post_recv(source, label, view, land);
        Ok(Operation::new(self.terms, ticket, source, label))
    }

    /// Has the backend carry out the whole operation, if it offers to: see
    /// [`Collectives`](hexagram_physical::native::Collectives). `None`, and the views are released, if it is to be done
    /// by messages.
    pub fn native(&self, input: Option<ReadView>, output: WriteView) -> Option<Operation<'a>> {
        let native = self.terms.transport.native()?;
        if !native.offers(&self.label, input.as_ref(), &output) {
            return None;
        }
        let ticket = native.post(self.label, input, output);
        Some(Operation::new(self.terms, ticket, Source::Any, self.label))
    }
}

pub(crate) fn check_rank(rank: usize, ranks: usize) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Error::usage(
        format!("there is no rank {rank} among {ranks} ranks"),
        "ranks count from 0 to size - 1",
    ))
}
