//! Uploads of batches to a device. The loader's workers fill pinned memory, and a separate queue copies it while the
//! device still computes with the previous batch. The sampler crate itself is independent of devices.

use hexagram_logical::{Buffer, DType, Element, Queue, Result};
use hexagram_physical::memory::WriteView;
use hexagram_sampler::dataset::Cause;
use hexagram_sampler::loader::{Array, Bytes, Epoch, LoaderState, Memory, Shape};
use std::sync::Arc;

/// Memory from which a device copies at its full speed: [`LoaderOptions::memory`] accepts it, for the purpose of
/// PyTorch's `pin_memory`. For the host, ordinary memory.
///
/// [`LoaderOptions::memory`]: hexagram_sampler::loader::LoaderOptions::memory
pub struct Pinned(Queue);

impl Pinned {
    /// Returns the memory for copies to the device of this queue.
    pub fn new(queue: &Queue) -> Self {
        Pinned(queue.clone())
    }
}

impl Memory for Pinned {
    fn allocate(&self, bytes: usize) -> std::result::Result<Box<dyn Bytes>, Cause> {
        Ok(Box::new(Leased(self.0.host_memory(DType::U8, bytes)?.write_all()?)))
    }
}

/// Memory of a host buffer, with this as its only view.
struct Leased(WriteView);

impl Bytes for Leased {
    fn bytes(&self) -> &[u8] {
        self.0.host_bytes().unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.host_bytes_mut().unwrap_or_default()
    }
}

/// Batch, or part of one, that can be copied to a device.
pub trait Upload: Send + 'static {
    /// Form that it has there.
    type Uploaded;

    /// Begins to copy it by `queue`, which keeps it until that is done.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the device's memory runs out.
    fn upload(self, queue: &Queue) -> Result<Self::Uploaded>;
}

/// An array in the memory of a device.
pub struct Uploaded {
    /// All elements, in row-major order. Their queue is the copying one; other queues wait for it when they read the copies.
    pub elements: Buffer,
    /// Sizes of the dimensions.
    pub shape: Shape,
}

impl<T: Element + hexagram_sampler::loader::Element> Upload for Array<T> {
    type Uploaded = Uploaded;

    fn upload(self, queue: &Queue) -> Result<Uploaded> {
        let shape = *self.shape();
        let own = Buffer::constant::<T, _>(Arc::new(self));
        if queue.is_host() {
            return Ok(Uploaded { elements: own, shape });
        }
        let elements = Buffer::zeroed_on(queue, T::DTYPE, own.len())?;
        elements.write_all()?.copy_keeping(own.read_all()?)?;
        Ok(Uploaded { elements, shape })
    }
}

impl<A: Upload, B: Upload> Upload for (A, B) {
    type Uploaded = (A::Uploaded, B::Uploaded);

    fn upload(self, queue: &Queue) -> Result<Self::Uploaded> {
        Ok((self.0.upload(queue)?, self.1.upload(queue)?))
    }
}

/// Batches of an epoch in the memory of a device, where the copy of each batch begins when the previous batch is requested.
///
/// ```
/// use hexagram::sampler::dataset::Items;
/// use hexagram::{DataLoader, LoaderOptions, Pinned, Queue, Uploads};
/// use std::sync::Arc;
///
/// let queue = Queue::host(); // one of the GPU that computes, beside the queue that does
/// let memory = Some(Arc::new(Pinned::new(&queue)) as _);
/// let options = LoaderOptions { batch_size: Some(2), memory, ..LoaderOptions::default() };
/// let mut loader = DataLoader::new(Items(vec![1.0f32, 2.0, 3.0]), options)?;
/// for batch in Uploads::new(loader.iter(), &queue) {
///     assert!(batch?.elements.len() <= 2);
/// }
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct Uploads<'a, B: Upload> {
    batches: Epoch<'a, B>,
    queue: Queue,
    /// State of the loader after the last batch that was handed out.
    state: LoaderState,
    /// The next batch, and the state after it; `None` before the first one, and at the end.
    ahead: Option<Prefetched<B>>,
    has_begun: bool,
}

type Prefetched<B> = (std::result::Result<<B as Upload>::Uploaded, Cause>, LoaderState);

impl<'a, B: Upload> Uploads<'a, B> {
    /// Creates the iterator over the rest of an epoch's batches, which `queue` copies: preferably a queue without
    /// other work.
    pub fn new(batches: Epoch<'a, B>, queue: &Queue) -> Self {
        let state = batches.state();
        Uploads { batches, queue: queue.clone(), state, ahead: None, has_begun: false }
    }

    /// Returns the position of the loader after the last batch that was handed out: one before that of the
    /// [`Epoch`] itself.
    pub fn state(&self) -> LoaderState {
        self.state.clone()
    }

    /// Takes the loader's next batch, and starts its copy.
    fn begin(&mut self) -> Option<Prefetched<B>> {
        let batch = self.batches.next()?;
        let uploaded = batch.map_err(Cause::from).and_then(|batch| Ok(batch.upload(&self.queue)?));
        Some((uploaded, self.batches.state()))
    }
}

impl<B: Upload> Iterator for Uploads<'_, B> {
    type Item = std::result::Result<B::Uploaded, Cause>;

    fn next(&mut self) -> Option<Self::Item> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.ahead = self.begin();
        }
        let (batch, state) = self.ahead.take()?;
        // A failure ends the epoch, after all batches before it.
        if batch.is_ok() {
            self.ahead = self.begin();
            self.state = state;
        }
        Some(batch)
    }
}
