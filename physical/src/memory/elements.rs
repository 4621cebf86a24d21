//! The program's access to elements: in place on the host. On a device, the program gets a copy, which is copied back if it was
//! opened for changes.

use super::dtype::Element;
use super::{Buffer, ReadView, WriteView};
use crate::error::{Error, Result};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements of a buffer, open for reading.
pub struct Elements<'a, T> {
    view: ReadView,
    /// The bytes of a view that is not in host memory.
    copy: Option<WriteView>,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a buffer, which the program may change.
pub struct ElementsMut<'a, T> {
    opened: Opened,
    elements: PhantomData<&'a mut [T]>,
}

/// The view of elements that the program may change.
struct Opened {
    view: WriteView,
    /// The bytes of a view that is not in host memory; they go back when this is dropped.
    copy: Option<WriteView>,
}

impl Buffer {
    /// Opens the elements for the program to read.
    ///
    /// On a device other than the host this waits for all work that writes them, and copies; the first time in a
    /// process, a warning reports it. For frequent work, write a kernel instead.
    ///
    /// # Errors
    /// [`Error::Usage`] if `T` is not the element type, [`Error::Busy`] while an operation writes; on a device, the
    /// failure of earlier work of its queue.
    pub fn host<T: Element>(&self) -> Result<Elements<'_, T>> {
        self.expect::<T>()?;
        let view = self.read_all()?;
        let copy = if view.is_on_host() { None } else { Some(view.copied_down()?) };
        Ok(Elements { view, copy, elements: PhantomData })
    }

    /// Opens the elements for the program to change.
    ///
    /// On a device other than the host this copies as [`Buffer::host`] does, and copies back when the guard is dropped.
    ///
    /// # Errors
    /// As [`Buffer::host`]; [`Error::Busy`] while an operation is in flight.
    pub fn host_mut<T: Element>(&mut self) -> Result<ElementsMut<'_, T>> {
        self.expect::<T>()?;
        let copy = if self.memory.place.is_none() { None } else { Some(self.read_all()?.copied_down()?) };
        let opened = Opened { view: self.write_all()?, copy };
        Ok(ElementsMut { opened, elements: PhantomData })
    }

    fn expect<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        let what = format!("a buffer of {} was accessed as {}", self.dtype, T::DTYPE);
        Err(Error::usage(what, "use the element type of the buffer"))
    }
}

impl ReadView {
    /// Returns the bytes for the program to read, whatever their type: in place on the host, and otherwise copied as by
    /// [`Buffer::host`].
    ///
    /// # Errors
    /// On a device, the failure of earlier work of its queue.
    pub fn bytes_on_host(&self) -> Result<Cow<'_, [u8]>> {
        match self.host_bytes() {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => Ok(Cow::Owned(self.copied_down()?.bytes().to_vec())),
        }
    }
}

impl WriteView {
    /// Copies bytes of the program to this view; both must have the same size.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are more or fewer; [`Error::System`] if memory runs out.
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.byte_len() {
            let what = format!("{} bytes do not match {}", bytes.len(), self.byte_len());
            return Err(Error::usage(what, "pass the same number of bytes as the elements"));
        }
        match self.host_bytes_mut() {
            Some(own) => own.copy_from_slice(bytes),
            None => {
                let copy = self.queue().host_memory(self.dtype(), self.len())?;
                copy.write_all()?.bytes_mut().copy_from_slice(bytes);
                self.copy_up(copy.read_all()?);
            }
        }
        Ok(())
    }
}

impl<T: Element> Deref for Elements<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.copy.as_ref().map_or_else(|| self.view.bytes(), WriteView::bytes))
    }
}

impl<T: Element> Deref for ElementsMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let Opened { view, copy } = &self.opened;
        bytemuck::cast_slice(copy.as_ref().unwrap_or(view).bytes())
    }
}

impl<T: Element> DerefMut for ElementsMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Opened { view, copy } = &mut self.opened;
        bytemuck::cast_slice_mut(copy.as_mut().unwrap_or(view).bytes_mut())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.view.copy_up(copy.into_read());
        }
    }
}
